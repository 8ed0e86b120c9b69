"""`solve_pair`: the overlap of two estimators that share training samples, with its error."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import format_to_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import show_progress
from gamp_attention._tools.roots import follow_flow, refine_until
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.pairs.equations import Estimator, PairEquations
from gamp_attention.results import Columns, Ended, Status, finish
from gamp_attention.theory.equations.channel import Channel, fields_and_terms, teacher_size
from gamp_attention.theory.fixed_points.observables import average_at_points
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import require_rtol
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.sobol import JUMP_RATE, RATE, SobolRule


@dataclass(frozen=True)
class PairSettings:
    """Settings of the solution."""

    first_points: int = 2048  # number of points of each replica of the first averages
    max_points: int = 1 << 18  # largest number of points of a replica: half a minute for two logistic losses
    max_numbers: int = 1 << 26  # largest number of derivatives of the fields in memory, which limits the points as well
    tol: float = 1e-2  # residual at which a solution on given points ends, in units of `rtol`
    max_steps: int = 60  # maximum number of steps of a solution
    n_compared: int = 64  # number of samples for which the labels of both models are compared


PAIR = PairSettings()


@dataclass(frozen=True, eq=False)
class PairResult(Ended):
    """Overlap of two estimators A and B. Errors are half-widths of intervals that hold in at least 95 % of cases.

    Attributes
    ----------
    status, converged, n_iter, residual : as for every solver; the residual is the largest change of an entry of q in a
        step, relative to √(q_A q_B).
    q : (L, r_A, r_B) overlaps Q_Aᵀ Σ_l Q_B/d; S sources instead of L tokens for mixtures.
    q_error : (L, r_A, r_B) their errors, which include the errors of both solutions.
    relative_error : largest error, relative to √(q_A q_B) of the largest entries.
    stability : largest modulus of the eigenvalues of the derivative of the map of q, without the jumps of proximal
        maps. For two identical estimators with all samples in common it is their replicon eigenvalue.
    message : explanation if the status is not CONVERGED.
    state : equations of which q is a solution.
    """

    status: Status
    n_iter: int
    residual: float
    q: np.ndarray
    q_error: np.ndarray
    relative_error: float
    stability: float
    message: str = ""
    state: Any = None

    _columns: ClassVar[Columns] = {
        "q": lambda r: " ".join(map(format_to_error, r.q.ravel().tolist(), r.q_error.ravel().tolist())),
        "stability": lambda r: f"{r.stability:.4g}",
    }

    def average(self, f: Callable[..., Any], n_points: int = 16384, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the average of a function of both estimators over new samples, for d → ∞, and its error.

        Parameters
        ----------
        f : function f(target, u, omega_A, omega_B) of N samples that returns an array (N, ...): targets, which are
            labels (N, P) of A or attention matrices of the teacher (N, L, L); fields of the teacher u (N, L, t); and
            fields of both estimators, (N, L, r_A) and (N, L, r_B).
        n_points : even number of points of each of 8 sets of random points.
        seed : seed of the points.

        Raises
        ------
        TypeError : if `f` is not a function.
        ValueError : if `f` returns an array without the samples in front.
        """
        check.function("f", f)
        equations, x, r = self.state, self.q.ravel(), self.q.shape[1]

        def values(channel: Channel, white: np.ndarray) -> Any:
            target, _, y, omega = channel.sample(white)
            return f(target, y, omega[:, :, :r], omega[:, :, r:])

        shifted = [there.overlaps(x) for there in equations.shifted()]
        shifted.append(equations.overlaps(x + self.q_error.ravel()))
        return average_at_points(equations.model, equations.overlaps(x), shifted, values, n_points, seed)


