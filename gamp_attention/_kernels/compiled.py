"""Decorators that compile functions with numba, all compile options, and the disk cache of the compiled code.

By default, numba copies all code that a function calls into it and optimizes the whole, so that a function is
optimized once for each of its direct and indirect callers. A `Kernel` is compiled once, and stored on disk. Its callers
contain only a symbol, whose address the linker looks up when a caller is loaded; each stored caller therefore has a
list of the `Callee` objects that must be loaded before it. Kernels release the GIL.

Numba's disk cache checks the source file of the compiled function only, and identifies types by references to their
classes. Kernels also contain code from other files (by `overload`) and from classes that users define. `KernelCache`
therefore stamps each kernel with a hash of the sources of the package, and identifies types by their names and by the
content of user-defined classes (`gamp_attention._kernels.content`).

Functions that are inlined into kernels need no machine code; `InlinedCompiler` stops before that.
"""

import gc
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from llvmlite import binding, ir
from numba import extending
from numba.core import cgutils, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.funcdesc import ExternalFunctionDescriptor
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic

from gamp_attention._kernels.content import METHODS, check_helpers, hash_content
from gamp_attention._tools.interrupts import interruptible
from gamp_attention._tools.numerics import hash_bytes
from gamp_attention._tools.progress import announce_compilation

PACKAGE = Path(__file__).parent.parent
# text in files that contain kernels, classes or constants that kernels read, or compile options
COMPILED = (b"gamp_attention._kernels.compiled import", b"(NamedTuple)", b"from numba.core")


class KernelLibrary(JITCodeLibrary):
    """Code library of a kernel, which is optimized once: after the inlined functions have been linked to it."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout


class InlinedLibrary(JITCodeLibrary):
    """Code library without machine code, which is only ever linked into the libraries of its callers."""

    @property
    def codegen(self) -> Any:
        """Return self: numba registers the address of the environment with the library; inlined code has none."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the callers set the environments, see `set_environments`."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class QuickFlags(Flags):
    """Compile options of a kernel, compared by those that functions copied into it inherit.

    Numba compares options at each operation, and compiles a copied function again for callers that differ in any.
    """

    INHERITED = ("nrt", "error_model", "fastmath")

    def __eq__(self, other: object) -> bool:
        if type(other) is not QuickFlags:
            return False
        return all((self._values.get(name) or None) == (other._values.get(name) or None) for name in self.INHERITED)

    def __hash__(self) -> int:
        return hash(self._values.get("nrt") or None)


class KernelCompiler(Compiler):
    """Compiler of a kernel, into a library of a class that subclasses choose."""

    library: type[JITCodeLibrary] = KernelLibrary

    def _compile_bytecode(self) -> Any:
        state = self.state
        state.flags = QuickFlags(state.flags)
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()  # so that it can be stored
        return super()._compile_bytecode()


class InlinedCompiler(KernelCompiler):
    """Compiler that stops at the intermediate code of a function, which the callers of the function link."""

    library = InlinedLibrary


def set_environments(library: Any) -> list[Any]:
    """Register the environments of inlined functions with the compiled code; numba needs them to raise errors."""
    names = [var.name for var in library._final_module.global_variables if var.name.startswith("_ZN08NumbaEnv")]
    environments = {name: environment for name in names if (environment := lookup_environment(name)) is not None}
    for name, environment in environments.items():
        library.codegen.set_env(name, environment)
    return list(environments.values())


class Callee(NamedTuple):
    """A kernel, for given argument types, that another kernel calls; stored on disk together with its caller."""

    module: str
    name: str
    args: tuple[Any, ...]
    symbol: str

    def __call__(self) -> None:
        """Load the kernel, or compile it, unless its symbol is already defined in this process."""
        if self.symbol in _DEFINED:
            return
        find_kernel(self.module, self.name).compile(self.args)
        if self.symbol not in _DEFINED:
            raise LookupError(f"{self.name} has changed since its caller was compiled")


def find_kernel(module: str, name: str) -> Any:
    """Return the kernel of a function with this qualified name; other decorators add the kernel as an attribute."""
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return getattr(value, "kernel", value)


_DEFINED: dict[str, Callee] = {}  # kernels that were loaded or compiled in this process, by symbol
_LOADED: list[Any] = []  # references to all compiled code: it is never freed, as other code may contain its address


