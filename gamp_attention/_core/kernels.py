"""Kernels that call each other through addresses.

By itself numba copies all that a function calls into it and optimises the whole: what is at the bottom of a tower of
functions is optimised again for each function above. A `Kernel` is compiled once. Where another one calls it, there is
only its symbol, whose address has to be known before the caller runs. It is: the caller is compiled after it, and on
the disk the caller has a `Callee` that is called before it is loaded.
"""

import gc
from importlib import import_module
from typing import Any, NamedTuple
from uuid import uuid4

from llvmlite import binding
from numba.core import types
from numba.core.funcdesc import ExternalFunctionDescriptor
from numba.core.registry import CPUDispatcher

from gamp_attention._core.hashes import hash_bytes
from gamp_attention._core.inlined import set_environments
from gamp_attention._core.interrupts import interruptible_compilation
from gamp_attention._core.kernel_cache import KernelCache, key_of_types

_LOADED: list[Any] = []  # all compiled code stays, as others may hold its address


class Callee(NamedTuple):
    """A kernel, for some types of arguments, that another one calls."""

    module: str
    name: str
    args: tuple[Any, ...]
    symbol: str

    def __call__(self) -> None:
        """Load or compile it, if that has not been done."""
        if self.symbol in _CALLEES:
            return
        kernel: Any = import_module(self.module)
        for part in self.name.split("."):
            kernel = getattr(kernel, part)
        getattr(kernel, "kernel", kernel).compile(self.args)
        if self.symbol not in _CALLEES:
            raise LookupError(f"{self.name} is not what it was when its caller was compiled")


_CALLEES: dict[str, Callee] = {}  # what is loaded, by symbol


class Kernel(CPUDispatcher):
    """A compiled function that kernels call through its address, and Python, but for inner ones."""

    @property
    def inner(self) -> bool:
        """Whether there is no code that takes the arguments from Python."""
        return bool(self.targetoptions.get("no_cpython_wrapper"))

    def enable_caching(self) -> None:
        """Keep what is compiled on the disk."""
        self._cache = KernelCache(self.py_func)

    def compile(self, sig: Any) -> Any:
        """Compile for types of arguments, or load; collections of garbage wait, as they took a seventh of the time."""
        collects = gc.isenabled()
        gc.disable()
        try:
            with interruptible_compilation():
                return super().compile(sig)
        finally:
            if collects:
                gc.enable()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The signature of a call by a kernel; a number written out there is like any other."""
        plain = {name: types.unliteral(each) for name, each in kws.items()}
        return super().get_call_template(tuple(map(types.unliteral, args)), plain)

    def add_overload(self, compiled: Any) -> None:
        """Let what was just compiled or loaded be called by Python, and by kernels through its address."""
        function, args = compiled.fndesc, compiled.signature.args
        if self.inner:
            self.overloads[args] = compiled
        else:
            super().add_overload(compiled)
        declared = [each.name for each in compiled.library._final_module.functions if each.is_declaration]
        compiled.reload_init.extend(_CALLEES[name] for name in declared if name in _CALLEES)  # numba calls these
        symbol = self._symbol(compiled.signature)
        binding.add_symbol(symbol, compiled.library.get_pointer_to_function(function.llvm_func_name))
        _CALLEES[symbol] = Callee(self.py_func.__module__, self.py_func.__qualname__, args, symbol)
        _LOADED.append((compiled, set_environments(compiled.library)))
        outside = ExternalFunctionDescriptor(symbol, function.restype, function.argtypes)
        self.targetctx.remove_user_function(compiled.entry_point)  # which would copy the code
        self.targetctx.insert_user_function(compiled.entry_point, outside)

    def address(self, args: tuple[Any, ...]) -> tuple[int, Any]:
        """Where the code for some types of arguments is, compiled if need be, and the type that it returns."""
        self.compile(args)
        compiled: Any = self.overloads[args]
        return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name), compiled.signature.return_type

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if self.inner:
            raise TypeError(f"{self.py_func.__qualname__}: is called by kernels only, got arguments from Python")
        return super()._compile_for_args(*args, **kws)  # type: ignore[misc]

    def _symbol(self, signature: Any) -> str:
        """A name of the code for some types, the same in every process that can load it from the disk."""
        name, known = self.py_func.__qualname__, key_of_types((*signature.args, signature.return_type))
        if known is None or "<locals>" in name:
            return f"{name}.{uuid4().hex}"
        return f"{name}.{hash_bytes(repr((self.py_func.__module__, known)).encode())}"
