"""Kernels that call each other through addresses.

By itself numba copies all that a function calls into it and optimises the whole: what is at the bottom of a tower of
functions is optimised again for each function above. A `Kernel` is compiled once. Where another one calls it, there is
only its symbol, whose address has to be known before the caller runs. It is: the caller is compiled after it, and on
the disk the caller has a `Callee` that is called before it is loaded.
"""

from importlib import import_module
from typing import Any, NamedTuple
from uuid import uuid4

from llvmlite import binding
from numba.core import types
from numba.core.funcdesc import ExternalFunctionDescriptor
from numba.core.imputils import user_function
from numba.core.registry import CPUDispatcher

from gamp_attention._core.hashes import hash_bytes
from gamp_attention._core.kernel_cache import KernelCache, key_of_types

_LOADED: dict[str, list[Any]] = {}  # compiled code by symbol; all of it stays, as others may hold the address


class Callee(NamedTuple):
    """A kernel, for some types of arguments, that another one calls."""

    module: str
    name: str
    args: tuple[Any, ...]
    symbol: str

    def __call__(self) -> None:
        """Load or compile it, if that has not been done."""
        if self.symbol in _LOADED:
            return
        kernel: Any = import_module(self.module)
        for part in self.name.split("."):
            kernel = getattr(kernel, part)
        kernel.compile(self.args)
        if self.symbol not in _LOADED:
            raise LookupError(f"{self.name} is not what it was when its caller was compiled")


class Kernel(CPUDispatcher):
    """A compiled function that others call through its address."""

    def enable_caching(self) -> None:
        """Keep what is compiled on the disk."""
        self._cache = KernelCache(self.py_func)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The signature of a call by a kernel; a number written out there is like any other."""
        plain = {name: types.unliteral(each) for name, each in kws.items()}
        return super().get_call_template(tuple(map(types.unliteral, args)), plain)

    def add_overload(self, compiled: Any) -> None:
        """Let what was just compiled or loaded be called by Python, and by kernels through its address."""
        super().add_overload(compiled)
        function, args = compiled.fndesc, compiled.signature.args
        callee = Callee(self.py_func.__module__, self.py_func.__qualname__, args, self._symbol(compiled.signature))
        binding.add_symbol(callee.symbol, compiled.library.get_pointer_to_function(function.llvm_func_name))
        _LOADED.setdefault(callee.symbol, []).append(compiled)
        outside = user_function(ExternalFunctionDescriptor(callee.symbol, function.restype, function.argtypes), ())

        def call(context: Any, *others: Any) -> Any:
            context.active_code_library._reload_init.add(callee)
            return outside(context, *others)

        call.signature, call.libs = outside.signature, ()  # type: ignore[attr-defined]
        self.targetctx.remove_user_function(compiled.entry_point)  # which would copy the code
        self.targetctx._defns[compiled.entry_point].append(call, call.signature)  # type: ignore[attr-defined]

    def _symbol(self, signature: Any) -> str:
        """A name of the code for some types, the same in every process that can load it from the disk."""
        name, known = self.py_func.__qualname__, key_of_types((*signature.args, signature.return_type))
        if known is None or "<locals>" in name:
            return f"{name}.{uuid4().hex}"
        return f"{name}.{hash_bytes(repr((self.py_func.__module__, known)).encode())}"
