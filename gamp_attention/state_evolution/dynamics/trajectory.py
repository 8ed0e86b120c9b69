"""State evolution at all times: overlaps and losses of every iterate of message passing or of gradient descent.

Survey propagation is message passing with other denoisers; its equations are in `survey_paths`.

For gradient descent the equations hold without assumptions on the landscape, because no proximal map jumps (Celentano,
Cheng and Montanari, 2021). The fields depend on the forces of earlier steps, and the weights on the weights of earlier
steps, through responses: averages of derivatives along the sampled paths (`descent_paths`, `field_paths`,
`weight_paths`). In message passing the Onsager terms cancel these memory terms, so its paths need no derivatives, and
its loop (`message_paths`) is T times cheaper. Gradient descent on new samples at every step has no memory at all
(`online_paths`). Descents that are too long for the memory store their histories at a few of the times
(`compressed_descent`). So does message passing in which samples keep their current minima, which has a memory
(`current_minima`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.choices import DESCENTS, ONLINE
from gamp_attention._core.display import Rows
from gamp_attention._core.numerics import generator, guard_call
from gamp_attention._core.progress import Progress
from gamp_attention.damping import Damping, Steps
from gamp_attention.models.model import Model, require_model
from gamp_attention.penalties.columns import refuse_spheres
from gamp_attention.results import Overlaps, stack_overlaps
from gamp_attention.state_evolution.dynamics.compressed_descent import (
    N_COMPARED,
    TOLERANCE,
    CompressedDescent,
    compression_errors,
    follow_compressed,
)
from gamp_attention.state_evolution.dynamics.current_minima import (
    CURRENT_TOLERANCE,
    N_PATHS,
    NEVER,
    CurrentMinima,
    follow_current_minima,
    require_current_minima,
)
from gamp_attention.state_evolution.dynamics.descent_paths import (
    COMPRESSED,
    DescentMethod,
    DescentPaths,
    descent_method,
    require_unused,
    sum_forces,
)
from gamp_attention.state_evolution.dynamics.field_paths import bytes_per_path, component_paths, min_paths
from gamp_attention.state_evolution.dynamics.jump_statements import (
    average_jumps,
    has_jumps,
    state_mass,
    state_validity,
)
from gamp_attention.state_evolution.dynamics.message_paths import MeanLosses, follow
from gamp_attention.state_evolution.dynamics.online_paths import follow_online, require_norms, require_ridge
from gamp_attention.state_evolution.dynamics.sample_starts import require_spectral, spectral_start
from gamp_attention.state_evolution.dynamics.start_law import SPECTRAL, StartLaw, is_unknown, start_law
from gamp_attention.state_evolution.dynamics.survey_paths import SurveyRun, follow_survey
from gamp_attention.state_evolution.dynamics.weight_paths import build_weights
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.equations.weights import jump_shift


def follow_descent(
    model: Model, alpha: float, start: StartLaw, method: DescentMethod, n_iter: int, n_paths: int,
    rng: np.random.Generator,
) -> tuple[list[Overlaps], list[MeanLosses]]:  # fmt: skip
    """Return overlaps and losses at every step, from one set of sampled paths. Eq. :eq:`descent-fields`."""
    weights = build_weights(model, start, n_iter, n_paths, rng)
    even = Symmetry.of(model, start.overlaps(model)).m_zero
    paths = [DescentPaths(component, n_paths, n_iter, method.batch, rng, even) for component in model.components]
    states, losses = [], []
    for t in range(n_iter + 1):
        now, q, memory = weights.overlaps(), weights.covariances(), weights.memory()
        forces = sum_forces(model, paths, [path.advance(alpha, now, q, memory) for path in paths])
        states.append(now)
        losses.append(MeanLosses(forces.loss + weights.penalty(), forces.test_error))
        if t < n_iter:
            weights.descend(forces, method)
    return states, losses


N_SPECTRAL_PATHS = 8192  # default number of paths of message passing from spectral starts with global minima
FEWER = 4  # ratio of numbers of paths whose results give the bias of GAMP
STEP = 0.4  # default step β of survey propagation, as in `run_gamp(survey=True)`


@dataclass(frozen=True, eq=False)
class Trajectory(Overlaps):
    """Overlaps and losses predicted at every iteration, entry 0 being the start: means over independent replicas.

    The attributes from `V_hat` to `U_error` are empty (no times) for gradient descent, which takes no proximal steps.
    With `hold_after`, `V_hat` is the average of derivatives of samples, and the jump masses are empty. For survey
    propagation, `V_hat` and the jump mass belong to ḡ, the average of g over the inner field. With
    `init="spectral"`, `V_hat` is the average of derivatives, and the jump masses are empty.

    Attributes
    ----------
    q, m, theta, V : overlaps with an additional first axis of time (T + 1); V is NaN for descents.
    error : standard errors of the overlaps, from the spread over replicas; if histories are compressed, combined with
        the error of the compression, and for "gamp" with the bias by the finite number of paths.
    train_loss, test_error : (T + 1,) training loss ε_t and test error ε_g.
    train_loss_error, test_error_error : (T + 1,) standard errors of both, combined in the same way.
    V_hat : (T, L, r, r) responses V̂_t for `IterationOptions(V_hat=...)`; without `hold_after` in Stein's form.
    jump_mass : (T, L, r, r) contribution of jumps V̂_Stein − V̂_derivative, never positive except for numerical errors.
    jump_mass_error : (T, L, r, r) standard error of `jump_mass`.
    jump_share, jump_share_error : (T,) trace of the jump mass, relative to the trace of V̂ in the larger of its two
        forms, both summed over tokens; and the standard error of this ratio.
    jump_shift : (T,) relative change of the new V if the jumps are left out of V̂, as in message passing on data; empty
        for survey propagation.
    U, U_error : (T + 1, L, r, r) covariances U of the inner fields of survey propagation, and their standard errors;
        empty (no times) for other methods.
    method : "gamp", "survey", or the name of a descent.
    validity : statement whether runs at finite d follow the prediction.
    compression : tolerance of the compressed histories; None if nothing is compressed.
    stored : times at which the first replica stored its histories; empty if nothing is compressed.
    """

    error: Overlaps
    train_loss: np.ndarray
    train_loss_error: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    V_hat: np.ndarray
    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    jump_share: np.ndarray
    jump_share_error: np.ndarray
    jump_shift: np.ndarray
    U: np.ndarray
    U_error: np.ndarray
    method: str = "gamp"
    validity: str = ""
    compression: float | None = None
    stored: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    def _rows(self) -> Rows:
        rows = [*super()._rows(), f"  validity: {self.validity}"]
        if self.compression is not None:
            stored, times = len(self.stored), len(self.q)
            rows.append(f"  histories: stored at {stored} of {times} times, tolerance {self.compression:g}")
        return rows


@guard_call
def trajectory(
    model: Model,
    alpha: float,
    init: str | Overlaps = "semantic",
    *,
    method: str = "gamp",
    damping: Steps | None = None,
    hold_after: int | None = None,
    parisi: float | None = None,
    jumps: bool | None = None,
    lr: float | Sequence[float] | None = None,
    momentum: float | None = None,
    batch: float | None = None,
    one_sample: bool | None = None,
    spherical: bool | None = None,
    n_iter: int = 20,
    n_paths: int | None = None,
    n_replicas: int = 8,
    max_memory: float = 4e9,
    compression: float | None = None,
    seed: int | np.random.Generator = 0,
    progress: bool | None = None,
) -> Trajectory:
    """Predict overlaps and losses of message passing or of gradient descent at every iteration, in the limit d → ∞.

    Message passing, damped GAMP or survey propagation, follows the state evolution of Bayati and Montanari (2011) and
    Javanmard and Montanari (2013), eq. :eq:`iterates`; jumps in survey propagation have a memory, see `follow_survey`.
    Gradient descent follows dynamical mean-field theory (Celentano, Cheng and Montanari, 2021),
    eq. :eq:`descent-fields`, which assumes nothing about the landscape. Its steps are the steps of `minimize_risk` on
    the asymptotic risk. Gradient descent on new samples follows eq. :eq:`online`, at a cost that is linear in the
    number of iterations.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity n/d, positive.
    init : "semantic", "positional", "random", or the Overlaps of the start, for weights that do not depend on the
        samples; or "spectral", the first spectral start of `run_gamp`, which is computed from the same samples,
        eq. :eq:`spectral-memory`, see `sample_starts`. It needs the ridge, no intercept, no token classes, a student
        whose columns no rotation mixes, and an eigenvalue outside the bulk (`spectral_overlap`); its overlap with the
        teacher or the positions is positive. Descents do not use V of the overlaps. If V is NaN, as in results of
        descents, message passing starts from the same V as `run_gamp`, and survey propagation from the V of
        `initial_survey`. It always starts from the U of `initial_survey`.
    method : "gamp"; "survey", the iteration of `survey_step` with a fixed Parisi parameter; "gd", "momentum" (heavy
        ball), "nesterov"; "sgd", with random minibatches of the data at every step; or "online", in which every
        iteration draws batch·alpha·d samples that were never seen before (needs the ridge).
    damping : for "gamp" and "survey" only: the step β in (0, 1], or a sequence with a step for each iteration, whose
        last entry is repeated; "adaptive" stands for the first step of adaptive damping, 0.3. By default 0.5, for
        "survey" 0.4.
    hold_after : for "gamp" only: number of iterations with global proximal minima, at least 0. If given, the prediction
        is for GAMP as it runs on data: later, each sample keeps the minimum that continues its last minimum
        (`IterationOptions.hold_after`, 20 by default in runs), and V̂ is the average of the derivatives of samples,
        eq. :eq:`current-minima`. The prediction then holds also if the proximal map jumps, up to the minimum in which a
        run ends. Needs the ridge and no intercept. By default all minima are global; from spectral starts the equations
        are then the same, with global minima.
    parisi : for "survey" only, and required there: Parisi parameter y > 0, which multiplies losses of single samples.
    jumps : for "survey" only: whether the iteration is the one of `survey_step(jumps=True)`, with global minima and the
        response of jumps. By default False.
    lr : for descents only: the step size in Q ← Q − lr ∇R(Q), or a sequence of step sizes. For penalties other than the
        ridge the steps are proximal, Q ← prox(Q − lr ∇f(Q)), without momentum. By default 0.15.
    momentum : for "momentum" and "nesterov" only: μ in [0, 1). By default 0.9.
    batch : for "sgd": fraction of the data in (0, 1] that is drawn at every step. For "online": number of new samples
        in each iteration, in units of alpha·d; positive, may exceed 1. By default 0.1.
    one_sample : for "online" only: whether the samples of an iteration are used one after the other, each in a step of
        size lr/(batch·alpha·d). For d → ∞ this is a system of ordinary differential equations; `lr` remains the
        training time of an iteration. By default False.
    spherical : for "online" only: whether the columns of Q are rescaled to ‖Q_a‖² = d at the start and after every
        step. By default False.
    n_iter : number of iterations T.
    n_paths : number of sampled paths of each replica, even; for "online" number of points of the fields, best a power
        of two. By default 4096, 32768 with `hold_after`, and 8192 for "gamp" from spectral starts. In mixtures each
        component has its fraction of them, or a minimum number if that is larger.
    n_replicas : number of independent replicas, at least 2; their spread gives the standard errors.
    max_memory : maximum memory of the paths of descents, in bytes. Without compression a path needs
        (T + 1)(T + 2)(L r)².
    compression : for "gd", "momentum" and "nesterov" with the ridge, and for "gamp" with `hold_after`: relative
        standard deviation in [1e-6, 0.1]. If given, histories are stored only at times at which the fields are not
        determined by the stored times up to this deviation. Memory then hardly grows with the number of iterations, and
        time is linear in it. By default histories of descents are compressed, with 0.001, if they would need more than
        `max_memory` or more paths, or begin at a spectral start, and histories with `hold_after` always, with 0.01.
        Errors contain the error of the compression: some replicas are repeated with a 3.2 times larger tolerance.
    seed : an integer or a numpy Generator.
    progress : whether a bar shows the progress of descents, except for "online"; by default on a terminal.

    Returns
    -------
    Trajectory
        Its `validity` states whether the proximal map jumps during the iterations. If it does, GAMP on data uses
        another response than the prediction.

    Raises
    ------
    TypeError : if an argument has a wrong type.
    ValueError : if an argument is out of its range, a setting is given that the method does not use, the paths need
        more than `max_memory`, the number of paths is too small for the number of iterations (with compression, of
        stored times), or fields overflow. Also if no weights have the overlaps of `init`: if θ or m exceed their
        bounds given q, or m cannot be the overlaps with these positions. Overlaps of weights at finite d that exceed
        the bounds by up to 20 % are reduced to the bound. Also if `init` is "spectral" and the model, the method or α
        does not fit.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.trajectory(ga.paper_model(), alpha=1.5, init="semantic", damping=0.5, n_iter=5, n_paths=512)
    >>> path.q.shape, path.V_hat.shape
    ((6, 2, 1, 1), (5, 2, 1, 1))
    >>> run = ga.trajectory(ga.paper_model(), 1.5, "positional", damping=0.3, hold_after=20, n_iter=25, n_paths=1024)
    >>> run.validity.split(":")[0]
    'consistent'
    >>> descent = ga.trajectory(ga.paper_model(), 1.5, method="gd", lr=1.0, n_iter=5, n_paths=512)
    >>> bool((np.diff(descent.train_loss) < 0).all())
    True
    >>> options = {"method": "gd", "compression": 0.01, "n_iter": 300, "n_paths": 512, "n_replicas": 2}
    >>> long = ga.trajectory(ga.paper_model(), 1.5, **options)
    >>> len(long.q), len(long.stored) < 20
    (301, True)
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    check.choice("method", method, ("gamp", "survey", *DESCENTS, ONLINE))
    require_unused(
        method, lr=lr, momentum=momentum, batch=batch, damping=damping, parisi=parisi, jumps=jumps,
        one_sample=one_sample, spherical=spherical, hold_after=hold_after,
        compression=None if hold_after is not None else compression,
    )  # fmt: skip
    if isinstance(init, str) and init == SPECTRAL:
        require_spectral(model)
        if method not in ("gamp", "survey", *COMPRESSED):
            needs = f"another start for method {method!r}, as predictions from {init!r} are for runs on all of the data"
            raise check.fail("init", init, needs)
        if method == "gamp" and hold_after is None:
            hold_after, n_paths = NEVER, N_SPECTRAL_PATHS if n_paths is None else n_paths
        compression = TOLERANCE if method in COMPRESSED and compression is None else compression
    if hold_after is not None:
        hold_after = require_current_minima(model, hold_after)
        n_paths = N_PATHS if n_paths is None else n_paths
        compression = CURRENT_TOLERANCE if compression is None else compression
    n_paths = 4096 if n_paths is None else n_paths
    if progress is not None:
        check.flag("progress", progress)
    sizes, compression = _require_sizes(model, method, n_iter, n_paths, n_replicas, max_memory, compression)
    rng = generator(seed)
    if method in ("gamp", "survey"):
        damping = (0.5 if method == "gamp" else STEP) if damping is None else damping
        Damping(damping)  # raises an error if a step is out of its range
    if method not in ("gamp", "survey"):
        refuse_spheres(model.penalty, f"a number for each column, as method='{method}' has no spherical columns")
    if method == "survey":
        y = check.real("parisi", parisi, low=0, strict=True)
        jumps = check.flag("jumps", False if jumps is None else jumps)
        starts = _survey_starts(model, alpha, init, n_replicas, rng)
        with _finite(model, "damping"):
            surveys = [
                follow_survey(model, alpha, start, damping, y, sizes.n_iter, sizes.n_paths, rng, jumps=jumps)
                for start in starts
            ]
        return _trajectory_of_surveys(surveys, starts[0].forces is not None)
    if hold_after is not None:
        assert compression is not None
        assert damping is not None
        starts, counts = _starts(model, alpha, init, n_replicas, rng), (hold_after, *sizes[:2])
        n_steps = 2 * sizes.n_replicas * (sizes.n_iter + 1)
        with Progress("iteration ", n_steps, progress) as bar, _finite(model, "damping"):
            run = follow_current_minima(model, alpha, starts, damping, *counts, rng, compression, max_memory, bar)
        memory = "kept minima" if starts[0].forces is None else "the memory of the start"
        return _trajectory_of_current_minima(run, compression, memory)
    if method == "gamp":
        with _finite(model, "damping"):
            return _trajectory_of_messages(model, alpha, start_law(model, init), damping, *sizes[:3], rng)
    descent = descent_method(method, 0.15 if lr is None else lr, momentum, batch, one_sample, spherical)
    if descent.momentum and not model.penalty.quadratic:
        needs = f"'gd' or 'sgd' for {type(model.penalty).__name__}, as proximal steps have no momentum"
        raise check.fail("method", method, needs)
    return _follow_descents(model, alpha, init, method, descent, sizes, compression, rng, progress)


