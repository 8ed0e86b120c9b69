"""Notebooks of the gallery: their text is Markdown, so roles of the manual are replaced by plain code."""

import re
from pathlib import Path

ROLE = re.compile(r":(\w+):`~?([^`]+)`")


def format_role(role: re.Match[str]) -> str:
    """Return the text of a notebook for a role of the manual."""
    kind, target = role.groups()
    if kind == "doc":
        return f"the page {target.strip('/')} of the manual"
    name = target.rpartition(".")[2]
    return f"`{name}()`" if kind == "func" else f"`{name}`"


def replace_roles(app) -> None:
    """Replace the roles in all notebooks; runs on `builder-inited`, after the gallery has written the notebooks."""
    for path in Path(app.srcdir, "auto_gallery").glob("*.ipynb"):
        path.write_text(ROLE.sub(format_role, path.read_text(encoding="utf-8")), encoding="utf-8")
