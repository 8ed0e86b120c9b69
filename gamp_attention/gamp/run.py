"""run_gamp: its arguments, and message passing from one start or, after saddles, from several."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention._core.progress import showing
from gamp_attention.damping import Damping
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.passes import Memory
from gamp_attention.data.risk import overlaps
from gamp_attention.data.starts import default_start, several_starts
from gamp_attention.gamp.budget import BUDGET
from gamp_attention.gamp.checkpoint import Checkpoint, digest
from gamp_attention.gamp.loop import LATE, WATCH, Callback, Plan, responses
from gamp_attention.gamp.many_starts import Race, told
from gamp_attention.gamp.result import GampResult, followed
from gamp_attention.gamp.settling import ESCAPE, way_down
from gamp_attention.gamp.step import GampState, averaged_memory, check_shapes, initial_state, near_fixed_point
from gamp_attention.models.model import STARTS
from gamp_attention.results import finish


@ignore_float_errors
@showing("message passing ")
def run_gamp(
    data: Dataset,
    init: Any = None,
    risk: str = "exact",
    *,
    damping: Any = "adaptive",
    tol: float = 1e-8,
    max_iter: int = 10000,
    hold_after: int | None = None,
    search: str = "auto",
    accelerate: bool | None = None,
    settling: bool = True,
    escape: bool = False,
    onsager: Any = "empirical",
    empirical_after: int | None = None,
    memory: Memory = averaged_memory,
    V: Any = None,
    seed: Any = 0,
    n_starts: int = 1,
    n_finish: int = 1,
    callback: Callback | None = None,
    checkpoint: Any = None,
    checkpoint_every: float = 60.0,
    raise_on_failure: bool = False,
    progress: bool | None = None,
) -> GampResult:
    """Run damped GAMP to a critical point of the training risk of equation (3).

    Eq. :eq:`critical`.

    Parameters
    ----------
    data : the samples.
    init : "semantic", "positional", "random", "spectral" (from the data alone), "posterior" (from the data and the
        teacher's map), weights (d, r), a `GampState`, whose memory a run then begins with: near a fixed point it
        stays there; or the result of a run on data that are nearly the same, to go on from its fixed point. If not
        given, "semantic" for data with a teacher, and "spectral" for arrays without a
        teacher; with `n_starts=8`, as in the command `fit`, the lowest of several minima is kept.
    risk : "exact", of equation (3), or "asymptotic", of (41), to compare with state evolution.
    damping : the step β in (0, 1], a sequence with one for each iteration, or "adaptive": 0.3 at first, and
        on divergence or a stall back to the best state with a smaller one; see also `accelerate`.
    tol : bound on ‖∇R‖_F/(λ√d). With tol=0 exactly max_iter iterations are run and the last one returned.
    max_iter : bound on iterations of message passing, where the run then ends without settling. By default, one that
        runs do not meet.
    hold_after : iteration from which each sample keeps its local proximal minimum; global minima before.
        If not given, 20, or never where tol=0, since state evolution tracks global minima.
    search : "full": up to iteration `hold_after`, the global minimum of each sample's proximal objective is searched
        for, as state evolution assumes. "bounded": samples are searched at every second iteration only, from two
        further starts, and settling begins when the work of message passing equals the work of 250 gradients, or of
        ten times the number of gradients of a first descent; see `gamp_attention.gamp.budget`.
        "auto": for runs to a tolerance, "bounded" if L r > 2; if L r <= 2, searches are bounded after an iteration in
        which a search takes more than 100 minimisations per sample. "full" if `tol` is 0 or if `hold_after`,
        `onsager` or `memory` is given.
    accelerate : extrapolate by Anderson acceleration, with damped iterations wherever that raises the gradient norm.
        The same fixed points in fewer iterations, but the iterates are no longer those that state evolution tracks. If
        not given, runs to a tolerance by adaptive damping take a longer step once the gradient norm is below 0.1, and
        extrapolate below 0.03 once minima are held, so that they mostly end in the same ones as without. Not where
        `onsager` or `memory` is given, nor for samples on other workers.
    settling : finish by descent (see `gamp_attention.gamp.settling`) as soon as message passing cycles.
    escape : leave a saddle of the risk along the direction of its lowest curvature, and go on to a minimum; each time
        takes the place of an iteration, whose damping is NaN in the history.
    onsager : "empirical" response, "state_evolution" (taken from `trajectory` at the same start and damping),
        or an array (T, S, r, r) of responses V̂_t, the last one being repeated; S = L but for mixtures.
    empirical_after : iteration from which the response is the empirical one, whatever `onsager` is before; if not
        given, never. Where proximal maps jump, only the predicted one is what state evolution tracks, and only with the
        empirical one does the gradient go to zero.
    memory : rule for the Onsager memory D, called with D, V g, W g and the step β; see `gamp_attention.gamp.step`.
    V : (S, r, r) variances to start with; tr Σ_l/(2dλ) if not given.
    seed : for the random part of starts.
    n_starts : starts. The first is `init`, or all are spectral for "spectral", as far as there are so many; the others
        are random. Half of them are left after 6, 15 and 30 iterations, those of higher training loss, and of those
        followed to the end the one with the lowest is the result; `starts` tells of all. The same for any number of
        threads.
    n_finish : starts that are followed to the end, at most n_starts.
    callback : called with (iteration, state, report) at every iteration; their arrays are read-only. With several
        starts, at every iteration of each: first all up to the sixth iteration, one after another, and so on.
    checkpoint : path of a file that message passing is written to now and then, and goes on from where it exists: the
        same iterations, to the last bit, of all starts. max_iter may have grown since; all else must be the same.
    checkpoint_every : least seconds between two writes.
    raise_on_failure : raise ConvergenceError instead of returning a result that did not converge.
    progress : whether start, iteration, training loss and gradient norm are shown on standard error during the run.
        By default they are shown on a terminal if the run takes more than a second.

    Returns
    -------
    GampResult. `converged` means that the gradient norm is at most tol, `fixed_point` that Q was verified to be a fixed
        point of GAMP.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ConvergenceError : with `raise_on_failure`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> result = ga.run_gamp(data, init="semantic", damping=0.5)
    >>> result.converged, result.gradient_norm < 1e-8
    (True, True)
    """
    require_dataset(data)
    data.terms(risk)
    init = default_start(data) if init is None else init
    tol = check.real("tol", tol, low=0)
    max_iter = check.integer("max_iter", max_iter, low=1)
    Damping(damping)  # checks it
    check.choice("search", search, ("auto", "full", "bounded"))
    usual = isinstance(onsager, str) and onsager == "empirical" and memory is averaged_memory and hold_after is None
    many = data.n_tokens * data.rank > BUDGET.exact_fields
    bounded = search == "bounded" or (search == "auto" and usual and many and tol > 0)
    if hold_after is None:
        hold_after = WATCH.hold_after if tol > 0 or bounded else sys.maxsize
    hold_after = check.integer("hold_after", hold_after, low=0)
    if empirical_after is not None:
        empirical_after = check.integer("empirical_after", empirical_after, low=0)
    flags = {"settling": settling, "escape": escape, "raise_on_failure": raise_on_failure}
    if accelerate is not None:
        flags["accelerate"] = accelerate
    for name, value in flags.items():
        check.flag(name, value)
    check.function("memory", memory)
    if callback is not None:
        check.function("callback", callback)
    n_starts = check.integer("n_starts", n_starts, low=1)
    check.require_memory("rank", data.dim, data.rank)
    check.require_memory("n_starts", n_starts, data.n_samples * data.n_tokens + data.dim, data.rank)
    n_finish = check.integer("n_finish", n_finish, low=1, high=n_starts)
    if accelerate and not data.rows_here:
        raise check.fail("accelerate", accelerate, "False for data whose samples are on other workers")
    if n_starts > 1 and isinstance(onsager, str) and onsager == "state_evolution":
        raise check.fail("onsager", onsager, "'empirical' or an array where there are several starts")
    if V is not None:
        V = check.array("V", V, (data.n_sources, data.rank, data.rank))
        symmetric = np.allclose(V, V.transpose(0, 2, 1), rtol=1e-12, atol=0)
        if not (symmetric and np.linalg.eigvalsh(V).min() > 0):
            raise check.fail("V", V, "symmetric positive definite matrices")
    direction = init.direction if isinstance(init, GampResult) else None
    begun = _fixed_point_of(data, risk, init) if isinstance(init, GampResult) else init
    begun = begun if isinstance(begun, GampState) else None
    if begun is not None:
        check_shapes(data, begun)
        init = begun.Q
    starts = [(name, initial_state(data, Q, V)) for name, Q in several_starts(data, init, n_starts, seed, risk)]
    if begun is not None:
        starts[0] = (starts[0][0], begun if V is None else replace(begun, V=V))
    state = starts[0][1]

    def predicted() -> np.ndarray:
        from gamp_attention.state_evolution.dynamics.trajectory import trajectory

        start = init if isinstance(init, str) and init in STARTS and V is None else overlaps(data, state.Q, state.V)
        return trajectory(data.instance_model(), data.alpha, start, damping=damping, n_iter=min(max_iter, 40)).V_hat

    plain = isinstance(onsager, str) and onsager == "empirical" and memory is averaged_memory and data.rows_here
    by_default = LATE if plain and isinstance(damping, str) and tol > 0 else False
    mode = by_default if accelerate is None else accelerate
    V_hat = responses(onsager, empirical_after, data.n_sources, data.rank, predicted)

    file = None
    if checkpoint is not None:
        rule = getattr(memory, "__qualname__", type(memory).__qualname__)
        weights = [Q for _, each in starts for Q in (each.Q, each.V)]
        weights += [] if begun is None else [np.asarray(begun.D)]
        options = risk, *weights, n_finish, damping, tol, hold_after, mode, settling, escape, onsager
        options += () if empirical_after is None else (empirical_after,)
        options += ("bounded",) if bounded else ()
        file = Checkpoint(checkpoint, digest(data, *options, memory.__module__, rule), checkpoint_every)
    plan = Plan(
        data, risk, damping, tol, max_iter, hold_after, mode, settling, V_hat, memory, callback, direction, bounded,
        search == "auto" and usual and tol > 0,
    )  # fmt: skip
    race = Race(plan, starts, n_finish, file)
    reached = max(each.t for each in race.loops.values())
    if reached > max_iter:
        raise check.fail("max_iter", max_iter, f"at least {reached}, where the checkpoint {checkpoint} is")

    result, loop = race.run()
    while escape and not result.is_minimum and result.direction is not None and loop.escapes < ESCAPE.most:
        Q, ceiling = way_down(data, risk, result.Q, result.direction)
        loop.leave(initial_state(data, Q, V), ceiling)
        result = followed(plan, loop)
    records = race.records(result, loop)
    message = f"{result.message} {told(records)}" if n_starts > 1 else result.message
    return finish(replace(result, starts=records, message=message), raise_on_failure, "run_gamp")


def _fixed_point_of(data: Dataset, risk: str, before: GampResult) -> GampState:
    """The state that the weights and variances of a result would be the fixed point of."""
    Q = check.array("init.Q", before.Q, (data.dim, data.rank))
    V = check.array("init.overlaps.V", before.overlaps.V, (data.n_sources, data.rank, data.rank))
    return near_fixed_point(data, risk, Q, V)
