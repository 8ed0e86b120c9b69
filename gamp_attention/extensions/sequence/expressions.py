"""Straight-line programs: sequences of elementary operations, their derivatives, and their evaluation on arrays.

A `Graph` collects operations on numbers while a function is traced (`gamp_attention.extensions.sequence.tracing`).
Every operation is stored once (common subexpressions are shared), and operations on constants are evaluated at once.
`Graph.derivative` applies the chain rule forwards, so derivatives of any order are exact up to rounding.
`Graph.program` returns the operations that given results need, as a `Program`: plain data that can be compared, stored
and sent to other processes. `Program.evaluate` computes the results for arrays, element by element. Expressions that
overflow or lose digits in their tails, such as log(1 + exp(x)), are replaced by functions that do not. `emit` adds a
program to a kernel that numba is compiling, as LLVM instructions: this takes a small fraction of the time that numba
needs for the same program as Python source.
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
    "sign": np.sign, "floor": np.floor, "not": np.logical_not, "cbrt": np.cbrt, "gammaln": special.gammaln,
}  # fmt: skip


def multiply_limits(a: Any, b: Any) -> Any:
    """Return a b, and 0 if a factor is 0, also if the other factor is infinite or NaN."""
    return np.where((np.asarray(a) == 0) | (np.asarray(b) == 0), 0.0, np.multiply(a, b))


OPERATIONS: dict[str, Callable[..., Any]] = FUNCTIONS | {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "arctan2": np.arctan2,
    "hypot": np.hypot, "logaddexp": np.logaddexp, "product": multiply_limits,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "and": np.logical_and, "or": np.logical_or, "where": np.where,
}  # fmt: skip

# logarithms and quotients that `Graph._rewrite` replaces: an operation and the operation of its last argument
REWRITTEN = frozenset({
    ("log", "exp"), ("log", "expit"), ("log", "add"), ("log", "div"), ("log", "erfc"), ("log", "mul"), ("log1p", "exp"),
    ("inv", "add"), ("div", "add"), ("sub", "expit"), ("sub", "erf"), ("sub", "mul"), ("mul", "sqrt"), ("mul", "hypot"),
})  # fmt: skip
DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k/(2k)


def erfcx(graph: "Graph", x: int) -> int:
    """Return the index of exp(x²) erfc(x), without overflow for large x."""
    half = graph.build(("mul", 0.5, ("inv", ("mul", x, x))))
    series = graph.constant(1.0)
    for n in range(13, 0, -1):
        series = graph.build(("sub", 1.0, ("mul", ("mul", 2.0 * n - 1, half), series)))
    far = ("mul", ("mul", 1 / math.sqrt(math.pi), ("inv", x)), series)
    return graph.build(("where", ("lt", x, 10.0), ("mul", ("exp", ("mul", x, x)), ("erfc", x)), far))


def log_half_erfc(graph: "Graph", x: int) -> int:
    """Return the index of log(erfc(x)/2), without underflow for large x."""
    far = ("sub", ("log", ("mul", 0.5, erfcx(graph, x))), ("mul", x, x))
    return graph.build(("where", ("lt", 0.0, x), far, ("log1p", ("mul", -0.5, ("erfc", ("neg", x))))))


def digamma(graph: "Graph", x: int) -> int:
    """Return the index of the derivative of log |Γ(x)|: an asymptotic series at a number of at least 10."""
    positive = graph.build(("where", ("lt", 0.0, x), x, ("sub", 1.0, x)))
    is_small = graph.build(("lt", positive, 10.0))
    t = graph.build(("where", is_small, ("add", positive, 10.0), positive))
    square = graph.build(("inv", ("mul", t, t)))
    total, series = graph.constant(0.0), graph.constant(0.0)
    for n in range(10):
        total = graph.build(("add", total, ("inv", ("add", positive, float(n)))))
    for coefficient in reversed(DIGAMMA_SERIES):
        series = graph.build(("mul", square, ("add", coefficient, series)))
    near = ("sub", ("sub", ("log", t), ("mul", 0.5, ("inv", t))), series)
    reflected = ("where", ("lt", 0.0, x), 0.0, ("div", -math.pi, ("tan", ("mul", math.pi, x))))
    return graph.build(("add", ("sub", near, ("where", is_small, total, 0.0)), reflected))


# derivatives of elementary functions of x; "k" is the function itself, a tuple an operation and its arguments, and a
# function returns the index of the derivative
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
    "cbrt": ("inv", ("mul", 3.0, ("mul", "k", "k"))),
    "gammaln": digamma,
}


class Program(NamedTuple):
    """Operations on n_inputs numbers."""

    n_inputs: int  # number of inputs
    # operations, each (name, *arguments). Arguments are indices of earlier operations; the argument of "input" is the
    # index of an input, and the argument of "constant" is a number.
    code: tuple[tuple[Any, ...], ...]
    outputs: tuple[int, ...]  # indices of the operations that are the results

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results for arrays (N,); a result that does not depend on the inputs is a number."""
        values: list[Any] = []
        for name, *arguments in self.code:
            if name == "input":
                values.append(inputs[arguments[0]])
            elif name == "constant":
                values.append(arguments[0])
            else:
                values.append(OPERATIONS[name](*(values[k] for k in arguments)))
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
    """Operations on n_inputs numbers, each stored once; an operation is identified by its index in `code`.

    With `limits`, derivatives are limits if one factor of the chain rule is 0 and another is infinite, which is NaN
    otherwise: the product is 0, as for 1/cosh(x) if cosh(x) overflows, or for |z|³ at z = 0. The slope of √x at x = 0
    counts as 0, as the slope of |x| does.
    """

    def __init__(self, n_inputs: int, limits: bool = False) -> None:
        self.n_inputs, self._limits = n_inputs, limits
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
        if name in ("add", "mul", "product", "logaddexp", "and", "or", "eq"):
            arguments = tuple(sorted(arguments))
        return self._store((name, *arguments))

    def build(self, formula: Any) -> int:
        """Return the index of a formula: a number, the index of an operation, or a tuple (operation, *formulas)."""
        if isinstance(formula, tuple):
            return self.apply(formula[0], *map(self.build, formula[1:]))
        return self.constant(formula) if isinstance(formula, float) else formula

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
        if (name, self.code[arguments[-1]][0]) in REWRITTEN:
            rewritten = self._rewrite(name, arguments, values)
            if rewritten is not None:
                return rewritten
        if len(arguments) != 2:
            return None
        (x, y), (a, b) = arguments, values
        if name == "add":
            return y if a == 0 else x if b == 0 else None
        if name == "sub":
            return x if b == 0 else self.apply("neg", y) if a == 0 else None
        if name in ("mul", "product"):
            if a == 0 or b == 0:
                return self.constant(0.0)
            if a == -1 or b == -1:
                return self.apply("neg", y if a == -1 else x)
            return y if a == 1 else x if b == 1 else None
        if name == "logaddexp":
            for value, other in ((a, y), (b, x)):
                if value in (0.0, -math.inf):
                    return other if value else self.apply("softplus", other)
        if name in ("and", "or"):
            absorbing = float(name == "or")  # False and x is False; True or x is True
            if a is not None or b is not None:
                value, other = (a, y) if a is not None else (b, x)
                return self.constant(absorbing) if bool(value) == bool(absorbing) else other
            return None
        if name == "div":
            return self.constant(0.0) if a == 0 else x if b == 1 else self.apply("inv", y) if a == 1 else None
        return None

    def _rewrite(self, name: str, arguments: tuple[int, ...], values: list[float | None]) -> int | None:
        """Return the index of an operation that is equal, but exact in the tails or at zero too, or None."""
        first, x = arguments[0], arguments[-1]
        inner, *parts = self.code[x]
        if name == "mul":
            squares = [("mul", part, part) for part in parts]
            return None if first != x else parts[0] if inner == "sqrt" else self.build(("add", *squares))
        if inner == "add":
            return self._rewrite_sum(name, first, *parts)
        half = self._half_erfc(inner, parts)
        if name == "sub":
            formulas: dict[str, Any] = {"expit": ("expit", ("neg", parts[0])), "erf": ("erfc", parts[0])}
            if values[0] != 1.0 or (inner == "mul" and (half is None or half[0] != 0.5)):
                return None
            return self.build(formulas.get(inner) or ("mul", 0.5, ("erfc", ("neg", half[1]))))  # type: ignore[index]
        if half is not None:
            return self.build(("add", math.log(2 * half[0]), log_half_erfc(self, half[1])))
        if inner == "exp":
            return parts[0] if name == "log" else self.apply("softplus", parts[0])
        if inner == "expit":
            return self.build(("neg", ("softplus", ("neg", parts[0]))))
        if inner == "div" and self.code[parts[0]][0] == "exp":
            return self.build(("sub", self.code[parts[0]][1], ("log", parts[1])))
        return None

    def _rewrite_sum(self, name: str, first: int, *terms: int) -> int | None:
        """Return the index of the logarithm or of a quotient of 1 + exp(x); None for other sums."""
        for one, power in (terms, terms[::-1]):
            if self.value(one) == 1.0 and self.code[power][0] == "exp":
                x = self.code[power][1]
                if name == "log":
                    return self.apply("softplus", x)
                if name == "div" and first == power:
                    return self.apply("expit", x)
                share = self.build(("expit", ("neg", x)))
                return self.apply("mul", first, share) if name == "div" else share
        return None

    def _half_erfc(self, name: str, parts: list[Any]) -> tuple[float, int] | None:
        """Return c > 0 and x of an operation c erfc(x); None for other operations."""
        if name == "erfc":
            return 1.0, parts[0]
        for c, other in (parts, parts[::-1]) if name == "mul" else ():
            factor = self.value(c)
            if factor is not None and factor > 0 and self.code[other][0] == "erfc":
                return factor, self.code[other][1]
        return None

    def _chain_rule(self, k: int, name: str, arguments: list[int], slopes: list[int]) -> int:
        """Return the index of the derivative of operation k, given the derivatives of its arguments."""
        names = "add", "sub", "product" if self._limits else "mul"
        add, sub, mul = (lambda a, b, operation=op: self.apply(operation, a, b) for op in names)
        if name in ("add", "sub"):
            return self.apply(name, *slopes)
        if name == "where":
            return self.apply("where", arguments[0], *slopes)
        if all(self.value(slope) == 0 for slope in slopes):
            return self.constant(0.0)
        if name in ("mul", "product"):
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
            share = self.apply("inv", self.apply("hypot", x, y))
            return mul(sub(mul(mul(x, share), slopes[0]), mul(mul(y, share), slopes[1])), share)
        if name == "logaddexp":
            difference = sub(*arguments)
            shares = self.apply("expit", difference), self.apply("expit", self.apply("neg", difference))
            return add(mul(shares[0], slopes[0]), mul(shares[1], slopes[1]))
        if name == "hypot":
            share = self.apply("inv", k)
            return add(*(mul(mul(a, share), slope) for a, slope in zip(arguments, slopes, strict=True)))
        return mul(self._slope(k, name, arguments[0]), slopes[0])

    def _slope(self, k: int, name: str, x: int) -> int:
        """Return the index of the derivative of an elementary function of x; k is the function itself."""
        if name not in SLOPES:
            raise ValueError(f"name: needs a function of one number with a known derivative, got {name!r}")

        formula = SLOPES[name]
        if callable(formula):
            return int(formula(self, x))
        if name == "sqrt" and self._limits:
            formula = "where", ("eq", "k", 0.0), 0.0, formula
        return self.build(self._bind(formula, {"k": k, "x": x}))

    def _bind(self, formula: Any, names: dict[str, int]) -> Any:
        """Return a formula with indices of operations in place of names; products are limits if derivatives are."""
        if not isinstance(formula, tuple):
            return names.get(formula, formula)
        name = "product" if self._limits and formula[0] == "mul" else formula[0]
        return name, *(self._bind(part, names) for part in formula[1:])


