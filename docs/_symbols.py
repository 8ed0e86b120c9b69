"""Symbols in the text of the manual: subscripts as in α_c, superscripts as in d^(−1/2), and no line break in 5 %."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

NOT_TEXT = (
    nodes.literal, nodes.literal_block, nodes.doctest_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment,
    addnodes.desc_signature, addnodes.toctree,
)  # fmt: skip
SYMBOL = re.compile(
    r"(?<![\w.])(?P<base>Δ?[A-Za-zΑ-Ωα-ω][\u0302\u0303]?★?)"  # a letter, perhaps with a hat or a tilde
    r"(?:_(?P<index>[a-zA-Zα-ω0-9]{1,2}|lin)|\^\((?P<power>[^()\s]+)\))(?!\w)"
)


def split_symbols(text: str) -> list[nodes.Node]:
    """Return the nodes of a text, with indices as subscripts and powers as superscripts; [] if nothing changes."""
    before, text = text, re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)
    pieces: list[nodes.Node] = []
    done = 0
    for match in SYMBOL.finditer(text):
        pieces.append(nodes.Text(text[done : match.end("base")]))
        index, power = match["index"], match["power"]
        pieces.append(nodes.subscript(index, index) if index else nodes.superscript(power, power))
        done = match.end()
    return [*pieces, nodes.Text(text[done:])] if pieces or text != before else []


class TypesetSymbols(SphinxTransform):
    """Sphinx transform that sets the symbols in the text of a page; code and formulas are not changed."""

    default_priority = 770  # after the links to the glossary

    def apply(self, **_: object) -> None:
        """Replace the text nodes of a page that contain such symbols."""
        for text in list(self.document.findall(nodes.Text)):
            node = text.parent
            while node is not None and not isinstance(node, NOT_TEXT):
                node = node.parent
            pieces = split_symbols(text.astext()) if node is None else []
            if pieces:
                text.parent.replace(text, pieces)
