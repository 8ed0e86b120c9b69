"""Straight-line programs: sequences of elementary operations, their derivatives, and their evaluation on arrays.

A `Graph` collects operations on numbers while a function is traced (`gamp_attention.extensions.sequence.tracing`).
Every operation is stored once (common subexpressions are shared), operations on constants are evaluated at once, and
`REWRITES` replaces operations by simpler ones, or by functions that neither overflow nor lose digits in their tails.
`Graph.derivative` applies the chain rule forwards, with the partial derivatives `PARTIALS`, so derivatives of any order
are exact up to rounding. `Graph.program` returns the operations that given results need, as a `Program`: plain data
that can be compared, stored and sent to other processes. `evaluate_rows` computes the results for arrays. `emit` adds a
program to a kernel that numba is compiling, as LLVM instructions: this takes a small fraction of the time that numba
needs for the same program as Python source.

A formula is a number, the name of a variable, or a tuple (operation, *formulas).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing import signature
from scipy import special

BLOCK = 8192  # number of rows that are evaluated at a time, so that intermediate results stay in the cache
MAX_POWER = 16  # largest integer exponent that is computed by multiplications
LEAVES = ("input", "constant")  # operations that read no other operations
CONDITIONS = frozenset({"lt", "le", "eq", "and", "or", "not"})  # operations whose result is True or False
COMMUTATIVE = frozenset({"add", "mul", "logaddexp", "and", "or", "eq"})

OPERATIONS: dict[str, Callable[..., Any]] = {  # as functions of numpy
    "neg": np.negative, "inv": np.reciprocal, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arcsin": np.arcsin, "arccos": np.arccos,
    "arctan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "arcsinh": np.arcsinh, "erf": special.erf,
    "erfc": special.erfc, "expit": special.expit, "softplus": lambda x: np.logaddexp(0.0, x), "abs": np.abs,
    "sign": np.sign, "floor": np.floor, "cbrt": np.cbrt, "gammaln": special.gammaln,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "arctan2": np.arctan2,
    "hypot": np.hypot, "logaddexp": np.logaddexp, "lt": np.less, "le": np.less_equal, "eq": np.equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "where": np.where,
}  # fmt: skip

Formula = Any  # a number, the name of a variable, or a tuple (operation, *formulas)


def _build_erfcx() -> Formula:
    """Return a formula of exp(x²) erfc(x), without overflow for large x."""
    half, series = ("mul", 0.5, ("inv", ("mul", "x", "x"))), 1.0  # type: tuple[Any, ...], Any
    for n in range(13, 0, -1):
        series = ("sub", 1.0, ("mul", ("mul", 2.0 * n - 1, half), series))
    far = ("mul", ("mul", 1 / math.sqrt(math.pi), ("inv", "x")), series)
    return "where", ("lt", "x", 10.0), ("mul", ("exp", ("mul", "x", "x")), ("erfc", "x")), far


ERFCX = _build_erfcx()
# log(erfc(x)/2), without underflow for large x
LOG_HALF_ERFC: Formula = (
    "where", ("lt", 0.0, "x"), ("sub", ("log", ("mul", 0.5, ERFCX)), ("mul", "x", "x")),
    ("log1p", ("mul", -0.5, ("erfc", ("neg", "x")))),
)  # fmt: skip

# simpler or more accurate formulas, and the formulas that they replace; equal variables are equal operations
REWRITES: tuple[tuple[Formula, Formula], ...] = (
    (("neg", ("neg", "x")), "x"),
    (("inv", ("inv", "x")), "x"),
    (("add", 0.0, "x"), "x"),
    (("sub", "x", 0.0), "x"),
    (("sub", 0.0, "x"), ("neg", "x")),
    (("mul", 0.0, "x"), 0.0),
    (("mul", 1.0, "x"), "x"),
    (("mul", -1.0, "x"), ("neg", "x")),
    (("div", 0.0, "x"), 0.0),
    (("div", "x", 1.0), "x"),
    (("div", 1.0, "x"), ("inv", "x")),
    (("logaddexp", -math.inf, "x"), "x"),
    (("logaddexp", 0.0, "x"), ("softplus", "x")),
    (("and", 0.0, "x"), 0.0),
    (("and", 1.0, "x"), "x"),
    (("or", 0.0, "x"), "x"),
    (("or", 1.0, "x"), 1.0),
    (("where", 1.0, "x", "y"), "x"),
    (("where", 0.0, "x", "y"), "y"),
    (("where", "c", "x", "x"), "x"),
    (("mul", ("sqrt", "x"), ("sqrt", "x")), "x"),
    (("mul", ("hypot", "x", "y"), ("hypot", "x", "y")), ("add", ("mul", "x", "x"), ("mul", "y", "y"))),
    (("inv", ("add", 1.0, ("exp", "x"))), ("expit", ("neg", "x"))),
    (("div", ("exp", "x"), ("add", 1.0, ("exp", "x"))), ("expit", "x")),
    (("div", "y", ("add", 1.0, ("exp", "x"))), ("mul", "y", ("expit", ("neg", "x")))),
    (("sub", 1.0, ("expit", "x")), ("expit", ("neg", "x"))),
    (("sub", 1.0, ("erf", "x")), ("erfc", "x")),
    (("sub", 1.0, ("mul", 0.5, ("erfc", "x"))), ("mul", 0.5, ("erfc", ("neg", "x")))),
    (("log", ("exp", "x")), "x"),
    (("log", ("add", 1.0, ("exp", "x"))), ("softplus", "x")),
    (("log1p", ("exp", "x")), ("softplus", "x")),
    (("log", ("expit", "x")), ("neg", ("softplus", ("neg", "x")))),
    (("log", ("div", ("exp", "x"), "y")), ("sub", "x", ("log", "y"))),
    (("log", ("erfc", "x")), ("add", math.log(2), LOG_HALF_ERFC)),
    (("log", ("mul", 0.5, ("erfc", "x"))), LOG_HALF_ERFC),
)
RULES = {name: [rule for rule in REWRITES if rule[0][0] == name] for name in OPERATIONS}

_ROOT = ("inv", ("sqrt", ("sub", 1.0, ("mul", "x", "x"))))
_SAFE_INVERSE = ("where", ("eq", "k", 0.0), 0.0, ("inv", "k"))  # slopes of √x and hypot at 0 count as 0, as of |x|
# partial derivatives of each operation k of x, or of x and y
PARTIALS: dict[str, tuple[Formula, ...]] = {
    "neg": (-1.0,),
    "inv": (("neg", ("mul", "k", "k")),),
    "exp": ("k",),
    "expm1": (("exp", "x"),),
    "log": (("inv", "x"),),
    "log1p": (("inv", ("add", 1.0, "x")),),
    "sqrt": (("mul", 0.5, _SAFE_INVERSE),),
    "sin": (("cos", "x"),),
    "cos": (("neg", ("sin", "x")),),
    "tan": (("add", 1.0, ("mul", "k", "k")),),
    "arcsin": (_ROOT,),
    "arccos": (("neg", _ROOT),),
    "arctan": (("inv", ("add", 1.0, ("mul", "x", "x"))),),
    "sinh": (("cosh", "x"),),
    "cosh": (("sinh", "x"),),
    "tanh": (("sub", 1.0, ("mul", "k", "k")),),
    "arcsinh": (("inv", ("sqrt", ("add", 1.0, ("mul", "x", "x")))),),
    "erf": (("mul", 2 / math.sqrt(math.pi), ("exp", ("neg", ("mul", "x", "x")))),),
    "erfc": (("mul", -2 / math.sqrt(math.pi), ("exp", ("neg", ("mul", "x", "x")))),),
    "expit": (("mul", "k", ("expit", ("neg", "x"))),),
    "softplus": (("expit", "x"),),
    "abs": (("sign", "x"),),
    "sign": (0.0,),
    "floor": (0.0,),
    "cbrt": (("inv", ("mul", 3.0, ("mul", "k", "k"))),),
    "add": (1.0, 1.0),
    "sub": (1.0, -1.0),
    "mul": ("y", "x"),
    "div": (("inv", "y"), ("neg", ("mul", "k", ("inv", "y")))),
    "pow": (("mul", "y", ("pow", "x", ("sub", "y", 1.0))), ("mul", "k", ("log", "x"))),
    "hypot": (("mul", "x", _SAFE_INVERSE), ("mul", "y", _SAFE_INVERSE)),
    "arctan2": (
        ("mul", ("mul", "y", ("inv", ("hypot", "x", "y"))), ("inv", ("hypot", "x", "y"))),
        ("neg", ("mul", ("mul", "x", ("inv", ("hypot", "x", "y"))), ("inv", ("hypot", "x", "y")))),
    ),
    "logaddexp": (("expit", ("sub", "x", "y")), ("expit", ("sub", "y", "x"))),
}
UNDIFFERENTIATED = OPERATIONS.keys() - PARTIALS.keys() - CONDITIONS - {"where"}


class UntraceableError(TypeError):
    """Error of a function that uses an operation which cannot be recorded or differentiated."""


class Program(NamedTuple):
    """Operations on n_inputs numbers."""

    n_inputs: int  # number of inputs
    # operations, each (name, *arguments). Arguments are indices of earlier operations; the argument of "input" is the
    # index of an input, and the argument of "constant" is a number.
    code: tuple[tuple[Any, ...], ...]
    outputs: tuple[int, ...]  # indices of the operations that are the results

    def interpret(self, inputs: Sequence[Any], constant: Callable[..., Any], apply: Callable[..., Any]) -> list[Any]:
        """Return the results for given inputs, constants `constant(number)` and operations `apply(name, *values)`."""
        values: list[Any] = []
        for name, *arguments in self.code:
            if name == "input":
                values.append(inputs[arguments[0]])
            elif name == "constant":
                values.append(constant(arguments[0]))
            else:
                values.append(apply(name, *(values[k] for k in arguments)))
        return [values[k] for k in self.outputs]

    def drop_unused(self) -> "Program":
        """Return the program without operations that its outputs do not need."""
        graph = Graph(self.n_inputs)
        return graph.program(graph.include(self, graph.inputs))

    @property
    def names(self) -> frozenset[str]:
        """Names of all operations."""
        return frozenset(operation[0] for operation in self.code)


def evaluate_rows(program: Program, inputs: np.ndarray) -> np.ndarray:
    """Return the results (N, outputs) of a program for rows of inputs (N, n_inputs)."""
    out = np.empty((len(inputs), len(program.outputs)))
    for first in range(0, len(inputs), BLOCK):
        columns = np.ascontiguousarray(inputs[first : first + BLOCK].T)
        with np.errstate(all="ignore"):
            results = program.interpret(list(columns), float, lambda name, *values: OPERATIONS[name](*values))
        for number, values in enumerate(results):
            out[first : first + BLOCK, number] = values
    return out


def _build(formula: Formula, variables: dict[str, Any], constant: Callable[..., Any], apply: Callable[..., Any]) -> Any:
    """Return the value of a formula for constants `constant(number)` and operations `apply(name, *values)`."""
    if isinstance(formula, tuple):
        return apply(formula[0], *(_build(part, variables, constant, apply) for part in formula[1:]))
    return variables[formula] if isinstance(formula, str) else constant(formula)


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
        return self._store(("constant", float(value)), ("constant", repr(float(value))))  # 0.0 == -0.0, and nan != nan

    def value(self, index: int) -> float | None:
        """Return the value of a constant; None for any other operation."""
        name, *arguments = self.code[index]
        return arguments[0] if name == "constant" else None

    def apply(self, name: str, *arguments: int) -> int:
        """Return the index of an operation on earlier operations, evaluated or rewritten if possible."""
        values = [self.value(argument) for argument in arguments]
        if all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.constant(float(OPERATIONS[name](*values)))
        if name == "pow":
            power = self._multiply(*arguments)
            if power is not None:
                return power
        for pattern, formula in RULES[name]:
            variables: dict[str, int] = {}
            if self._match(pattern[1:], name, arguments, variables):
                return int(_build(formula, variables, self.constant, self.apply))
        return self._store((name, *(sorted(arguments) if name in COMMUTATIVE else arguments)))

    def derivative(self, index: int, variable: int) -> int:
        """Return the index of the derivative of an operation in an input."""
        pending = [index]
        while pending:  # no recursion: programs may be thousands of operations deep
            k = pending[-1]
            name, *arguments = self.code[k]
            if (k, variable) in self._derivatives:
                pending.pop()
            elif name in LEAVES or name in CONDITIONS:
                value = float(name == "input" and arguments[0] == variable)
                self._derivatives[k, variable] = self.constant(value)
            elif missing := [a for a in arguments if (a, variable) not in self._derivatives]:
                pending.extend(missing)
            else:
                slopes = [self._derivatives[a, variable] for a in arguments]
                self._derivatives[k, variable] = self._chain_rule(k, name, arguments, slopes)
        return self._derivatives[index, variable]

    def program(self, outputs: Sequence[int]) -> Program:
        """Return the operations that the results at given indices need."""
        needed = set(outputs)
        for k in range(max(outputs, default=-1), -1, -1):  # operations read earlier operations only
            if k in needed and self.code[k][0] not in LEAVES:
                needed.update(self.code[k][1:])
        code, position = list[tuple[Any, ...]](), dict[int, int]()
        for k in sorted(needed):
            name, *arguments = self.code[k]
            position[k] = len(code)
            code.append((name, *(arguments if name in LEAVES else (position[a] for a in arguments))))
        return Program(self.n_inputs, tuple(code), tuple(position[k] for k in outputs))

    def include(self, program: Program, inputs: Sequence[int]) -> list[int]:
        """Add the operations of a program, applied to operations of this graph; return the indices of its results."""
        return program.interpret(inputs, self.constant, self.apply)

    def _store(self, operation: tuple[Any, ...], key: tuple[Any, ...] | None = None) -> int:
        key = operation if key is None else key
        if key not in self._indices:
            self._indices[key] = len(self.code)
            self.code.append(operation)
        return self._indices[key]

    def _multiply(self, base: int, exponent: int) -> int | None:
        """Return the index of a power by multiplications or a square root; None for other exponents."""
        n = self.value(exponent)
        if n == 0.5:
            return self.apply("sqrt", base)
        if n is None or n != int(n) or abs(n) > MAX_POWER:
            return None
        result = self.constant(1.0)
        for digit in f"{abs(int(n)):b}":
            result = self.apply("mul", result, result)
            result = self.apply("mul", result, base) if digit == "1" else result
        return self.apply("inv", result) if n < 0 else result

    def _match(
        self, patterns: Sequence[Formula], name: str, arguments: Sequence[int], variables: dict[str, int]
    ) -> bool:
        """Return whether arguments have the form of patterns, in any order for commutative operations.

        The indices of the variables of the patterns are added to `variables`.
        """
        orders = [arguments, arguments[::-1]] if name in COMMUTATIVE and arguments[0] != arguments[1] else [arguments]
        for order in orders:
            bound = dict(variables)
            if all(self._match_one(pattern, k, bound) for pattern, k in zip(patterns, order, strict=True)):
                variables |= bound
                return True
        return False

    def _match_one(self, pattern: Formula, k: int, variables: dict[str, int]) -> bool:
        if isinstance(pattern, str):
            return variables.setdefault(pattern, k) == k
        name, *arguments = self.code[k]
        if isinstance(pattern, tuple):
            return name == pattern[0] and self._match(pattern[1:], name, arguments, variables)
        return name == "constant" and arguments[0] == pattern

    def _chain_rule(self, k: int, name: str, arguments: list[int], slopes: list[int]) -> int:
        """Return the index of the derivative of operation k, given the derivatives of its arguments."""
        if name == "where":
            return self.apply("where", arguments[0], *slopes[1:])
        total = self.constant(0.0)
        for number, slope in enumerate(slopes):
            if self.value(slope) == 0:
                continue
            if name not in PARTIALS:
                raise UntraceableError(f"cannot differentiate {name}; write it with other functions")
            formula, variables = PARTIALS[name][number], {"k": k, **dict(zip("xy", arguments, strict=False))}
            factor = _build(formula, variables, self.constant, self.apply)
            total = self.apply("add", total, self.apply("mul", factor, slope))
        return total


FLOAT = ir.DoubleType()
FROM_MATH = {
    "exp": math.exp, "expm1": math.expm1, "log": math.log, "log1p": math.log1p, "sqrt": math.sqrt, "sin": math.sin,
    "cos": math.cos, "tan": math.tan, "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "arcsinh": math.asinh, "erf": math.erf, "erfc": math.erfc, "abs": math.fabs,
    "pow": math.pow, "arctan2": math.atan2, "hypot": math.hypot, "gammaln": math.lgamma,
    "copysign": math.copysign,
}  # fmt: skip
# operations that numba does not know, by operations that it knows
COMPOSED: dict[str, Formula] = {
    "inv": ("div", 1.0, "x"),
    "sign": ("where", ("lt", 0.0, "x"), 1.0, ("where", ("lt", "x", 0.0), -1.0, 0.0)),
    "cbrt": ("copysign", ("pow", ("abs", "x"), 1 / 3), "x"),
    "expit": ("div", 1.0, ("add", 1.0, ("exp", ("neg", "x")))),
    "softplus": ("add", ("where", ("lt", 0.0, "x"), "x", 0.0), ("log1p", ("exp", ("neg", ("abs", "x"))))),
    "logaddexp": (
        "add", ("where", ("lt", "x", "y"), "y", "x"),
        ("where", ("eq", "x", "y"), math.log(2), ("log1p", ("exp", ("neg", ("abs", ("sub", "x", "y")))))),
    ),  # x = y may be infinite
}  # fmt: skip


def emit(context: Any, builder: Any, program: Program, inputs: Sequence[Any]) -> list[Any]:
    """Add the instructions of a program to a function that numba is compiling; return the values of its results.

    Parameters
    ----------
    context, builder : as numba passes them to the code generator of an intrinsic.
    program : operations to compile.
    inputs : LLVM values of the inputs, numbers of double precision.
    """
    operations: dict[str, Callable[..., Any]] = {
        "add": builder.fadd,
        "sub": builder.fsub,
        "mul": builder.fmul,
        "div": builder.fdiv,
        "neg": builder.fneg,
        "lt": partial(builder.fcmp_ordered, "<"),
        "le": partial(builder.fcmp_ordered, "<="),
        "eq": partial(builder.fcmp_ordered, "=="),
        "and": builder.and_,
        "or": builder.or_,
        "not": builder.not_,
        "where": builder.select,
        "floor": lambda x: builder.call(builder.module.declare_intrinsic("llvm.floor", [FLOAT]), [x]),
    }

    def apply(name: str, *values: Any) -> Any:
        if name in operations:
            return operations[name](*values)
        if name in COMPOSED:
            return _build(COMPOSED[name], dict(zip("xy", values, strict=False)), constant, apply)
        kind = signature(types.float64, *[types.float64] * len(values))
        return context.get_function(FROM_MATH[name], kind)(builder, values)

    constant = partial(ir.Constant, FLOAT)
    return program.interpret(inputs, constant, apply)