class Kernel(CPUDispatcher):
    """A function that is compiled once for given argument types, and that other kernels call by its symbol.

    Python can call it, too, unless it is compiled without an entry point for Python (`inner`).
    """

    @property
    def inner(self) -> bool:
        """True if there is no code that takes the arguments from Python."""
        return bool(self.targetoptions.get("no_cpython_wrapper"))

    def enable_caching(self) -> None:
        """Store compiled code on disk, if a folder for it can be written."""
        try:
            self._cache = KernelCache(self.py_func)
        except Exception:  # no folder can be written, or there is no source file
            _warn_once()

    def compile(self, sig: Any) -> Any:
        """Compile for given argument types, or load from disk."""
        with global_compiler_lock:
            collects = gc.isenabled()
            gc.disable()  # the compiler makes many objects: garbage collections took a seventh of its time
            try:
                with interruptible():
                    return super().compile(sig)
            finally:
                if collects:
                    gc.enable()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the signature of a call by another kernel; a literal number has the type of any other number."""
        unliteral = {name: types.unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(map(types.unliteral, args)), unliteral)

    def add_overload(self, compiled: Any) -> None:
        """Make code that numba has just compiled or loaded callable from Python, and by symbol from other kernels."""
        function, args = compiled.fndesc, compiled.signature.args
        if self.inner:
            self.overloads[args] = compiled  # the base class would require the entry point for Python
        else:
            super().add_overload(compiled)

        # Numba stores the functions in `reload_init` on disk and calls them before it loads this code again. They
        # define the symbols that this code declares without defining them, so that it can be linked.
        declared = [code.name for code in compiled.library._final_module.functions if code.is_declaration]
        compiled.reload_init.extend(_DEFINED[name] for name in declared if name in _DEFINED)

        # The linker resolves the symbol in code that is loaded from now on.
        symbol = self._symbol(compiled.signature)
        binding.add_symbol(symbol, compiled.library.get_pointer_to_function(function.llvm_func_name))
        _DEFINED[symbol] = Callee(self.py_func.__module__, self.py_func.__qualname__, args, symbol)
        _LOADED.append((compiled, set_environments(compiled.library)))

        # Numba has registered the function such that its code is copied into callers. An external function of the same
        # types is registered instead: callers then only declare the symbol.
        self.targetctx.remove_user_function(compiled.entry_point)
        external = ExternalFunctionDescriptor(symbol, function.restype, function.argtypes)
        self.targetctx.insert_user_function(compiled.entry_point, external)

    def address(self, args: tuple[Any, ...]) -> tuple[int, Any]:
        """Return the address of the code for given argument types, compiled if necessary, and its return type."""
        self.compile(args)
        compiled: Any = self.overloads[args]
        return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name), compiled.signature.return_type

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if self.inner:
            raise TypeError(f"{self.py_func.__qualname__}: is called by kernels only, got arguments from Python")
        return super()._compile_for_args(*args, **kws)  # type: ignore[misc]

    def _symbol(self, signature: Any) -> str:
        """Return a symbol for given types, identical in all processes that can load the code from disk."""
        name, key = self.py_func.__qualname__, key_of_types((*signature.args, signature.return_type))
        if key is None or "<locals>" in name:
            return f"{name}.{uuid4().hex}"
        return f"{name}.{hash_bytes(repr((self.py_func.__module__, key)).encode())}"


@lru_cache(maxsize=1)
def _warn_once() -> None:
    warnings.warn(
        "NUMBA_CACHE_DIR: needs a folder that can be written and has free space; the computation continues, but "
        "compiled code is not stored, and every process compiles again, which takes 20 seconds or more",
        RuntimeWarning,
        stacklevel=3,
    )


class KernelCacheFile(IndexDataCacheFile):
    """Compiled code on disk that is only loaded under the stamp and the key with which it was stored.

    Numba writes the list of keys first, and reuses names of files: if the disk is full or two processes write at once,
    a key may have the code of another version or of other types.
    """

    def save(self, key: Any, data: Any) -> None:
        """Store code under a key."""
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: Any) -> Any:
        """Return the code that was stored under a key, or None."""
        stamp, stored_key, data = super().load(key) or (None, None, None)
        return data if (stamp, stored_key) == (self._source_stamp, key) else None


class KernelCache(FunctionCache):
    """Compiled code of one kernel on disk; it is used only while all sources that went into it are unchanged."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), package_digest()
        self._cache_file = KernelCacheFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel, or None if it is not stored."""
        try:
            stored = super().load_overload(sig, target_context) if key_of_types(sig) is not None else None
        except Exception:  # the file may be damaged in any way; the kernel can always be compiled again
            with suppress(OSError):
                self.flush()
            stored = None
        if stored is None:
            announce_compilation()
            for cls in user_classes(sig):
                check_helpers(cls)
        return stored

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel, together with the kernels of other versions of a user's sources, if possible."""
        if key_of_types(sig) is not None:
            try:
                super().save_overload(sig, data)
            except Exception:  # a full disk, a limit on files, a folder that was removed
                _warn_once()

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        _, magic, code = super()._index_key(sig, codegen)
        return key_of_types(sig), magic, code


@lru_cache
def package_digest() -> str:
    """Return a hash of all files of the package that go into kernels."""
    sources = [path.read_bytes() for path in sorted(PACKAGE.rglob("*.py"))]
    return hash_bytes(b"\0".join(source for source in sources if any(mark in source for mark in COMPILED)))


