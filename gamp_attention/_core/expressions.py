"""Straight-line programs: sequences of elementary operations, their derivatives, and their evaluation on arrays.

A `Graph` collects operations on numbers while a function is traced (`gamp_attention._core.tracing`). Every operation is
stored once (common subexpressions are shared), and operations on constants are evaluated at once. `Graph.derivative`
applies the chain rule forwards, so derivatives of any order are exact up to rounding. `Graph.program` returns the
operations that given results need, as a `Program`: plain data that can be compared, stored and sent to other processes.
`Program.evaluate` computes the results for arrays of numpy or tensors of torch, element by element. `emit` adds a
program to a kernel that numba is compiling, as LLVM instructions: this takes a small fraction of the time that numba
needs for the same program as Python source. `emit_call` adds a call of a kernel whose address is known only when the
code runs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing import signature
from scipy import special

MAX_POWER = 16  # largest integer exponent that is computed by multiplications
CONDITIONS = frozenset({"lt", "le", "eq", "and", "or", "not"})  # operations whose result is True or False

# elementary functions of one number, as functions of numpy
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "inv": np.reciprocal, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arcsin": np.arcsin, "arccos": np.arccos,
    "arctan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "arcsinh": np.arcsinh, "erf": special.erf,
    "erfc": special.erfc, "expit": special.expit, "softplus": lambda x: np.logaddexp(0.0, x), "abs": np.abs,
    "sign": np.sign, "floor": np.floor, "not": np.logical_not,
}  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = FUNCTIONS | {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "arctan2": np.arctan2,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "and": np.logical_and, "or": np.logical_or, "where": np.where,
}  # fmt: skip

# derivatives of elementary functions of x; "k" is the function itself, a tuple an operation and its arguments
SLOPES: dict[str, Any] = {
    "neg": -1.0,
    "inv": ("neg", ("mul", "k", "k")),
    "exp": "k",
    "expm1": ("exp", "x"),
    "log": ("inv", "x"),
    "log1p": ("inv", ("add", 1.0, "x")),
    "sqrt": ("mul", 0.5, ("inv", "k")),
    "sin": ("cos", "x"),
    "cos": ("neg", ("sin", "x")),
    "tan": ("add", 1.0, ("mul", "k", "k")),
    "arcsin": ("inv", ("sqrt", ("sub", 1.0, ("mul", "x", "x")))),
    "arccos": ("neg", ("inv", ("sqrt", ("sub", 1.0, ("mul", "x", "x"))))),
    "arctan": ("inv", ("add", 1.0, ("mul", "x", "x"))),
    "sinh": ("cosh", "x"),
    "cosh": ("sinh", "x"),
    "tanh": ("sub", 1.0, ("mul", "k", "k")),
    "arcsinh": ("inv", ("sqrt", ("add", 1.0, ("mul", "x", "x")))),
    "erf": ("mul", 2 / math.sqrt(math.pi), ("exp", ("neg", ("mul", "x", "x")))),
    "erfc": ("mul", -2 / math.sqrt(math.pi), ("exp", ("neg", ("mul", "x", "x")))),
    "expit": ("mul", "k", ("expit", ("neg", "x"))),
    "softplus": ("expit", "x"),
    "abs": ("sign", "x"),
    "sign": 0.0,
    "floor": 0.0,
}


class Program(NamedTuple):
    """Operations on n_inputs numbers."""

    n_inputs: int  # number of inputs
    # operations, each (name, *arguments). Arguments are indices of earlier operations; the argument of "input" is the
    # index of an input, and the argument of "constant" is a number.
    code: tuple[tuple[Any, ...], ...]
    outputs: tuple[int, ...]  # indices of the operations that are the results

    def evaluate(self, inputs: Sequence[Any], torch: Any = None) -> list[Any]:
        """Return the results for arrays (N,) of numpy, or for tensors if the module `torch` is given.

        A result that does not depend on the inputs is a number.
        """
        operations = OPERATIONS if torch is None else _torch_operations(torch)
        values: list[Any] = []
        for name, *arguments in self.code:
            if name == "input":
                values.append(inputs[arguments[0]])
            elif name == "constant":
                values.append(arguments[0])
            else:
                values.append(operations[name](*(values[k] for k in arguments)))
        return [values[k] for k in self.outputs]

    def depends_on(self, first: int) -> bool:
        """Return whether the program reads an input of index `first` or above."""
        return any(name == "input" and arguments[0] >= first for name, *arguments in self.code)

    def drop_unused(self) -> "Program":
        """Return the program without operations that its outputs do not need."""
        graph = Graph(self.n_inputs)
        return graph.program(graph.include(self, graph.inputs))

    @property
    def has_choices(self) -> bool:
        """True if a result may have kinks or jumps, because an operation chooses between values."""
        return any(operation[0] in ("abs", "sign", "floor", "where") for operation in self.code)


class Graph:
    """Operations on n_inputs numbers, each stored once; an operation is identified by its index in `code`."""

    def __init__(self, n_inputs: int) -> None:
        self.n_inputs = n_inputs
        self.code: list[tuple[Any, ...]] = []
        self._indices: dict[tuple[Any, ...], int] = {}
        self._derivatives: dict[tuple[int, int], int] = {}
        self.inputs = [self._store(("input", i)) for i in range(n_inputs)]

    def constant(self, value: float) -> int:
        """Return the index of a constant."""
        value = float(value)
        key = "nan" if math.isnan(value) else value.hex()  # 0.0 == -0.0, but they are different constants
        return self._store(("constant", value), ("constant", key))

    def value(self, index: int) -> float | None:
        """Return the value of a constant; None for any other operation."""
        name, *arguments = self.code[index]
        return arguments[0] if name == "constant" else None

    def apply(self, name: str, *arguments: int) -> int:
        """Return the index of an operation on earlier operations, simplified if an argument is a constant."""
        if name not in OPERATIONS:
            raise ValueError(f"name: needs an operation of OPERATIONS, got {name!r}")
        values = [self.value(argument) for argument in arguments]
        if all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.constant(float(OPERATIONS[name](*values)))
        simpler = self._simplify(name, arguments, values)
        if simpler is not None:
            return simpler
        if name in ("add", "mul", "and", "or", "eq"):
            arguments = tuple(sorted(arguments))
        return self._store((name, *arguments))

    def power(self, base: int, exponent: int) -> int:
        """Return the index of a power; small integer exponents become multiplications."""
        n = self.value(exponent)
        if n == 0.5:
            return self.apply("sqrt", base)
        if n is None or n != int(n) or abs(n) > MAX_POWER:
            return self.apply("pow", base, exponent)
        result, square, left = self.constant(1.0), base, int(abs(n))
        while left:
            result = self.apply("mul", result, square) if left & 1 else result
            square, left = self.apply("mul", square, square), left >> 1
        return self.apply("inv", result) if n < 0 else result

    def derivative(self, index: int, variable: int) -> int:
        """Return the index of the derivative of an operation in an input."""
        pending = [index]
        while pending:  # no recursion: programs may be thousands of operations deep
            k = pending[-1]
            name, *arguments = self.code[k]
            if (k, variable) in self._derivatives:
                pending.pop()
                continue
            if name in ("input", "constant") or name in CONDITIONS:
                value = float(name == "input" and arguments[0] == variable)
                self._derivatives[k, variable] = self.constant(value)
                continue
            needed = arguments[1:] if name == "where" else arguments
            missing = [a for a in needed if (a, variable) not in self._derivatives]
            if missing:
                pending.extend(missing)
                continue
            slopes = [self._derivatives[a, variable] for a in needed]
            self._derivatives[k, variable] = self._chain_rule(k, name, arguments, slopes)
        return self._derivatives[index, variable]

    def program(self, outputs: Sequence[int]) -> Program:
        """Return the operations that the results at given indices need."""
        needed, pending = set(), list(outputs)
        while pending:
            k = pending.pop()
            if k not in needed:
                needed.add(k)
                name, *arguments = self.code[k]
                pending.extend(arguments if name not in ("input", "constant") else ())
        order = sorted(needed)
        position = {k: number for number, k in enumerate(order)}
        code = []
        for k in order:
            name, *arguments = self.code[k]
            leaf = name in ("input", "constant")
            code.append((name, *(arguments if leaf else (position[a] for a in arguments))))
        return Program(self.n_inputs, tuple(code), tuple(position[k] for k in outputs))

    def include(self, program: Program, inputs: Sequence[int]) -> list[int]:
        """Add the operations of a program, applied to operations of this graph; return the indices of its results."""
        indices: list[int] = []
        for name, *arguments in program.code:
            if name == "input":
                indices.append(inputs[arguments[0]])
            elif name == "constant":
                indices.append(self.constant(arguments[0]))
            else:
                indices.append(self.apply(name, *(indices[k] for k in arguments)))
        return [indices[k] for k in program.outputs]

    def _store(self, operation: tuple[Any, ...], key: tuple[Any, ...] | None = None) -> int:
        key = operation if key is None else key
        if key not in self._indices:
            self._indices[key] = len(self.code)
            self.code.append(operation)
        return self._indices[key]

    def _simplify(self, name: str, arguments: tuple[int, ...], values: list[float | None]) -> int | None:
        """Return the index of a simpler operation of the same value, or None."""
        if name == "where":
            first, second = arguments[1:]
            if values[0] is not None:
                return first if values[0] else second
            return first if first == second else None
        if name in ("neg", "inv") and self.code[arguments[0]][0] == name:
            return self.code[arguments[0]][1]
        if len(arguments) != 2:
            return None
        (x, y), (a, b) = arguments, values
        if name == "add":
            return y if a == 0 else x if b == 0 else None
        if name == "sub":
            return x if b == 0 else self.apply("neg", y) if a == 0 else None
        if name == "mul":
            if a == 0 or b == 0:
                return self.constant(0.0)
            if a == -1 or b == -1:
                return self.apply("neg", y if a == -1 else x)
            return y if a == 1 else x if b == 1 else None
        if name in ("and", "or"):
            absorbing = float(name == "or")  # False and x is False; True or x is True
            if a is not None or b is not None:
                value, other = (a, y) if a is not None else (b, x)
                return self.constant(absorbing) if bool(value) == bool(absorbing) else other
            return None
        if name == "div":
            return self.constant(0.0) if a == 0 else x if b == 1 else self.apply("inv", y) if a == 1 else None
        return None

    def _chain_rule(self, k: int, name: str, arguments: list[int], slopes: list[int]) -> int:
        """Return the index of the derivative of operation k, given the derivatives of its arguments."""
        add, sub, mul = (lambda a, b, operation=op: self.apply(operation, a, b) for op in ("add", "sub", "mul"))
        if name in ("add", "sub"):
            return self.apply(name, *slopes)
        if name == "where":
            return self.apply("where", arguments[0], *slopes)
        if all(self.value(slope) == 0 for slope in slopes):
            return self.constant(0.0)
        if name == "mul":
            return add(mul(slopes[0], arguments[1]), mul(arguments[0], slopes[1]))
        if name == "div":
            return mul(sub(slopes[0], mul(k, slopes[1])), self.apply("inv", arguments[1]))
        if name == "pow":
            base, exponent = arguments
            lower = self.power(base, sub(exponent, self.constant(1.0)))
            result = mul(mul(exponent, lower), slopes[0])
            if self.value(slopes[1]) != 0:
                result = add(result, mul(mul(k, self.apply("log", base)), slopes[1]))
            return result
        if name == "arctan2":
            y, x = arguments
            size = self.apply("inv", add(mul(x, x), mul(y, y)))
            return mul(sub(mul(x, slopes[0]), mul(y, slopes[1])), size)
        return mul(self._slope(k, name, arguments[0]), slopes[0])

    def _slope(self, k: int, name: str, x: int) -> int:
        """Return the index of the derivative of an elementary function of x; k is the function itself."""
        if name not in SLOPES:
            raise ValueError(f"name: needs a function of one number with a known derivative, got {name!r}")

        def build(formula: Any) -> int:
            if isinstance(formula, float):
                return self.constant(formula)
            if isinstance(formula, str):
                return k if formula == "k" else x
            operation, *arguments = formula
            return self.apply(operation, *map(build, arguments))

        return build(SLOPES[name])


def _torch_operations(torch: Any) -> dict[str, Callable[..., Any]]:
    """Return the operations on tensors; a number among the arguments becomes a tensor."""

    def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*values: Any) -> Any:
            return function(*(v if torch.is_tensor(v) else torch.tensor(v, dtype=torch.float64) for v in values))

        return apply

    names = {name: name for name in OPERATIONS} | {
        "neg": "negative", "inv": "reciprocal", "sub": "subtract", "mul": "multiply", "div": "divide", "and":
        "logical_and", "or": "logical_or", "not": "logical_not",
    }  # fmt: skip
    special_names = {"erf": "erf", "erfc": "erfc", "expit": "expit"}
    operations = {}
    for name, torch_name in names.items():
        if name == "softplus":
            function = lambda x: torch.logaddexp(torch.zeros_like(x), x)  # noqa: E731
        else:
            module = torch.special if name in special_names else torch
            function = getattr(module, special_names.get(name, torch_name))
        operations[name] = on_tensors(function)
    return operations


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
