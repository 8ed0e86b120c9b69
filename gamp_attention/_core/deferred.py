"""Kernels that other kernels call rarely, and that are therefore compiled at their first call.

Compiled code calls a kernel by its symbol. The symbol of a `DeferredKernel` belongs to a stub of a few instructions
that jumps to the compiled kernel and leaves all arguments where they are. At its first call the stub calls Python,
which compiles the kernel or loads it from disk. Callers only need the type of the result, so the types in the kernel
are not even inferred before. A stub takes less than a nanosecond.
"""

import _thread
import ctypes
from functools import partial
from typing import Any

from llvmlite import binding
from numba.core import types, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.funcdesc import ExternalFunctionDescriptor

from gamp_attention._core.compiled import Kernel, define_symbol, kernel

# The code of a kernel returns a status: 0, or -1 if a Python exception is set. A call with `musttail` and "..." passes
# on all registers and the stack, whatever the types of the arguments are.
STUB = """
target triple = "{triple}"

define i32 @"{symbol}"(...) {{
  %cell = inttoptr i64 {cell} to ptr
  %known = load atomic i64, ptr %cell acquire, align 8
  %is_known = icmp ne i64 %known, 0
  br i1 %is_known, label %jump, label %first
first:
  %resolve = inttoptr i64 {resolve} to ptr
  call void %resolve()
  %resolved = load atomic i64, ptr %cell acquire, align 8
  %is_resolved = icmp ne i64 %resolved, 0
  br i1 %is_resolved, label %jump, label %failed
jump:
  %address = phi i64 [ %known, %0 ], [ %resolved, %first ]
  %code = inttoptr i64 %address to ptr
  %status = musttail call i32 (...) %code(...)
  ret i32 %status
failed:
  ret i32 -1
}}
"""
_STUBS: list[Any] = []  # references to the code of all stubs and to the memory that it contains the addresses of


class DeferredKernel(Kernel):
    """A kernel that is compiled, for given argument types, at its first call by another kernel; see `deferred_kernel`.

    `returns` is the numba type of its result.
    """

    def __init__(self, function: Any, returns: Any, targetoptions: Any) -> None:
        super().__init__(function, targetoptions=targetoptions)
        self.returns = returns
        self._keys: dict[tuple[Any, ...], Any] = {}  # identifiers of the stubs, by argument types
        self._addresses: dict[tuple[Any, ...], int] = {}  # addresses of the stubs

    def provide(self, args: tuple[Any, ...]) -> None:
        """Define the symbol for given argument types, as a stub."""
        with global_compiler_lock:
            self._provide(args)

    def _provide(self, args: tuple[Any, ...]) -> None:
        if args in self._keys:
            return
        signature = typing.signature(self.returns, *args)
        symbol = f"deferred.{self._symbol(signature)}"
        self._define_stub(symbol, args)
        define_symbol(self, symbol, args)
        self._keys[args] = (self, args)
        external = ExternalFunctionDescriptor(symbol, self.returns, args)
        self.targetctx.insert_user_function(self._keys[args], external)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the signature of a call by another kernel, which needs no compiled code."""
        kws = {name: types.unliteral(kind) for name, kind in kws.items()}
        compiler: Any = self._compiler  # type: ignore[attr-defined]
        python_signature, args = compiler.fold_argument_types(tuple(map(types.unliteral, args)), kws)
        self.provide(tuple(args))
        name = self.py_func.__name__
        signatures = [typing.signature(self.returns, *args)]
        template = typing.make_concrete_template(f"CallTemplate({name})", key=name, signatures=signatures)
        return template, python_signature, args, {}

    def get_overload(self, sig: Any) -> Any:
        """Return the key by which numba finds the function that a caller calls: the stub."""
        return self._keys[tuple(sig)]

    def stub_address(self, args: tuple[Any, ...]) -> int:
        """Return the address of the stub for given argument types."""
        self.provide(args)
        return self._addresses[args]

    def _define_stub(self, symbol: str, args: tuple[Any, ...]) -> None:
        cell = ctypes.c_int64(0)  # address of the compiled kernel
        resolve = ctypes.CFUNCTYPE(None)(partial(self._resolve, args, cell))
        code = STUB.format(
            triple=binding.get_process_triple(), symbol=symbol, cell=ctypes.addressof(cell),
            resolve=ctypes.cast(resolve, ctypes.c_void_p).value,
        )  # fmt: skip
        context: Any = self.targetctx
        library = context.codegen().create_library(symbol)
        library.add_llvm_module(binding.parse_assembly(code))
        library.finalize()
        self._addresses[args] = library.get_pointer_to_function(symbol)
        binding.add_symbol(symbol, self._addresses[args])
        _STUBS.append((library, cell, resolve))

    def _resolve(self, args: tuple[Any, ...], cell: Any) -> None:
        """Compile or load the kernel, and store its address in `cell`; called by the stub without the GIL.

        Python prints exceptions of this function and drops them. Therefore Ctrl-C is sent again once the kernel is
        compiled; the stub reports any other exception.
        """
        interrupted = False
        while not cell.value:
            try:
                address, returned = self.address(args)
            except KeyboardInterrupt:
                interrupted = True
                continue
            if returned != self.returns:
                raise TypeError(f"{self.py_func.__name__}: needs to return {self.returns}, got {returned}")
            cell.value = address
        if interrupted:
            _thread.interrupt_main()


def deferred_kernel(returns: Any, counted: bool = False) -> Any:
    """Return a decorator for functions that other kernels call rarely, and whose results have the numba type `returns`.

    `counted` has the meaning that it has for `kernel`. Python cannot call the kernel.
    """

    def decorate(function: Any) -> Any:
        return kernel(function, counted=counted, inner=True, make=partial(DeferredKernel, returns=returns))

    return decorate
