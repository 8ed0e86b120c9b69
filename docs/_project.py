"""Address of the repository, from pyproject.toml only, and the links of each page to its source file."""

import inspect
import tomllib
from pathlib import Path
from typing import Any

import gamp_attention
from validation._tools import catalog

ROOT = Path(__file__).parent.parent
BRANCH = "main"


def read_repository(path: Path = ROOT / "pyproject.toml") -> str:
    """Return the address of the repository, as `Repository` of `[project.urls]` in pyproject.toml states it.

    Raises
    ------
    ValueError : if the file has no such line.
    """
    urls = tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("urls", {})
    if not urls.get("Repository"):
        raise ValueError(f'{path}: needs a line Repository = "https://…" in [project.urls], got {urls or "no table"}')
    return urls["Repository"].rstrip("/")


def find_source(page: str) -> str | None:
    """Return the path of the file that a page of the manual is made from, relative to the checkout, or None."""
    folder, _, name = page.rpartition("/")
    if folder == "auto_gallery":
        return "docs/gallery/GALLERY_HEADER.rst" if name == "index" else f"docs/gallery/{name}.py"
    if folder == "generated/validation":
        return next((script.relative_path for script in catalog.scripts() if script.name == name), None)
    if page == "generated/command_line":
        return "gamp_attention/extensions/cli/main.py"
    if folder == "generated":
        thing = getattr(gamp_attention, name.rpartition(".")[2], None)
        thing = inspect.unwrap(thing) if callable(thing) else thing
        file = inspect.getsourcefile(thing) if inspect.isclass(thing) or inspect.isfunction(thing) else None
        return Path(file).relative_to(ROOT).as_posix() if file else None
    return f"docs/{page}.md"


def link_page(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Set the links "View this page" and "Edit this page"; runs on `html-page-context`."""
    path = find_source(page) if doctree is not None else None
    if path is None:
        context["page_source_suffix"] = ""
        return
    repository = read_repository()
    context["theme_source_view_link"] = f"{repository}/blob/{BRANCH}/{path}"
    context["theme_source_edit_link"] = f"{repository}/edit/{BRANCH}/{path}"
