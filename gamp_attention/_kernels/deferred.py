"""Kernels that other kernels call rarely, and that are therefore compiled at their first call.

Numba compiles all functions that a compiled function may call. A kernel that calls a `deferred_kernel` instead contains
the address of the called code, which is zero at first. If the address is zero, the kernel calls Python, which compiles
the called kernel or loads it from disk, and stores the address. Each later call takes one additional comparison.
Callers only need the type of the result, so that types in the called kernel are not inferred before its first call.
"""

import _thread
import ctypes
import pickle
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from gamp_attention._kernels.compiled import Kernel, find_kernel, key_of_types, sample_kernel
from gamp_attention._kernels.pointers import emit_call

WORD = ir.IntType(64)
COMPILE = "gamp_attention.compile_deferred"  # symbol of the function that returns the address of a kernel
_REQUESTS: list[tuple[Any, ...]] = []  # kernels that compiled code of this process calls and that have no name on disk
_CALLBACKS: dict[str, Any] = {}  # references to functions whose addresses compiled code contains, by symbol


def deferred_kernel(returns: Any) -> Callable[[Any], Any]:
    """Return a decorator for functions that other kernels call rarely, and whose results have the numba type `returns`.

    Only kernels can call the function, with positional arguments. It must not allocate arrays. The attribute `kernel`
    is the `Kernel` that is compiled at the first call.
    """

    def decorate(function: Any) -> Any:
        compiled = sample_kernel(function)

        def call(typing_context: Any, *others: Any) -> Any:
            kinds = tuple(map(types.unliteral, others))

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                cell = cgutils.add_global_variable(builder.module, WORD, builder.module.get_unique_name("deferred"))
                cell.linkage, cell.initializer = "internal", WORD(0)
                content = cgutils.make_bytearray(_request(compiled, kinds, returns))
                request = cgutils.global_constant(builder, "request", content)
                start, size = builder.ptrtoint(request, WORD), WORD(content.type.count)
                address = emit_address(context, builder, cell, COMPILE, [start, size])
                values = cgutils.unpack_tuple(builder, arguments[0])
                converted = [context.cast(builder, *each) for each in zip(values, others, kinds, strict=True)]
                return emit_call(context, builder, address, returns, kinds, converted)

            return returns(types.StarArgTuple(others)), generate

        stub: Any = intrinsic(call)
        stub.kernel = compiled
        return update_wrapper(stub, function)

    return decorate


def emit_address(context: Any, builder: Any, cell: Any, symbol: str, arguments: list[Any]) -> Any:
    """Add instructions that read the address in `cell`, after a call of a function that determines it if it is zero.

    `symbol` and `arguments` are the symbol of this function, see `define_function`, and its arguments. If the address
    is zero after the call, a RuntimeError is raised.
    """
    address = cgutils.alloca_once_value(builder, builder.load_atomic(cell, "acquire", 8))

    def is_zero() -> Any:
        return builder.icmp_unsigned("==", builder.load(address), WORD(0))

    with builder.if_then(is_zero(), likely=False):
        kind = ir.FunctionType(ir.VoidType(), [WORD] * (1 + len(arguments)))
        function = cgutils.get_or_insert_function(builder.module, kind, symbol)
        builder.call(function, [builder.ptrtoint(cell, WORD), *arguments])
        builder.store(builder.load_atomic(cell, "acquire", 8), address)
        with builder.if_then(is_zero(), likely=False):
            reason = "a kernel was not compiled; see the error above"
            context.call_conv.return_user_exc(builder, RuntimeError, (reason,))
    return builder.load(address)


def define_function(symbol: str, function: Callable[..., int], n_arguments: int) -> None:
    """Let compiled code call, by a symbol, a Python function that returns the address of a kernel.

    The arguments are 64-bit integers: the address of the cell for the result, and `n_arguments` arguments of the
    function. Python prints exceptions of the function and drops them. Only Ctrl-C is sent again once the kernel is
    compiled.
    """

    def fill(cell: int, *arguments: int) -> None:
        interrupted = False
        while True:
            try:
                ctypes.c_int64.from_address(cell).value = function(*arguments)
            except KeyboardInterrupt:
                interrupted = True
                continue
            if interrupted:
                _thread.interrupt_main()
            return

    callback = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (1 + n_arguments))(fill)
    binding.add_symbol(symbol, ctypes.cast(callback, ctypes.c_void_p).value)
    _CALLBACKS[symbol] = callback


def compile_kernel(compiled: Kernel, kinds: tuple[Any, ...], returns: Any) -> int:
    """Return the address of the code of a kernel for given argument types, compiled or loaded from disk.

    Raises
    ------
    TypeError : if its result has another type than `returns`.
    """
    address, returned = compiled.address(kinds)
    if returned != returns:
        raise TypeError(f"{compiled.py_func.__name__}: needs to return {returns}, got {returned}")
    return address


def _request(compiled: Kernel, kinds: tuple[Any, ...], returns: Any) -> bytes:
    """Return bytes by which `_compile_request` finds a kernel, in another process if callers are stored on disk."""
    function = compiled.py_func
    if key_of_types(kinds) is not None and "<locals>" not in function.__qualname__:
        return pickle.dumps((function.__module__, function.__qualname__, kinds, returns))
    _REQUESTS.append((compiled, kinds, returns))
    return pickle.dumps(len(_REQUESTS) - 1)


def _compile_request(request: bytes) -> int:
    """Return the address of the kernel that a caller requests."""
    content = pickle.loads(request)
    if isinstance(content, int):
        return compile_kernel(*_REQUESTS[content])
    module, name, kinds, returns = content
    return compile_kernel(find_kernel(module, name), kinds, returns)


define_function(COMPILE, lambda start, size: _compile_request(ctypes.string_at(start, size)), 2)
