"""Notebooks of the gallery, whose words are Markdown: roles of the manual become plain code."""

import re
from pathlib import Path

ROLE = re.compile(r":(\w+):`~?([^`]+)`")


def words(role: re.Match[str]) -> str:
    """What a notebook says in place of a role."""
    kind, target = role.groups()
    if kind == "doc":
        return f"the page {target.strip('/')} of the manual"
    name = target.rpartition(".")[2]
    return f"`{name}()`" if kind == "func" else f"`{name}`"


def plain_roles(app) -> None:
    """Rewrite the notebooks that the gallery has just written; connected to `builder-inited`, after it."""
    for path in Path(app.srcdir, "auto_gallery").glob("*.ipynb"):
        path.write_text(ROLE.sub(words, path.read_text(encoding="utf-8")), encoding="utf-8")
