"""Values and derivatives of recorded functions, in the tails too."""

import math

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic
from scipy import special

from gamp_attention.extensions.sequence.expressions import Graph, emit, evaluate_rows
from gamp_attention.extensions.sequence.tracing import trace

INF = math.inf
POINTS = np.array([-1e300, -800.0, -40.0, -3.3, 0.0, 1e-300, 0.7, 3.3, 40.0, 800.0, 1e300])
# functions of a number as a user writes them, as formulas of mpmath, and where these are smooth: range, smallest |x|
ALL, POSITIVE, NOT_ZERO = (-INF, INF, 0.0), (1e-320, INF, 0.0), (-INF, INF, 1e-320)
TAILS = (-1e3, 1e3, 0.0)  # mpmath does not compute these functions at 1e300
CASES = {
    "exp": (np.exp, "exp(x)", ALL),
    "expm1": (np.expm1, "exp(x) - 1", ALL),
    "log": (np.log, "log(x)", POSITIVE),
    "log1p": (np.log1p, "log(1 + x)", (-0.5, INF, 0.0)),
    "sqrt": (np.sqrt, "sqrt(x)", POSITIVE),
    "cbrt": (np.cbrt, "sign(x)*fabs(x)**(mpf(1)/3)", NOT_ZERO),
    "sin": (np.sin, "sin(x)", ALL),
    "cos": (np.cos, "cos(x)", ALL),
    "tan": (np.tan, "tan(x)", (-1e10, 1e10, 0.0)),
    "arcsin": (np.arcsin, "asin(x)", (-1, 1, 0.0)),
    "arccos": (np.arccos, "acos(x)", (-1, 1, 0.0)),
    "arctan": (np.arctan, "atan(x)", ALL),
    "sinh": (np.sinh, "sinh(x)", ALL),
    "cosh": (np.cosh, "cosh(x)", ALL),
    "tanh": (np.tanh, "1 - 2/(exp(2*x) + 1)", ALL),
    "arcsinh": (np.arcsinh, "asinh(x)", (-INF, INF, 0.0)),
    "cube": (lambda x: x**3, "x**3", ALL),
    "power -2": (lambda x: x**-2, "x**-2", (-INF, INF, 1e-100)),
    "power 2.5": (lambda x: x**2.5, "x**2.5", POSITIVE),
    "hypot": (lambda x: np.hypot(x, 1.0), "sqrt(x**2 + 1)", ALL),
    "arctan2 of x": (lambda x: np.arctan2(x, 2.0), "atan(x/2)", ALL),
    "arctan2 of 2": (lambda x: np.arctan2(2.0, x), "atan(2/x)", POSITIVE),
    "logaddexp": (lambda x: np.logaddexp(x, 1.0), "log(exp(x) + exp(1))", ALL),
    "logaddexp of 2": (lambda x: np.logaddexp(x, 2.0 * x), "log(exp(x) + exp(2*x))", ALL),
    "logaddexp of -inf": (lambda x: np.logaddexp(-np.inf, np.logaddexp(x, -np.inf)), "x", ALL),
    "logsumexp": (lambda x: special.logsumexp(np.array([x, 1.0, -np.inf])), "log(exp(x) + exp(1))", ALL),
    "softmax": (lambda x: special.softmax(np.array([x, 1.0]))[0], "1/(1 + exp(1 - x))", ALL),
    "erf": (special.erf, "erf(x)", TAILS),
    "erfc": (special.erfc, "erfc(x)", TAILS),
    "ndtr": (special.ndtr, "erfc(-x/sqrt(2))/2", TAILS),
    "log_ndtr": (special.log_ndtr, "log(erfc(-x/sqrt(2))/2)", TAILS),
    "log of ndtr": (lambda x: np.log(special.ndtr(x)), "log(erfc(-x/sqrt(2))/2)", TAILS),
    "log of 1 - ndtr": (lambda x: np.log(1 - special.ndtr(x)), "log(erfc(x/sqrt(2))/2)", TAILS),
    "log of 1 - erf": (lambda x: np.log(1 - special.erf(x)), "log(erfc(x))", TAILS),
    "expit": (special.expit, "1/(1 + exp(-x))", ALL),
    "log_expit": (special.log_expit, "-log(1 + exp(-x))", ALL),
    "logit": (special.logit, "log(x/(1 - x))", (5e-324, 0.9, 0.0)),
    "xlogy": (lambda x: special.xlogy(x, 2.0), "x*log(2)", ALL),
    "xlogy, exchanged": (lambda x: special.xlogy(2.0, x), "2*log(x)", POSITIVE),
    "huber": (lambda x: special.huber(1.0, x), "x**2/2 if fabs(x) <= 1 else fabs(x) - 0.5", ALL),
    "logistic function": (lambda x: 1 / (1 + np.exp(-x)), "1/(1 + exp(-x))", ALL),
    "quotient": (lambda x: np.exp(x) / (1 + np.exp(x)), "1/(1 + exp(-x))", ALL),
    "log of the logistic function": (lambda x: np.log(1 / (1 + np.exp(-x))), "-log(1 + exp(-x))", ALL),
    "log of 1 + exp": (lambda x: np.log(1 + np.exp(x)), "log(1 + exp(x))", ALL),
    "log1p of exp": (lambda x: np.log1p(np.exp(x)), "log(1 + exp(x))", ALL),
    "square of a norm": (lambda x: np.linalg.norm(np.array([x, x])) ** 2, "2*x**2", ALL),
    "square of hypot": (lambda x: np.hypot(x, x) ** 2, "2*x**2", (-1e100, 1e100, 0.0)),
    "log that is not taken": (lambda x: np.where(x > 0, np.log(x), x), "log(x)", POSITIVE),
}  # fmt: skip


