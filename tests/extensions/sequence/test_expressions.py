"""Values and derivatives of recorded functions, in the tails too."""

import math

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic
from scipy import special

from gamp_attention.extensions.sequence.expressions import Graph, emit
from gamp_attention.extensions.sequence.tracing import trace

INF = math.inf
POINTS = np.array([-1e300, -800.0, -40.0, -3.3, 0.0, 1e-300, 0.7, 3.3, 40.0, 800.0, 1e300])
# functions of a number as a user writes them, as formulas of mpmath, and where these are smooth: range, smallest |x|
ALL, POSITIVE, NOT_ZERO = (-INF, INF, 0.0), (1e-320, INF, 0.0), (-INF, INF, 1e-320)
TAILS = (-1e3, 1e3, 0.0)  # mpmath does not compute these functions at 1e300
CASES = {
    "exp": (np.exp, "exp(x)", ALL),
    "expm1": (np.expm1, "exp(x) - 1", ALL),
    "exp2": (np.exp2, "2**x", ALL),
    "log": (np.log, "log(x)", POSITIVE),
    "log2": (np.log2, "log(x)/log(2)", POSITIVE),
    "log10": (np.log10, "log(x)/log(10)", POSITIVE),
    "log1p": (np.log1p, "log(1 + x)", (-0.5, INF, 0.0)),
    "sqrt": (np.sqrt, "sqrt(x)", POSITIVE),
    "cbrt": (np.cbrt, "sign(x)*fabs(x)**(mpf(1)/3)", NOT_ZERO),
    "inverse": (lambda x: 1 / x, "1/x", NOT_ZERO),
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
    "power of 2": (lambda x: 2.0**x, "2**x", ALL),
    "hypot": (lambda x: np.hypot(x, 1.0), "sqrt(x**2 + 1)", ALL),
    "arctan2 of x": (lambda x: np.arctan2(x, 2.0), "atan(x/2)", ALL),
    "arctan2 of 2": (lambda x: np.arctan2(2.0, x), "atan(2/x)", POSITIVE),
    "logaddexp": (lambda x: np.logaddexp(x, 1.0), "log(exp(x) + exp(1))", ALL),
    "logaddexp, exchanged": (lambda x: np.logaddexp(1.0, x), "log(exp(x) + exp(1))", ALL),
    "logaddexp of 2": (lambda x: np.logaddexp(x, 2.0 * x), "log(exp(x) + exp(2*x))", ALL),
    "logaddexp2": (lambda x: np.logaddexp2(x, 1.0), "log(2**x + 2)/log(2)", ALL),
    "logaddexp of -inf": (lambda x: np.logaddexp(-np.inf, np.logaddexp(x, -np.inf)), "x", ALL),
    "logaddexp of masked numbers": (
        lambda x: np.logaddexp.reduce(np.where(np.array([x < 1e308, x > 1e308]), [x, x], -np.inf)), "x", ALL,
    ),
    "logsumexp": (lambda x: special.logsumexp(np.array([x, 1.0, -np.inf])), "log(exp(x) + exp(1))", ALL),
    "softmax": (lambda x: special.softmax(np.array([x, 1.0]))[0], "1/(1 + exp(1 - x))", ALL),
    "log_softmax": (lambda x: special.log_softmax(np.array([x, 1.0]))[0], "-log(1 + exp(1 - x))", ALL),
    "erf": (special.erf, "erf(x)", TAILS),
    "erfc": (special.erfc, "erfc(x)", TAILS),
    "erfcx": (special.erfcx, "exp(x**2)*erfc(x)", TAILS),
    "ndtr": (special.ndtr, "erfc(-x/sqrt(2))/2", TAILS),
    "log_ndtr": (special.log_ndtr, "log(erfc(-x/sqrt(2))/2)", TAILS),
    "log of ndtr": (lambda x: np.log(special.ndtr(x)), "log(erfc(-x/sqrt(2))/2)", TAILS),
    "log of 1 - ndtr": (lambda x: np.log(1 - special.ndtr(x)), "log(erfc(x/sqrt(2))/2)", TAILS),
    "log of erfc": (lambda x: np.log(special.erfc(x)), "log(erfc(x))", TAILS),
    "log of 1 - erf": (lambda x: np.log(1 - special.erf(x)), "log(erfc(x))", TAILS),
    "expit": (special.expit, "1/(1 + exp(-x))", ALL),
    "log_expit": (special.log_expit, "-log(1 + exp(-x))", ALL),
    "logit": (special.logit, "log(x/(1 - x))", (5e-324, 0.9, 0.0)),
    "xlogy": (lambda x: special.xlogy(x, 2.0), "x*log(2)", ALL),
    "xlogy of 0": (lambda x: special.xlogy(0.0, x), "0", (0, INF, 0.0)),
    "xlogy, exchanged": (lambda x: special.xlogy(2.0, x), "2*log(x)", POSITIVE),
    "xlog1py": (lambda x: special.xlog1py(2.0, x), "2*log(1 + x)", (-0.5, INF, 0.0)),
    "entr": (special.entr, "-x*log(x)", (1e-100, INF, 0.0)),
    "rel_entr": (lambda x: special.rel_entr(x, 2.0), "x*log(x/2)", (1e-100, INF, 0.0)),
    "rel_entr, exchanged": (lambda x: special.rel_entr(2.0, x), "2*log(2/x)", (1e-100, INF, 0.0)),
    "kl_div": (lambda x: special.kl_div(2.0, x), "2*log(2/x) - 2 + x", (1e-100, INF, 0.0)),
    "huber": (lambda x: special.huber(1.0, x), "x**2/2 if fabs(x) <= 1 else fabs(x) - 0.5", ALL),
    "pseudo_huber": (lambda x: special.pseudo_huber(2.0, x), "4*(sqrt(1 + x**2/4) - 1)", ALL),
    "gammaln": (special.gammaln, "loggamma(x)", (1e-9, 1e3, 0.0)),
    "digamma": (special.digamma, "digamma(x)", (-3.5, 1e3, 1e-9)),
    "exp10": (special.exp10, "10**x", ALL),
    "logistic function": (lambda x: 1 / (1 + np.exp(-x)), "1/(1 + exp(-x))", ALL),
    "quotient": (lambda x: np.exp(x) / (1 + np.exp(x)), "1/(1 + exp(-x))", ALL),
    "multiple of the logistic function": (lambda x: 2 / (np.exp(-x) + 1) - 1, "2/(1 + exp(-x)) - 1", ALL),
    "log of the logistic function": (lambda x: np.log(1 / (1 + np.exp(-x))), "-log(1 + exp(-x))", ALL),
    "log of 1 - expit": (lambda x: np.log(1 - special.expit(x)), "-log(1 + exp(x))", ALL),
    "log of 1 + exp": (lambda x: np.log(1 + np.exp(x)), "log(1 + exp(x))", ALL),
    "log1p of exp": (lambda x: np.log1p(np.exp(x)), "log(1 + exp(x))", ALL),
    "square of sech": (lambda x: 1 / np.cosh(x) ** 2, "4/(exp(x) + exp(-x))**2", ALL),
    "tanh of exp": (lambda x: np.tanh(np.exp(x)), "1 - 2/(exp(2*exp(x)) + 1)", (-INF, 5, 0.0)),
    "Gompertz function": (lambda x: np.exp(-np.exp(x)), "exp(-exp(x))", (-INF, 5, 0.0)),
    "square of a norm": (lambda x: np.linalg.norm(np.array([x, x])) ** 2, "2*x**2", ALL),
    "square of hypot": (lambda x: np.hypot(x, x) ** 2, "2*x**2", (-1e100, 1e100, 0.0)),
    "cube of a norm": (lambda x: np.linalg.norm(np.array([x, x])) ** 3, "sqrt(2*x**2)**3", (-1e100, 1e100, 0.0)),
    "essential singularity": (lambda x: np.where(x == 0, 0.0, np.exp(-1 / x**2)), "exp(-1/x**2)", (-INF, INF, 1e-100)),
    "log that is not taken": (lambda x: np.where(x > 0, np.log(x), x), "log(x)", POSITIVE),
    "root that is not taken": (lambda x: np.where(x > 1e-310, np.sqrt(x), 3 * x), "3*x", (-INF, 0, 0.0)),
    "quotient that is not taken": (lambda x: x * np.where(x == 0, 1.0, np.sin(x) / x), "sin(x)", NOT_ZERO),
}  # fmt: skip


