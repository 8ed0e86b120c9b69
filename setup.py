"""The description on package indexes: README.md with absolute links. Everything else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
BRANCH = "main"


def read_description() -> str:
    """Return README.md, in which links to files of the repository are replaced by absolute links."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]

    def make_absolute(match: re.Match[str]) -> str:
        image, text, path = match.groups()
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/{BRANCH}/{path})"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)]*)\)", make_absolute, readme)


if __name__ == "__main__":
    setup(long_description=read_description(), long_description_content_type="text/markdown")