class Sizes(NamedTuple):
    """Sizes of the computation of a trajectory, as in `trajectory`."""

    n_iter: int
    n_paths: int
    n_replicas: int
    max_memory: float


def _require_sizes(
    model: Model, method: str, n_iter: int, n_paths: int, n_replicas: int, max_memory: float, compression: float | None
) -> tuple[Sizes, float | None]:
    """Return checked sizes and the compression, which is chosen if it is not given and histories are long."""
    n_iter = check.integer("n_iter", n_iter, low=1)
    n_paths = check.integer("n_paths", n_paths, low=64)
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    max_memory = check.real("max_memory", max_memory, low=0, strict=True)
    if compression is not None:
        compression = check.real("compression", compression, low=1e-6, high=0.1)
        if not model.penalty.quadratic:
            needs = f"None for {type(model.penalty).__name__}, as only histories with the ridge can be compressed"
            raise check.fail("compression", compression, needs)
    elif method in COMPRESSED and model.penalty.quadratic and _is_too_long(model, n_iter, n_paths, max_memory):
        compression = TOLERANCE
    enough = min_paths(model, 0 if method == ONLINE or compression is not None else n_iter)
    if n_paths % 2 or n_paths < enough:
        raise check.fail("n_paths", n_paths, f"an even number of at least {enough} for {n_iter} iterations")
    check.require_memory("n_paths, n_iter", n_paths, enough // 4)
    check.require_memory("n_replicas, n_iter", n_replicas, n_iter + 1, 4 * model.n_sources * model.rank)
    return Sizes(n_iter, n_paths, n_replicas, max_memory), compression


def _follow_descents(
    model: Model, alpha: float, init: str | Overlaps, method: str, descent: DescentMethod, sizes: Sizes,
    compression: float | None, rng: np.random.Generator, progress: bool | None,
) -> Trajectory:  # fmt: skip
    """Return the trajectory of gradient descent, on given or on new samples."""
    n_iter, n_paths, n_replicas, max_memory = sizes
    starts = _starts(model, alpha, init, n_replicas, rng, needs_V=False)
    start = starts[0]
    if method == ONLINE:
        require_ridge(model)
        require_norms(model, start, descent)
        with _finite(model, "lr"):
            runs = [follow_online(model, alpha, start, descent, n_iter, n_paths, rng) for _ in range(n_replicas)]
        return _trajectory_of_descents(method, runs, start.V.shape)
    if compression is not None:
        settings = descent, n_iter, n_paths, rng, compression, max_memory
        with Progress("descent ", total=n_replicas * (n_iter + 1), shown=progress) as bar, _finite(model, "lr"):
            pairs = [
                follow_compressed(model, alpha, start, *settings, i < N_COMPARED, bar) for i, start in enumerate(starts)
            ]
        return _trajectory_of_compressed(method, pairs, start.V.shape, compression)
    _require_memory(model, n_iter, n_paths, max_memory)
    runs = []
    with Progress("descent ", total=n_replicas, shown=progress) as bar, _finite(model, "lr"):
        for _ in range(n_replicas):
            runs.append(follow_descent(model, alpha, start, descent, n_iter, n_paths, rng))
            bar.update()
    return _trajectory_of_descents(method, runs, start.V.shape)


@contextmanager
def _finite(model: Model, steps: str) -> Iterator[None]:
    """Raise ValueError if fields overflow; `steps` is the name of the argument with the step sizes."""
    try:
        yield
    except (FloatingPointError, np.linalg.LinAlgError):
        needs = f"numbers for which all fields stay finite, such as a smaller {steps}, alpha or penalty"
        raise check.fail(f"model, alpha, {steps}", model, needs) from None


def _trajectory_of_descents(
    method: str, runs: list[tuple[list[Overlaps], list[MeanLosses]]], shape: tuple[int, ...]
) -> Trajectory:
    """Return the means over replicas; V of the given shape is unknown, and there are no responses."""
    means = _means(_stack([states for states, _ in runs], [losses for _, losses in runs]))
    unknown = np.full((len(runs[0][0]), *shape), np.nan)
    means["V"], means["error"] = unknown, Overlaps(**means["error"].arrays() | {"V": unknown})
    none: dict[str, Any] = dict.fromkeys(("V_hat", "jump_mass", "jump_mass_error"), np.zeros((0, *shape)))
    none |= dict.fromkeys(("jump_share", "jump_share_error", "jump_shift"), np.zeros(0))
    none |= dict.fromkeys(("U", "U_error"), np.zeros((0, *shape)))
    validity = "consistent: descent takes no proximal steps, which could jump, and its equations hold on every branch"
    return Trajectory(**means, **none, method=method, validity=validity)


def _trajectory_of_compressed(
    method: str, pairs: list[tuple[CompressedDescent, CompressedDescent | None]], shape: tuple[int, ...],
    compression: float,
) -> Trajectory:  # fmt: skip
    """Return the means over replicas, and errors that contain the error of the compression."""
    result = _trajectory_of_descents(method, [(fine.states, fine.losses) for fine, _ in pairs], shape)
    overlaps, losses = compression_errors([(fine, coarse) for fine, coarse in pairs if coarse is not None])
    errors = {name: np.hypot(values, overlaps[name]) for name, values in result.error.arrays().items()}
    return replace(
        result,
        error=Overlaps(**errors),
        train_loss_error=np.hypot(result.train_loss_error, losses["train"]),
        test_error_error=np.hypot(result.test_error_error, losses["test"]),
        compression=compression,
        stored=np.array(pairs[0][0].stored),
    )


def _trajectory_of_messages(
    model: Model, alpha: float, start: StartLaw, damping: Any, n_iter: int, n_paths: int, n_replicas: int,
    rng: np.random.Generator,
) -> Trajectory:  # fmt: skip
    """Return the trajectory of damped GAMP.

    Noise of V̂ enters later overlaps and losses at second order. They therefore have a bias that is inversely
    proportional to the number of paths, and that replicas do not show. The bias is estimated from replicas with
    `FEWER` times fewer paths, and is part of the errors. (Values that are extrapolated to infinitely many paths have
    larger errors, because the bias of few paths grows faster: with 64 paths, losses of three columns became negative.)
    """

    def replicas(n_sampled: int) -> tuple[list[tuple[list[Overlaps], list[Hats]]], dict[str, np.ndarray]]:
        losses: list[list[MeanLosses]] = [[] for _ in range(n_replicas)]
        runs = [follow(model, alpha, start, damping, n_iter, n_sampled, rng, of_replica) for of_replica in losses]
        return runs, _stack([states for states, _ in runs], losses)

    fewer = max(n_paths // FEWER, 3 * min_paths(model, n_iter) // 4) // 2 * 2
    (runs, many), (_, few) = replicas(n_paths), replicas(fewer)
    bias = {name: (few[name].mean(axis=0) - many[name].mean(axis=0)) / (n_paths / fewer - 1) for name in many}
    shift = np.array([[jump_shift(model, hats) for hats in all_hats] for _, all_hats in runs]).mean(axis=0)
    jumps, share, unsure = average_jumps([all_hats for _, all_hats in runs])
    return Trajectory(
        **_means(many, bias),
        **jumps,
        jump_shift=shift,
        U=np.zeros((0, *start.V.shape)),
        U_error=np.zeros((0, *start.V.shape)),
        validity=state_validity(share, jumps["jump_share_error"], unsure, shift),
    )


def _trajectory_of_current_minima(run: CurrentMinima, compression: float, memory: str) -> Trajectory:
    """Return the trajectory of GAMP with current minima, which has no separate jump mass; `memory` is in `validity`."""
    none: dict[str, Any] = dict.fromkeys(("jump_mass", "jump_mass_error", "U", "U_error"), run.V_hat[:0])
    none |= dict.fromkeys(("jump_share", "jump_share_error", "jump_shift"), np.zeros(0))
    numbers: dict[str, Any] = run.overlaps | {"error": Overlaps(**run.overlap_errors)}
    for kind, name in (("train", "train_loss"), ("test", "test_error")):
        numbers |= {name: run.losses[kind], f"{name}_error": run.loss_errors[kind]}
    return Trajectory(
        **numbers,
        **none,
        V_hat=run.V_hat,
        validity=f"consistent: the equations contain {memory} and jumps, and hold on every branch",
        compression=compression,
        stored=run.stored,
    )


def _starts(
    model: Model, alpha: float, init: Any, n_replicas: int, rng: np.random.Generator, needs_V: bool = True
) -> list[StartLaw]:
    """Return the distribution of the initial weights for each replica; spectral starts have separate points."""
    if isinstance(init, str) and init == SPECTRAL:
        return [spectral_start(model, alpha, rng) for _ in range(n_replicas)]
    return [start_law(model, init, needs_V)] * n_replicas


def _survey_starts(model: Model, alpha: float, init: Any, n_replicas: int, rng: np.random.Generator) -> list[StartLaw]:
    """Return the initial weights for each replica, with V = NaN unless overlaps determine it."""
    known = isinstance(init, Overlaps) and not is_unknown(init.V)
    starts = _starts(model, alpha, init, n_replicas, rng, known)
    return starts if known else [replace(start, V=np.full_like(start.V, np.nan)) for start in starts]


def _trajectory_of_surveys(runs: list[SurveyRun], memory: bool) -> Trajectory:
    """Return the means over replicas of survey propagation; with a `memory` of the start, no separate jump mass."""
    states, all_U, all_hats, losses = map(list, zip(*runs, strict=True))
    U = np.array(all_U)
    words = "consistent: the response of jumps is part of the equations"
    if memory:
        jumps: dict[str, Any] = dict.fromkeys(("jump_mass", "jump_mass_error"), U[0, :0])
        jumps |= dict.fromkeys(("jump_share", "jump_share_error"), np.zeros(0))
        jumps["V_hat"] = np.mean([[hats.V_derivative for hats in run] for run in all_hats], axis=0)
        words = "consistent: the memory of the start and the response of jumps are part of the equations"
    else:
        jumps, share, unsure = average_jumps(all_hats)
        if has_jumps(share, unsure):
            words += f" ({state_mass(share)})"
    return Trajectory(
        **_means(_stack(states, losses)),
        **jumps,
        jump_shift=np.zeros(0),
        U=U.mean(axis=0),
        U_error=U.std(axis=0, ddof=1) / np.sqrt(len(runs)),
        method="survey",
        validity=words,
    )


def _stack(states: list[list[Overlaps]], losses: list[list[MeanLosses]]) -> dict[str, np.ndarray]:
    """Return the overlaps, "train_loss" and "test_error" of replicas by name, with axes of replicas and times."""
    values = np.array([[(loss.train, loss.test) for loss in run] for run in losses])
    stacks = stack_overlaps([Overlaps(**stack_overlaps(run)) for run in states])
    return stacks | {"train_loss": values[:, :, 0], "test_error": values[:, :, 1]}


def _means(stacks: dict[str, np.ndarray], bias: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Return means over replicas as fields of `Trajectory`, and their standard errors, which include a `bias`."""
    fields: dict[str, Any] = {name: values.mean(axis=0) for name, values in stacks.items()}
    errors = {name: values.std(axis=0, ddof=1) / np.sqrt(len(values)) for name, values in stacks.items()}
    if bias is not None:
        errors = {name: np.hypot(error, bias[name]) for name, error in errors.items()}
    for name in ("train_loss", "test_error"):
        fields[f"{name}_error"] = errors.pop(name)
    return fields | {"error": Overlaps(**errors)}


def _is_too_long(model: Model, n_iter: int, n_paths: int, max_memory: float) -> bool:
    """Return whether uncompressed histories of all times need more memory or more paths."""
    return n_paths < min_paths(model, n_iter) or _required_memory(model, n_iter, n_paths)[0] > max_memory


def _required_memory(model: Model, n_iter: int, n_paths: int) -> tuple[int, int]:
    """Return the memory in bytes of derivatives along the paths of descents, and the number of paths."""
    paths = sum(component_paths(component, n_paths, n_iter) for component in model.components)
    needed = paths * bytes_per_path(n_iter + 1, model.n_tokens * model.rank)
    if not model.penalty.quadratic:
        needed += 4 * n_paths * bytes_per_path(n_iter, model.rank)
    return needed, paths


def _require_memory(model: Model, n_iter: int, n_paths: int, max_memory: float) -> None:
    """Raise ValueError if derivatives along the paths of descents need more than `max_memory` bytes."""
    needed, paths = _required_memory(model, n_iter, n_paths)
    if needed > max_memory:
        needs = f"at least {needed:.2g} bytes for {n_iter} steps of {paths} paths, or fewer of either"
        raise check.fail("max_memory", max_memory, needs)