def differentiate(function, limits=False):
    """Return the program of value, slope and second derivative of a function of a number."""
    program, _ = trace(lambda x: function(x[0]), [(1,)])
    graph = Graph(1, limits)
    (value,) = graph.include(program, graph.inputs)
    slope = graph.derivative(value, 0)
    return graph.program([value, slope, graph.derivative(slope, 0)])


def evaluate(program, x):
    with np.errstate(all="ignore"):
        return np.array([np.broadcast_to(result, x.shape) for result in program.evaluate([x])])


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
    limits = evaluate(differentiate(function, limits=True), POINTS)
    computed = np.where(np.isnan(computed), limits, computed)
    n_checked = 0
    for x, results in zip(POINTS, computed.T, strict=True):
        if low <= x <= high and abs(x) >= gap:
            exact = exact_derivatives(formula, x)
            same = (results == exact) | (np.abs(results - exact) <= 1e-9 * np.abs(exact) + 1e-12)
            assert same.all(), f"at {x}: {results} instead of {exact}"
            n_checked += 1
    assert n_checked > 1


@pytest.fixture(scope="module", params=[False, True], ids=["derivatives", "limits"])
def all_cases(request):
    """Return the program of all functions of `CASES` with two derivatives."""
    graph, indices = Graph(1), []
    for function, _, _ in CASES.values():
        indices += graph.include(differentiate(function, request.param), graph.inputs)
    return graph.program(indices)


def test_compiled_operations_equal_those_of_numpy(all_cases):
    returned = types.UniTuple(types.float64, len(all_cases.outputs))

    def emit_results(typing_context, x):
        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, returned, emit(context, builder, all_cases, arguments))

        return returned(x), generate

    evaluate_all = intrinsic(emit_results)
    compiled = numba.njit(lambda x: evaluate_all(x))
    results = np.array([compiled(x) for x in POINTS]).T
    np.testing.assert_allclose(results, evaluate(all_cases, POINTS), rtol=1e-9, atol=1e-12)
