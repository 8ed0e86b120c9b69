"""Hashes of the code of user-defined classes, for stored results that a later call uses again.

Methods that are compiled are described as in `gamp_attention._kernels.content`, and so are methods that Python runs.
"""

import sys
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

from gamp_attention._kernels.content import Walk
from gamp_attention._tools.numerics import hash_bytes

INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages
INNER = ("__wrapped__", "fget", "func")  # attributes of static methods, properties and partial calls: the function


def hash_user_classes(value: Any) -> list[str]:
    """Return hashes of the code of the user-defined classes of a value and its fields, equal in every process.

    They depend on the version of Python.
    """
    items = [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) else value
    hashes = [code for item in (items if isinstance(items, tuple | list) else ()) for code in hash_user_classes(item)]
    walk = _CodeWalk(type(value).__module__.partition(".")[0])
    if not walk.is_library(walk.package):
        hashes.append(hash_bytes(repr(walk.describe(type(value))).encode()))
    return hashes


class _CodeWalk(Walk):
    """Description of all methods of a class; unknown values are identified by their class, installed packages by name.

    `package` is the package of the class, which may be installed.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self.package = package

    def is_library(self, package: str) -> bool:
        """Return whether a package is the standard library, this package, or installed."""
        file = str(getattr(sys.modules.get(package), "__file__", None))
        installed = package != self.package and any(folder in file for folder in INSTALLED)
        return installed or package in ("gamp_attention", *sys.stdlib_module_names) or super().is_library(package)

    def _describe_definition(self, value: Any) -> Any:
        """Return a description of any object."""
        try:
            return super()._describe_definition(value)
        except LookupError:
            if isinstance(value, type):
                return self._describe_class(value)
            return [self.describe(item) for item in (type(value), *(getattr(value, name, None) for name in INNER))]

    def _describe_class(self, cls: Any) -> Any:
        """Return a description of all attributes of a class and of its bases."""
        content = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        used = [(k, v) for k, v in sorted(content.items()) if k[:2] != "__" or isinstance(v, FunctionType)]
        return "class", cls.__qualname__, [(k, self.describe(v)) for k, v in used]