def key_of_types(sig: Any) -> tuple[Any, ...] | None:
    """Return a key that identifies argument types in all processes, with the content of user-defined classes.

    None if a type cannot be identified: if other processes cannot import its class, or its content is unknown.
    """
    classes = user_classes(sig)
    contents = [hash_content(cls) if _is_importable(cls) else None for cls in classes]
    names = [(cls.__module__, cls.__qualname__) for cls in classes]
    return None if None in contents else (str(sig), *zip(names, contents, strict=True))


def user_classes(sig: Any) -> list[type]:
    """Return the user-defined NamedTuples among the types of a signature, including nested NamedTuples."""
    classes, pending = [], list(sig)
    while pending:
        kind = pending.pop(0)
        if isinstance(kind, types.CPointer):
            kind = kind.dtype
        if isinstance(kind, types.BaseTuple):
            pending.extend(kind)  # type: ignore[arg-type]
        if isinstance(kind, types.BaseNamedTuple):
            cls: type = kind.instance_class  # type: ignore[attr-defined]
            if not cls.__module__.startswith("gamp_attention."):
                classes.append(cls)
    return classes


def _is_importable(cls: type) -> bool:
    """Return whether a class is in an imported module; classes of a script are not."""
    value: Any = None if cls.__module__ in ("__main__", "__mp_main__") else sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is cls


CACHE_LINE = 64  # size in bytes of the unit of memory that a processor loads


def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Start loading the cache line of array[row, column] into the second-level cache.

    The index may lie outside the array.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (array, *place) = signature.args[0], arguments
        view = context.make_array(kind)(context, builder, array)
        item = cgutils.get_item_pointer(context, builder, kind, view, place, wraparound=False, boundscheck=False)
        address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [address, number, number, number])
        hint = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        reading, second_cache, data = number(0), number(2), number(1)
        builder.call(hint, [builder.bitcast(item, address), reading, second_cache, data])
        return context.get_dummy_value()

    return types.void(array, row, column), generate


prefetch: Any = intrinsic(_prefetch)


COMMON: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}  # no entry point for C code
# No entry point for Python either. Inner kernels have the same options as the functions that are copied into them, so
# that these are compiled once for all callers: numba compiles an inlined function again for other options of a caller.
NO_ENTRY: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True}
INLINED: dict[str, Any] = {**COMMON, **NO_ENTRY, "pipeline_class": InlinedCompiler}  # copied into kernels


def kernel(function: Callable[..., Any], counted: bool = True, inner: bool = False, **options: Any) -> Any:
    """Return a `Kernel`, which is compiled or loaded from disk at its first call.

    Parameters
    ----------
    function : function to compile.
    counted : whether references to arrays are counted, which a function that allocates arrays needs. The counts are
        atomic, and threads wait for each other at the counts of shared arrays, so functions that run once per sample
        should not count.
    inner : if True, only kernels can call the function; there is no entry point for Python.
    options : further options of numba.
    """
    chosen = {**COMMON, "nopython": True, "_nrt": counted, **(NO_ENTRY if inner else {"nogil": True}), **options}
    compiled = Kernel(function, targetoptions=chosen, pipeline_class=KernelCompiler)
    compiled.enable_caching()
    return compiled


plain_kernel = partial(kernel, counted=False)  # called from Python, which passes scratch memory
sample_kernel = partial(kernel, counted=False, inner=True)
# sums may be reordered in the long dot products over the data only; short sums are computed in the order of the source
field_kernel = partial(kernel, counted=False, fastmath={"reassoc", "contract", "nsz"})
inline_kernel = extending.register_jitable(**INLINED, _nrt=False)


def user_kernel(function: Any) -> Any:
    """Register a method of a user-defined class for inlining into kernels; it may allocate arrays."""
    METHODS.add(function)
    return extending.register_jitable(**INLINED, _nrt=True)(function)


def overload(function: Any, strict: bool = True) -> Any:
    """Return a decorator for the inlined code of a stub for some types of arguments, see `dispatch_on_type`.

    With `strict`, the code must name its arguments as the decorated function does.
    """
    options: Any = {**INLINED, "_nrt": False}
    return extending.overload(function, jit_options=options, strict=strict)


def dispatch_on_type(function: Callable[..., Any]) -> Any:
    """Return a stub that compiled code calls, whose code numba selects by the types of the arguments.

    It is the counterpart of `functools.singledispatch` for kernels. A module that defines a type, for example a loss,
    adds the implementation for this type by `overload(stub)`. The function that `overload` decorates receives the numba
    types of the arguments, and returns a Python function with the same arguments, which is compiled, or None for types
    that it does not handle.
    """

    @wraps(function)
    def stub(*arguments: Any) -> Any:
        raise NotImplementedError(f"{function.__name__}() can be called by compiled code only")

    return stub


def is_instance(numba_type: Any, cls: type) -> bool:
    """Return whether a numba type is the NamedTuple `cls`; used to select an overload."""
    return isinstance(numba_type, types.BaseNamedTuple) and getattr(numba_type, "instance_class", None) is cls