FLOAT = ir.DoubleType()
FROM_MATH = {
    "exp": math.exp, "expm1": math.expm1, "log": math.log, "log1p": math.log1p, "sqrt": math.sqrt, "sin": math.sin,
    "cos": math.cos, "tan": math.tan, "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "arcsinh": math.asinh, "erf": math.erf, "erfc": math.erfc, "abs": math.fabs,
    "pow": math.pow, "arctan2": math.atan2, "hypot": math.hypot, "gammaln": math.lgamma,
    "copysign": math.copysign,
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

    def product(a: Any, b: Any) -> Any:
        is_zero = builder.or_(builder.fcmp_ordered("==", a, zero), builder.fcmp_ordered("==", b, zero))
        return builder.select(is_zero, zero, builder.fmul(a, b))

    def cbrt(x: Any) -> Any:
        return call("copysign", call("pow", call("abs", x), ir.Constant(FLOAT, 1 / 3)), x)

    def softplus(x: Any) -> Any:
        top = builder.select(builder.fcmp_ordered(">", x, zero), x, zero)
        return builder.fadd(top, call("log1p", call("exp", builder.fneg(call("abs", x)))))

    def logaddexp(a: Any, b: Any) -> Any:
        top = builder.select(builder.fcmp_ordered("<", a, b), b, a)
        tail = call("log1p", call("exp", builder.fneg(call("abs", builder.fsub(a, b)))))
        equal = builder.fcmp_ordered("==", a, b)  # both may be infinite
        return builder.fadd(top, builder.select(equal, ir.Constant(FLOAT, math.log(2)), tail))

    operations: dict[str, Callable[..., Any]] = {
        "logaddexp": logaddexp,
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
        "product": product,
        "cbrt": cbrt,
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
