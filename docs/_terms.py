"""Links from the first use of each term on every page of the manual to the glossary."""

import re
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

GLOSSARY = Path(__file__).parent / "glossary.md"
NOT_PROSE = (
    nodes.literal, nodes.literal_block, nodes.doctest_block, nodes.math, nodes.raw, nodes.reference, nodes.title,
    nodes.term, nodes.caption, nodes.comment, addnodes.pending_xref, addnodes.toctree,
)  # fmt: skip


@cache
def list_terms(path: Path = GLOSSARY) -> tuple[str, ...]:
    """Return all terms as they are written in the glossary."""
    lines = path.read_text(encoding="utf-8").partition("```{glossary}")[2].splitlines()
    return tuple(line for line in lines if line and not line.startswith((" ", "`", ":")))


@cache
def compile_pattern(term: str) -> re.Pattern[str]:
    """Return a pattern that matches a term as a whole word, also in the plural; case matters in symbols and names."""
    flags = re.IGNORECASE if term[1:].islower() or " " in term else re.NOFLAG
    words = r"\s+".join(map(re.escape, term.split()))  # the words of a term may be on two lines
    return re.compile(rf"(?<![\w-]){words}(?:e?s)?(?![\w-])", flags)


def find_first_uses(text: str, wanted: list[str]) -> list[tuple[int, int, str]]:
    """Return (start, end, term) of each term's first use outside longer terms, in order of the text."""
    uses: list[tuple[int, int, str]] = []
    for term in sorted(wanted, key=len, reverse=True):
        for match in compile_pattern(term).finditer(text):
            if all(match.end() <= start or end <= match.start() for start, end, _ in uses):
                uses.append((match.start(), match.end(), term))
                break
    return sorted(uses)


class LinkTerms(SphinxTransform):
    """Sphinx transform that links the first use of each term in the prose of a page."""

    default_priority = 760  # after substitutions and smart quotes

    def apply(self, **_: object) -> None:
        """Insert the links into the text nodes of a page, in order."""
        if self.env.docname == "glossary" or self.env.docname.startswith("generated/"):
            return
        wanted = list(list_terms())
        for text in list(self.document.findall(nodes.Text)):
            if wanted and not self._is_prose(text):
                continue
            pieces, done = [], 0
            for start, end, term in find_first_uses(text.astext(), wanted):
                words = text.astext()[start:end]
                link = addnodes.pending_xref(
                    "", nodes.inline(words, words, classes=["xref", "std", "std-term"]), refdoc=self.env.docname,
                    refdomain="std", reftype="term", reftarget=term, refexplicit=True, refwarn=True,
                )  # fmt: skip
                pieces += [nodes.Text(text.astext()[done:start]), link]
                done = end
                wanted.remove(term)
            if pieces:
                text.parent.replace(text, [*pieces, nodes.Text(text.astext()[done:])])

    @staticmethod
    def _is_prose(text: nodes.Text) -> bool:
        node = text.parent
        while node is not None and not isinstance(node, nodes.document):
            if isinstance(node, NOT_PROSE):
                return False
            node = node.parent
        return True
