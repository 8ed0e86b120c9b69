"""Numbers of chapters that continue from one part of the manual to the next, so that an equation has one number."""

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.environment.collectors.toctree import TocTreeCollector


def continue_numbers(app: Any, env: Any) -> list[str]:
    """Continue the numbers of chapters in later parts, and number equations again; runs on `env-get-updated`.

    Sphinx has numbered the chapters before. It begins each `toctree` with chapter 1.
    """
    earlier = 0
    for tree in env.get_doctree(env.config.root_doc).findall(addnodes.toctree):
        if tree.get("numbered"):
            for _, page in tree["entries"]:
                _shift_page(env, page, earlier)
            earlier += len(tree["entries"])
    return TocTreeCollector().assign_figure_numbers(env)


def _shift_page(env: Any, page: str, earlier: int) -> None:
    """Add the number of earlier chapters to the numbers of the sections of a page."""
    numbers = env.toc_secnumbers.get(page, {})
    shifted = {anchor: (number[0] + earlier, *number[1:]) for anchor, number in numbers.items() if number}
    env.toc_secnumbers[page] = numbers | shifted
    env.titles[page]["secnumber"] = shifted.get("")
    for link in env.tocs[page].findall(nodes.reference):
        if link.get("secnumber"):
            link["secnumber"] = shifted[link["anchorname"]]
