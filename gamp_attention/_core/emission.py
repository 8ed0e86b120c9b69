"""Machine code that numba's compiler receives as LLVM instructions inside of a kernel.

`emit` adds a straight-line program; this takes a small fraction of the time that numba needs for the same program as
Python source. `emit_call` adds a call of a kernel whose address is known only when the code runs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typing import signature

from gamp_attention._core.expressions import Program

FLOAT = ir.DoubleType()
FROM_MATH = {
    "exp": math.exp, "expm1": math.expm1, "log": math.log, "log1p": math.log1p, "sqrt": math.sqrt, "sin": math.sin,
    "cos": math.cos, "tan": math.tan, "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "arcsinh": math.asinh, "erf": math.erf, "erfc": math.erfc, "abs": math.fabs,
    "pow": math.pow, "arctan2": math.atan2,
}  # fmt: skip


def emit(context: Any, builder: Any, program: Program, inputs: Sequence[Any]) -> list[Any]:
    """Add the instructions of a program to a function that numba is compiling; return the values of its results.

    Parameters
    ----------
    context, builder : as numba passes them to the code generator of an intrinsic.
    program : operations to compile.
    inputs : LLVM values of the inputs, numbers of double precision.
    """
    zero, one = ir.Constant(FLOAT, 0.0), ir.Constant(FLOAT, 1.0)

    def call(name: str, *arguments: Any) -> Any:
        kind = signature(types.float64, *[types.float64] * len(arguments))
        return context.get_function(FROM_MATH[name], kind)(builder, arguments)

    def sign(x: Any) -> Any:
        below = builder.select(builder.fcmp_ordered("<", x, zero), ir.Constant(FLOAT, -1.0), zero)
        return builder.select(builder.fcmp_ordered(">", x, zero), one, below)

    def softplus(x: Any) -> Any:
        top = builder.select(builder.fcmp_ordered(">", x, zero), x, zero)
        return builder.fadd(top, call("log1p", call("exp", builder.fneg(call("abs", x)))))

    operations: dict[str, Callable[..., Any]] = {
        "add": builder.fadd,
        "sub": builder.fsub,
        "mul": builder.fmul,
        "div": builder.fdiv,
        "neg": builder.fneg,
        "inv": lambda x: builder.fdiv(one, x),
        "lt": lambda a, b: builder.fcmp_ordered("<", a, b),
        "le": lambda a, b: builder.fcmp_ordered("<=", a, b),
        "eq": lambda a, b: builder.fcmp_ordered("==", a, b),
        "and": builder.and_,
        "or": builder.or_,
        "not": builder.not_,
        "where": builder.select,
        "sign": sign,
        "floor": lambda x: builder.call(builder.module.declare_intrinsic("llvm.floor", [FLOAT]), [x]),
        "expit": lambda x: builder.fdiv(one, builder.fadd(one, call("exp", builder.fneg(x)))),
        "softplus": softplus,
    }
    values: list[Any] = []
    for name, *arguments in program.code:
        if name == "input":
            values.append(inputs[arguments[0]])
        elif name == "constant":
            values.append(ir.Constant(FLOAT, arguments[0]))
        elif name in operations:
            values.append(operations[name](*(values[k] for k in arguments)))
        else:
            values.append(call(name, *(values[k] for k in arguments)))
    return [values[k] for k in program.outputs]


def emit_call(
    context: Any, builder: Any, address: Any, returns: Any, kinds: Sequence[Any], values: Sequence[Any]
) -> Any:
    """Add a call of the kernel at an address, an integer; return its result, and propagate its exceptions.

    Parameters
    ----------
    context, builder : as numba passes them to the code generator of an intrinsic.
    address : LLVM value of the address.
    returns, kinds : numba types of the result and of the arguments for which the kernel was compiled.
    values : LLVM values of the arguments.
    """
    convention = context.call_conv
    function = builder.inttoptr(address, convention.get_function_type(returns, kinds).as_pointer())
    status, result = convention.call_function(builder, function, returns, kinds, values)
    with builder.if_then(status.is_error, likely=False):
        convention.return_status_propagate(builder, status)
    return result