@guard_call
@show_progress("pair ")
def solve_pair(
    first: StateEvolutionResult, second: StateEvolutionResult, shared: float | None = None, *, rtol: float = 1e-2,
    seed: int = 0, raise_on_failure: bool = False, progress: bool | None = None,
) -> PairResult:  # fmt: skip
    """Solve for the overlap of two estimators whose training samples overlap.

    The teacher, the distribution of the tokens and the labels of both are the same; the student, loss, penalty and α of
    each may differ. Labels may have several entries of which each loss reads a part, such as the number of times that
    a sample occurs in each of two bootstrap samples. Entries that are equal for all samples may differ as well, such as
    the norm in solutions of `solve_with_norm`.

    Parameters
    ----------
    first, second : converged replica-symmetric solutions of state evolution of the estimators A and B.
    shared : number of training samples that both have in common, divided by d, at most the smaller α; α if not given
        and both have the same α.
    rtol : requested error of q, relative to √(q_A q_B). Both solutions need errors that are several times smaller.
    seed : seed of the random points.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.
    progress : as for `solve_state_evolution`.

    Returns
    -------
    PairResult
        The fixed point to which damped steps from independent estimators lead. The status is INACCURATE if `rtol` was
        not reached, and MAX_ITER or NONFINITE if no fixed point was found.

    Raises
    ------
    TypeError : if `first` or `second` is not a StateEvolutionResult of a replica-symmetric solution, or another
        argument has the wrong type.
    ValueError : if `first` or `second` did not converge; `second` has another distribution of tokens or other labels
        than `first`; `shared` is not given for two different α, or is out of its range; or `rtol` is out of its range.
    ConvergenceError : if the result did not converge and `raise_on_failure` is True.

    Examples
    --------
    Logistic regression with two penalties on the same samples, and how often both predict different labels:

    >>> import gamp_attention as ga
    >>> def solve(lam):
    ...     return ga.solve_state_evolution(ga.glm_model(ga.LogisticLoss(), lam=lam), 2.0)
    >>> pair = ga.solve_pair(solve(0.01), solve(1.0))
    >>> mean, error = pair.average(lambda target, u, A, B: A[:, 0, 0] * B[:, 0, 0] < 0)
    >>> f"{pair.status.value}, q = {pair.q.item():.1f}, {mean:.1f}"
    'converged, q = 1.9, 0.2'
    """
    check.flag("raise_on_failure", raise_on_failure)
    rtol = require_rtol(rtol)
    a, b = (_read_estimator(name, result) for name, result in (("first", first), ("second", second)))
    _require_common_law(a.model, b.model)
    alphas = first.state.alpha, second.state.alpha
    if shared is None:
        if alphas[0] != alphas[1]:
            raise check.fail("shared", None, f"a number, because α = {alphas[0]:g} of `first` is not {alphas[1]:g}")
        shared = alphas[0]
    shared = check.real("shared", shared, low=0, high=min(alphas))
    rate = JUMP_RATE if a.model.task.jumps or b.model.task.jumps else RATE
    fields = max(model.n_tokens * model.rank for model in (a.model, b.model))
    max_points = max(min(PAIR.max_points, PAIR.max_numbers // fields**2), PAIR.first_points)
    rule = SobolRule(PAIR.first_points, seed=(check.integer("seed", seed, low=0),), max_work=max_points, rate=rate)
    equations = PairEquations((a, b), shared, rule)
    return finish(refine_until(_solutions(equations, rtol), rtol), raise_on_failure, "solve_pair")


def _solutions(equations: PairEquations, rtol: float) -> Iterator[PairResult]:
    """Yield the solutions on more and more random points, until there are enough for `rtol`, if possible."""
    x = equations.weights(np.zeros(equations.shape), 0)[0]  # without shared samples
    n_iter, rule = 0, equations.rule
    while True:
        root = follow_flow(equations, x, PAIR.tol * rtol, PAIR.max_steps, continued=n_iter > 0)
        n_iter += len(root.path) - 1
        if not root.arrived:
            status, unknown = Status.NONFINITE if root.failure else Status.MAX_ITER, np.full(equations.shape, np.nan)
            words = str(root.failure or f"q still changes by {root.size:.1g}, relatively, in a step")
            yield PairResult(status, n_iter, root.size, unknown, unknown, np.inf, np.nan, words, equations)
            return
        x, unit = root.x, equations.unit
        noise, others = _errors(equations, x)
        relative, needed = float((noise + others).max() / unit), rtol - float(others.max() / unit)
        advice = ": solve `first` and `second` with a smaller rtol" * (needed <= 0)
        missed = Status.INACCURATE, f"the relative error is {relative:.2g}, not rtol = {rtol:g}{advice}"
        status, message = (Status.CONVERGED, "") if relative <= rtol else missed
        yield PairResult(
            status=status, n_iter=n_iter, residual=root.size, q=x.reshape(equations.shape),
            q_error=(noise + others).reshape(equations.shape), relative_error=relative,
            stability=float(np.abs(np.linalg.eigvals(equations.image(x)[1])).max()), message=message, state=equations,
        )  # fmt: skip
        rule = rule.refined_for(float(noise.max() / unit) / needed) if needed > 0 else rule
        if rule is equations.rule or rule.work(1) > rule.max_work * SobolRule.n_replicas:
            return
        equations = replace(equations, rule=rule)


def _errors(equations: PairEquations, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return errors of a solution x: from the random points, and from the errors of both single solutions.

    A change of the map is multiplied by the response (1 − F')⁻¹ of the solution. Changes by the parts of the single
    solutions are added in squares: the sum is four to ten times as large as errors of solutions from other seeds.
    """
    replicas, jacobian = equations.image(x)
    mean, slope = replicas.mean(axis=0), np.eye(len(x)) - jacobian
    changes = [there.step(x, 0)[0] - replicas[0] for there in equations.shifted()]
    noise, others = (np.linalg.solve(slope, part.T).T for part in (replicas - mean, np.array(changes)))
    left = np.abs(np.linalg.solve(slope, mean - x))
    return half_width(noise) + left, np.linalg.norm(others, axis=0)


def _read_estimator(name: str, result: Any) -> Estimator:
    """Return the estimator of a solution of state evolution."""
    if not hasattr(result, "overlaps_error"):
        raise check.fail(name, result, "a StateEvolutionResult", TypeError)
    if not result.converged:
        raise check.fail_words(name, f"status {result.status.value!r}", "a converged solution")
    if result.state is None:
        raise TypeError(f"{name}: needs a replica-symmetric solution, got {type(result).__name__}")
    F, hats = result.state, result.state.images(result.overlaps)[0].hats
    hats = replace(hats, V=hats.response(result.response))
    return Estimator(F.model, F.alpha, result.overlaps, hats, result.overlaps_error, result.relative_error)


def _require_common_law(first: Model, second: Model) -> None:
    """Raise ValueError unless two models have the same distribution of tokens and the same labels or targets."""
    law, other = first.coordinates, second.coordinates
    for name in ("weight", "gamma", "tau", "teacher_mean", "teacher_cov", "spikes", "unseen"):
        if not np.array_equal(getattr(law, name), getattr(other, name)):
            raise check.fail_words("second", "another distribution", f"the same `coordinates.{name}` as `first`")
    parts = first.components, second.components
    if [p[:1] + tuple(p[1]) for p in parts[0]] != [p[:1] + tuple(p[1]) for p in parts[1]]:
        raise check.fail_words("second", "other classes", "the same classes of tokens as `first`")
    for a, b in zip(*parts, strict=True):
        if teacher_size(a.model) == teacher_size(b.model) and first.attention == second.attention:
            white = np.random.default_rng(0).standard_normal((PAIR.n_compared, teacher_size(a.model)))
            both = [fields_and_terms(model, white)[1].params for model in (a.model, b.model)]
            rows, others = (labels[:, np.ptp(labels, axis=0) > 0] for labels in both)
            if np.array_equal(rows, others):
                continue
        raise check.fail_words("second", "other labels", "the same labels or targets of the teacher as `first`")
