"""Compiled kernels on disk, used again only while all the code that went into them is unchanged.

Numba looks at the file of the kernel alone, and stores types by a reference to their classes. But kernels take code
from other files by `overload`, and from losses, attention maps and penalties that users define. So here the stamp
of a kernel holds the sources of the package, its keys name types in words, and they hold the sources of users.
"""

import inspect
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba.core import types
from numba.core.caching import FunctionCache, IndexDataCacheFile

from gamp_attention._core.hashes import hash_bytes
from gamp_attention._core.progress import announce_compilation

PACKAGE = Path(__file__).parent.parent
# in files with kernels, with classes or settings that kernels read, and with the compile options
COMPILED = (b"gamp_attention._core.compiled import", b"(NamedTuple)", b"from numba.core")


class KernelCache(FunctionCache):
    """The cache of one kernel."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), package_digest()
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel, or None."""
        try:
            stored = super().load_overload(sig, target_context) if is_known(sig) else None
        except Exception:  # whatever is wrong with a file on disk, the kernel can be compiled again
            self.flush()
            stored = None
        if stored is None:
            announce_compilation()
        return stored

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel, beside those of other versions of a user's sources."""
        if is_known(sig):
            super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        _, magic, code = super()._index_key(sig, codegen)
        return key_of_types(sig), magic, code


@lru_cache
def package_digest() -> str:
    """A hash of all files of the package that go into kernels."""
    texts = [path.read_bytes() for path in sorted(PACKAGE.rglob("*.py"))]
    return hash_bytes(b"\0".join(text for text in texts if any(mark in text for mark in COMPILED)))


def user_classes(sig: Any) -> list[type]:
    """Users' NamedTuples among the types of a signature, and inside of these."""
    found, waiting = [], list(sig)
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, types.CPointer):
            each = each.dtype
        if isinstance(each, types.BaseNamedTuple):
            cls: type = each.instance_class  # type: ignore[attr-defined]
            waiting.extend(each)  # type: ignore[arg-type]
            if not cls.__module__.startswith("gamp_attention."):
                found.append(cls)
    return found


def key_of_types(sig: Any) -> tuple[Any, ...] | None:
    """What tells types apart in every process, with the sources of users' classes; None where there are none."""
    return (str(sig), *map(_of_class, user_classes(sig))) if is_known(sig) else None


def is_known(sig: Any) -> bool:
    """Whether all users' classes can be imported again, which those of a script cannot, and their sources be read."""
    return all(_is_importable(cls) and _source(cls) is not None for cls in user_classes(sig))


def _is_importable(cls: type) -> bool:
    found: Any = None if cls.__module__ in ("__main__", "__mp_main__") else sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


@lru_cache  # once for all kernels
def _of_class(cls: type) -> tuple[str, str, str]:
    source = _source(cls)
    assert source is not None
    return cls.__module__, cls.__qualname__, hash_bytes(source)


@lru_cache
def _source(cls: type) -> bytes | None:
    """The file that defines a class; helpers that it imports from a file next to it are not seen."""
    try:
        path = inspect.getsourcefile(cls) or getattr(sys.modules[cls.__module__], "__file__", None)
        return None if path is None else Path(path).read_bytes()
    except (OSError, TypeError, KeyError):
        return None