def differentiate(function):
    """Return the program of value, slope and second derivative of a function of a number."""
    program = trace(lambda x: function(x[0]), [(1,)])
    graph = Graph(1)
    (value,) = graph.include(program, graph.inputs)
    slope = graph.derivative(value, 0)
    return graph.program([value, slope, graph.derivative(slope, 0)])


def evaluate(program, x):
    with np.errstate(all="ignore"):
        return np.array([np.broadcast_to(result, x.shape) for result in evaluate_rows(program, x[:, None]).T])


def exact_derivatives(formula, x):
    """Return the value, slope and second derivative of a formula, by differences with 60 or more digits."""
    mpmath = pytest.importorskip("mpmath")
    extreme = not 1e-10 < abs(x) < 1e10 and x != 0
    with mpmath.workdps(760 if extreme else 60):
        step = mpmath.mpf(10) ** (-15 if not extreme else -330 if abs(x) < 1 else -30)
        at = [eval(formula, vars(mpmath) | {"x": mpmath.mpf(x) + k * step}) for k in (-1, 0, 1)]
        exact = at[1], (at[2] - at[0]) / (2 * step), (at[2] - 2 * at[1] + at[0]) / step**2
        return np.array([float(number) if abs(number) < 1e308 else INF * mpmath.sign(number) for number in exact])


@pytest.mark.parametrize("name", CASES)
def test_value_and_two_derivatives_are_exact_in_the_tails_and_at_zero(name):
    function, formula, (low, high, gap) = CASES[name]
    computed = evaluate(differentiate(function), POINTS)
    n_checked = 0
    for x, results in zip(POINTS, computed.T, strict=True):
        if low <= x <= high and abs(x) >= gap:
            exact = exact_derivatives(formula, x)
            same = (results == exact) | (np.abs(results - exact) <= 1e-9 * np.abs(exact) + 1e-12)
            assert same.all(), f"at {x}: {results} instead of {exact}"
            n_checked += 1
    assert n_checked > 1


def test_compiled_operations_equal_those_of_numpy():
    graph, indices = Graph(1), []
    for function, _, _ in CASES.values():
        indices += graph.include(differentiate(function), graph.inputs)
    all_cases = graph.program(indices)
    returned = types.UniTuple(types.float64, len(all_cases.outputs))

    def emit_results(typing_context, x):
        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, returned, emit(context, builder, all_cases, arguments))

        return returned(x), generate

    evaluate_all = intrinsic(emit_results)
    compiled = numba.njit(lambda x: evaluate_all(x))
    results = np.array([compiled(x) for x in POINTS]).T
    np.testing.assert_allclose(results, evaluate(all_cases, POINTS), rtol=1e-9, atol=1e-12)
