"""Execution of the gallery's examples as on a reader's machine: without the checkout."""

import sys
from typing import Any

CHECKOUT = ("docs", "validation", "tests")  # packages that exist in the checkout only


def hide_checkout(gallery_conf: dict[str, Any], fname: str) -> None:
    """Let imports of the checkout's other packages fail; `sphinx_gallery` calls this function before each example.

    An example that is downloaded to an empty folder finds only installed packages. With this function an example that
    needs more fails when the manual is built.
    """
    for name in [*CHECKOUT, *(name for name in sys.modules if name.startswith(tuple(f"{top}." for top in CHECKOUT)))]:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of the name raises ModuleNotFoundError
