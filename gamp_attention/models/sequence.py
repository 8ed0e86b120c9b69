"""Sequence multi-index models: targets and predictions are plain functions of the fields of a sample's tokens.

    u = x Q*/√d (L, t),  y = teacher(u, ξ),  z = (x + p) Q/√d (L, r),  R(Q) = Σ_μ loss(y, student(z)) + (λ/2)‖Q‖²

Attention layers, generalised linear models and multi-layer attention are all of this form. `sequence_model` checks the
three functions on random numbers, traces them (`gamp_attention._core.tracing`), and returns a model with a registered
loss (`gamp_attention.losses.sequence`) and a label model (`SequenceLabels`).
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.expressions import Graph, Program
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention._core.tracing import UntraceableError, trace
from gamp_attention.losses.checks import KinkWarning
from gamp_attention.losses.sequence import SequenceSpec, differentiate_twice, sequence_loss
from gamp_attention.models.coordinates import isotropic_law
from gamp_attention.models.glm import GLMModel
from gamp_attention.penalties.standard import require_penalty

MAX_NOISE = 10_000  # largest number of random numbers per sample
PROBE_SIZES = (0.7, 1.0, 4.0)  # standard deviations of the random arguments on which functions are checked
FAR = (1.0, 10.0, 100.0, 1000.0)  # the same for the search of values below the lower bound of the loss
TRACE_ERROR = 1e-9  # allowed relative difference between a function and its traced form
SYMMETRY_ERROR = 1e-11  # relative difference up to which values count as equal by symmetry
MAX_SIGNED = 6  # largest number of columns whose 2^r signs are checked
N_SYMMETRY = 16  # number of random arguments on which symmetries are checked
BLOCK = 8192  # number of samples that are evaluated at a time, so that intermediate results stay in the cache

# Search for kinks along random lines of fields, see `_convex_kink`
LINES, REACH, POINTS = 6, 3.0, 4001  # number of lines, half-length, number of points
SPACING = 1e-7  # spacing of points at which a remaining change of slope counts as a kink
JUMP = 1e-3  # smallest increase of the slope that counts, in units of the largest slope on the line, at least 1


@dataclass(frozen=True, eq=False)
class SequenceLabels:
    """Label model of a sequence model: the targets of a function teacher(u, noise), flattened to one row per sample.

    Attributes
    ----------
    function : the function of one sample, u (L, t) and noise (n_noise,), if it cannot be traced; else None.
    target_shape : shape of its result.
    n_fields, count : number of fields L t, and of random numbers per sample.
    even : True if targets stay the same when all fields and the noise change sign.
    program : the traced function; None if it cannot be traced, so that `function` is called once for each sample.
    """

    function: Callable[[np.ndarray, np.ndarray], Any] | None
    target_shape: tuple[int, ...]
    n_fields: int
    count: int
    even: bool
    program: Program | None = field(repr=False, default=None)

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers per sample."""
        return self.count

    @ignore_float_errors
    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return targets (N, P) for fields (N, L, t) and white noise (N, n_noise)."""
        n, P = len(u), prod(self.target_shape)
        if self.program is None:
            assert self.function is not None
            rows = [np.asarray(self.function(*row), dtype=float).ravel() for row in zip(u, noise, strict=True)]
            return np.array(rows).reshape(n, P)
        inputs = np.concatenate([u.reshape(n, -1), noise.reshape(n, -1)], axis=1)
        return evaluate_rows(self.program, inputs)

    def keeps_targets(self, n_tokens: int, rank: int, order: np.ndarray) -> bool:
        """Return whether a permutation of the tokens leaves targets unchanged, or permutes their entries.

        Entries in another order contain the same information. Always False for teachers with noise.
        """
        if self.count:
            return False
        u, no_noise = np.random.default_rng(8).standard_normal((N_SYMMETRY, n_tokens, rank)), np.zeros((N_SYMMETRY, 0))
        first, second = self(u, no_noise), self(u[:, order], no_noise)
        return _are_equal(first[:, np.argsort(first[0])], second[:, np.argsort(second[0])])


def evaluate_rows(program: Program, inputs: np.ndarray) -> np.ndarray:
    """Return the results (N, outputs) of a program for rows of inputs (N, n_inputs)."""
    out = np.empty((len(inputs), len(program.outputs)))
    for first in range(0, len(inputs), BLOCK):
        columns = np.ascontiguousarray(inputs[first : first + BLOCK].T)
        for number, values in enumerate(program.evaluate(list(columns))):
            out[first : first + BLOCK, number] = values
    return out


@dataclass(frozen=True, eq=False)
class SequenceModel(GLMModel):
    """A sequence multi-index model, built by `sequence_model`.

    Attributes
    ----------
    teacher : label model, which returns the teacher's targets as rows (N, P).
    student : registered loss of a target and of the fields z.
    prediction : the traced student, as a function of the entries of z.
    head : the attention map of a head, if the student is a layer with value matrices; else None.
    Others : as for `Model`.
    """

    prediction: Program | None = field(default=None, kw_only=True, repr=False)
    head: Any = field(default=None, kw_only=True, repr=False)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the target of a sample."""
        return self.student.spec.target_shape

    @cached_property
    def has_column_signs(self) -> bool:
        """True if each column of student and teacher, at least two of each, may change sign together."""
        law, r = self.coordinates, self.rank
        is_diagonal = np.array_equal(law.teacher_cov, law.teacher_cov * np.eye(self.teacher_rank))
        if not (self.even and 1 < r == self.teacher_rank and is_diagonal) or law.teacher_mean.any():
            return False
        return all(self._keeps_loss(partial(np.multiply, signs)) for signs in 1 - 2 * np.eye(r))

    @cached_property
    def column_signs(self) -> np.ndarray:
        """Signs (n, r) of the columns of the fields that leave the loss unchanged at fixed targets; the first are 1."""
        if self.rank > MAX_SIGNED:
            return np.ones((1, self.rank))
        rng, spec = np.random.default_rng(10), self.student.spec
        u, z = (rng.standard_normal((N_SYMMETRY, self.n_tokens, size)) for size in (self.teacher_rank, self.rank))
        targets = self.teacher(u, rng.standard_normal((N_SYMMETRY, self.teacher.count)))
        before, signs = spec.evaluate(targets, z), 1.0 - 2.0 * np.indices((2,) * self.rank).reshape(self.rank, -1).T
        return np.array([sign for sign in signs if _are_equal(before, spec.evaluate(targets, sign * z))])

    def _has_token_symmetry(self, order: np.ndarray) -> bool:
        """Return whether a permutation of the tokens keeps the loss of teacher and student, and the covariances."""
        law = self.coordinates
        if (
            not self.even
            or len(order) < 2
            or law.teacher_mean.any()
            or not np.array_equal(law.gamma, law.gamma[:, order])
        ):
            return False
        return self._keeps_loss(lambda u: u[:, order])

    def _keeps_loss(self, transform: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether the same transformation of the fields of teacher and student leaves all losses unchanged."""
        rng, shape = np.random.default_rng(9), (N_SYMMETRY, self.n_tokens)
        u, z = rng.standard_normal((*shape, self.teacher_rank)), rng.standard_normal((*shape, self.rank))
        noise, evaluate = rng.standard_normal((N_SYMMETRY, self.teacher.count)), self.student.spec.evaluate
        changed = evaluate(self.teacher(transform(u), noise), transform(z))
        return _are_equal(evaluate(self.teacher(u, noise), z), changed)

    def predict(self, z: ArrayLike) -> np.ndarray:
        """Return the student's predictions (N, ...) for fields z (N, L, r)."""
        fields = check.array("z", z, ("N", self.n_tokens, self.rank))
        assert self.prediction is not None
        with np.errstate(all="ignore"):
            rows = evaluate_rows(self.prediction, fields.reshape(len(fields), -1))
        return rows.reshape(len(fields), *self.target_shape)

    def derivatives(self, targets: ArrayLike, z: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the loss (N,), its gradient (N, L, r) and its Hessian (N, L, r, L, r) in the fields z (N, L, r).

        `targets` has the shape (N, ...) of `data.targets`. The numbers are those of the compiled code up to rounding.
        """
        fields = check.array("z", z, ("N", self.n_tokens, self.rank))
        n, spec = len(fields), self.student.spec
        rows = check.array("targets", targets, (n, *spec.target_shape)).reshape(n, spec.n_targets)
        value, gradient, hessian = _derivatives(differentiate_twice(spec.program, spec.n_targets), spec, rows, fields)
        return value, gradient.reshape(fields.shape), hessian.reshape(*fields.shape, *fields.shape[1:])


def sequence_model(
    teacher: Callable[[np.ndarray, np.ndarray], Any],
    student: Callable[[np.ndarray], Any],
    loss: Callable[[Any, Any], Any] | None = None,
    *,
    n_tokens: int,
    rank: int,
    teacher_rank: int | None = None,
    n_noise: int = 0,
    sigma: ArrayLike = 1.0,
    lam: float | str | Sequence[float | str] = 0.01,
    tau: ArrayLike | None = None,
    penalty: Any = None,
    floor: float = 0.0,
    convex: bool = False,
    intercept: bool = False,
) -> SequenceModel:
    """Build a sequence multi-index model from plain Python functions of one sample.

    The functions may use arithmetic, indexing, loops, conditions, functions of numpy, `math` and `scipy.special`, and
    helper functions that do the same. First and second derivatives are exact up to rounding: the functions are traced,
    differentiated by the chain rule and compiled.

    Parameters
    ----------
    teacher : function teacher(u, noise) that returns the target of a sample, a number or an array of any fixed shape,
        for fields u = x Q*/√d of shape (L, t) and noise of shape (n_noise,), independent standard normal numbers.
    student : function student(z) that returns the prediction, of the target's shape, for fields z = (x + p) Q/√d of
        shape (L, r).
    loss : function loss(target, prediction) that returns a number; ½ ‖target − prediction‖² if not given.
    n_tokens, rank, teacher_rank : number of tokens L of a sample, columns r of the student's weights and columns t of
        the teacher's weights; t = r if not given.
    n_noise : number of random numbers that the teacher receives for each sample, at most 10 000.
    sigma, lam, tau, penalty : as for `glm_model`.
    floor : lower bound of the loss, for the search for global proximal minima.
    convex : True if the loss is a convex function of the fields, so that no search is needed. Detected if the Hessian
        does not depend on the fields.
    intercept : whether the student adds an intercept b (r,) without a penalty to its fields, as for `glm_model`.

    Returns
    -------
    SequenceModel, for `sample`, `run_gamp`, `solve_state_evolution`, `trajectory`, `minimize_risk` and
        `leave_one_out`. The test error is the mean loss of a new sample. `data.targets` (n, ...) are the targets in the
        shape that the teacher returns, and `data.labels` (n, P) their entries.

    Raises
    ------
    TypeError : if a function is not callable, fails on arrays of these shapes, returns anything but real numbers, or
        uses operations that cannot be differentiated (student and loss only); or if an argument has the wrong type.
    ValueError : if a function returns NaN, infinite numbers or another shape, or does not return the same values for
        the same arguments; the loss falls below `floor`; `convex` is wrong; a size is below 1, `n_noise` is too large,
        or `sigma` or `lam` is not positive.

    Warns
    -----
    KinkWarning : if the slope of the loss jumps upwards along a line of fields, so that minima may lie at kinks.

    Examples
    --------
    Two-layer attention, whose second layer reads the tokens that the first layer has averaged:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> def softmax(scores):
    ...     weights = np.exp(scores - scores.max(axis=1)[:, None])
    ...     return weights / weights.sum(axis=1)[:, None]
    >>> def layers(z):
    ...     first = np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))
    ...     second = first @ z[:, 1]
    ...     return softmax(np.outer(second, second))
    >>> model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2)
    >>> data = ga.sample(model, d=50, alpha=2.0, seed=0)
    >>> data.targets.shape
    (100, 2, 2)
    """
    L, r = check.integer("n_tokens", n_tokens, low=1), check.integer("rank", rank, low=1)
    t = r if teacher_rank is None else check.integer("teacher_rank", teacher_rank, low=1)
    n_noise = check.integer("n_noise", n_noise, low=0, high=MAX_NOISE)
    floor, convex = check.real("floor", floor), check.flag("convex", convex)
    tau = np.zeros(L) if tau is None else tau
    penalty = require_penalty(penalty, lam)
    check.require_memory("n_tokens, rank, teacher_rank", L + r + t, L + r + t)
    coordinates = isotropic_law(L, t, sigma, tau)
    labels = _trace_teacher(teacher, L, t, n_noise)
    prediction = _trace_student(student, (L, r), labels.target_shape)
    value = _trace_loss(loss, prediction, labels.target_shape)
    spec = SequenceSpec(value, labels.target_shape, L, r, floor, -np.inf, convex, False, False)
    spec = _complete_spec(spec, labels, "loss" if loss is not None else "student", t)
    return SequenceModel(
        labels, coordinates, penalty, r, sequence_loss(spec), prediction=prediction, intercept=intercept
    )


def _trace_teacher(teacher: Any, L: int, t: int, n_noise: int) -> SequenceLabels:
    """Return the label model of a teacher, after checks on random numbers."""
    function = _Function("teacher", teacher, {"u": (L, t), "noise": (n_noise,)}, "(L, t)", "(n_noise,)")
    shape = function.probe()
    program = function.trace(required=False)  # picklable, as functions defined inside of others are not
    labels = SequenceLabels(function.plain if program is None else None, shape, L * t, n_noise, False, program)
    rng = np.random.default_rng(5)
    u, noise = rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, n_noise))
    even = _are_equal(labels(u, noise), labels(-u, -noise))
    return SequenceLabels(labels.function, shape, L * t, n_noise, even, labels.program)


def _trace_student(student: Any, fields: tuple[int, int], target_shape: tuple[int, ...]) -> Program:
    """Return the program of the student's prediction, after checks on random numbers."""
    function = _Function("student", student, {"z": fields}, "(L, r)")
    shape = function.probe()
    if shape != target_shape:
        raise ValueError(
            f"student: needs to return an array of the teacher's shape {target_shape}, got shape {shape}; "
            f"{function.shapes}"
        )
    program = function.trace(required=True)
    assert program is not None
    return program


def _trace_loss(loss: Any, prediction: Program, shape: tuple[int, ...]) -> Program:
    """Return the program of the loss as a function of the entries of a target and of the fields."""
    P = prod(shape)
    graph = Graph(P + prediction.n_inputs)
    predicted = graph.include(prediction, graph.inputs[P:])
    if loss is None:
        half, total = graph.constant(0.5), graph.constant(0.0)
        for target, value in zip(graph.inputs, predicted, strict=False):
            difference = graph.apply("sub", value, target)
            total = graph.apply("add", total, graph.apply("mul", difference, difference))
        return graph.program([graph.apply("mul", half, total)])
    function = _Function("loss", loss, {"target": shape, "prediction": shape}, "of the target", "of the target")
    if (got := function.probe()) != ():
        raise TypeError(f"loss: needs to return one number, got an array of shape {got}; {function.shapes}")
    program = function.trace(required=True)
    assert program is not None
    return graph.program(graph.include(program, [*graph.inputs[:P], *predicted]))


class _Function:
    """A user's function of arrays, with checks whose messages name it.

    Parameters
    ----------
    name : name of the argument of `sequence_model`.
    function : the function, or a function compiled by numba.
    arguments : shape of each argument, by name.
    words : the same shapes in words.
    """

    def __init__(self, name: str, function: Any, arguments: dict[str, tuple[int, ...]], *words: str) -> None:
        signature = f"{name}({', '.join(arguments)})"
        if not callable(function):
            raise check.fail(name, function, f"a function {signature}", TypeError)
        self.name, self.given, self.arguments = name, function, arguments
        self.plain = getattr(function, "py_func", function)
        shapes = zip(arguments.items(), words, strict=True)
        self.shapes = f"in {signature}, " + " and ".join(f"{k} has shape {word} = {v}" for (k, v), word in shapes)

    def probe(self) -> tuple[int, ...]:
        """Call the function with random numbers and return the shape of its result; raise if it is not valid."""
        results = [self._call(*values) for values in self._probes()]
        shapes = {result.shape for result in results}
        if len(shapes) > 1:
            raise ValueError(f"{self.name}: needs to return arrays of one shape, got {sorted(shapes)}; {self.shapes}")
        if results[0].size == 0:
            raise ValueError(f"{self.name}: needs to return at least one number, got shape {results[0].shape}")
        return results[0].shape

    def trace(self, required: bool) -> Program | None:
        """Return the traced function; None if it cannot be traced and this is not required."""
        try:
            program, _ = trace(self.given, list(self.arguments.values()))
        except UntraceableError as error:
            if not required:
                return None
            needs = "operations that can be differentiated"
            raise TypeError(f"{self.name}: needs {needs}, got: {error}{_line_of(error)}; {self.shapes}") from error
        except Exception as error:
            if not required:
                return None
            got = f"{type(error).__name__}: {error}{_line_of(error)}"
            needs = "code that also runs on arrays of recorded numbers"
            raise TypeError(f"{self.name}: needs {needs}, got {got}; {self.shapes}") from error
        for values in self._probes():
            inputs = np.concatenate([np.ravel(v) for v in values])[None]
            with np.errstate(all="ignore"):
                traced, called = evaluate_rows(program, inputs)[0], self._call(*values).ravel()
            if not np.abs(traced - called).max() <= TRACE_ERROR * (1 + np.abs(called).max()):
                if not required:
                    return None
                got = f"{called.tolist()} and {traced.tolist()}"
                needs = "the same values whenever it is called with the same arguments"
                raise ValueError(f"{self.name}: needs {needs}, got {got}; {self.shapes}")
        return program

    def _probes(self) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(3)
        return [[size * rng.standard_normal(shape) for shape in self.arguments.values()] for size in PROBE_SIZES]

    def _call(self, *values: np.ndarray) -> np.ndarray:
        """Return the function's result as an array of numbers."""
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                result = self.plain(*(value.copy() for value in values))
        except Exception as error:
            got = f"{type(error).__name__}: {error}{_line_of(error)}"
            raise TypeError(f"{self.name}: needs to run on arrays of these shapes, got {got}; {self.shapes}") from error
        try:
            array = np.asarray(result)
            if array.dtype.kind not in "fiub":
                raise TypeError
            array = array.astype(float)
        except (TypeError, ValueError):
            needs = "to return a number or an array of real numbers"
            raise TypeError(f"{self.name}: needs {needs}, got {type(result).__name__}; {self.shapes}") from None
        if not np.isfinite(array).all():
            at = ", ".join(f"{k} = {v.round(3).tolist()}" for k, v in zip(self.arguments, values, strict=True))
            needs = "to return finite numbers"
            raise ValueError(f"{self.name}: needs {needs}, got {array.tolist()} for {at}; {self.shapes}")
        return array


def _line_of(error: BaseException) -> str:
    """Return the last line of the user's code that an error passed, as text, or ""."""
    package, numpy_folder = str(Path(__file__).parent.parent), str(Path(np.__file__).parent)
    lines = [frame for frame in extract_tb(error.__traceback__)]
    outside = [f for f in lines if package not in f.filename and numpy_folder not in f.filename]
    return f" (line {outside[-1].lineno} of {Path(outside[-1].filename).name})" if outside else ""


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= SYMMETRY_ERROR * (1 + np.abs(a).max()))


def _complete_spec(spec: SequenceSpec, labels: SequenceLabels, name: str, t: int) -> SequenceSpec:
    """Return the content of a loss with its symmetries and bounds, after checks at random targets and fields.

    `name` is the function that messages refer to.
    """
    L, r, rng = spec.n_tokens, spec.rank, np.random.default_rng(7)
    u, noise = rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, labels.count))
    y, z = labels(u, noise), rng.standard_normal((N_SYMMETRY, L, r))
    values, rotation = spec.evaluate(y, z), np.linalg.qr(rng.standard_normal((r, r)))[0]
    for size in FAR:
        far = spec.evaluate(y, size * z)
        if (far < spec.lowest_value - 1e-9 * (1 + abs(spec.lowest_value))).any():
            worst = int(np.nanargmin(far))
            got = f"{far[worst]:.6g} at z = {(size * z[worst]).round(3).tolist()}"
            remedy = "pass its lower bound as floor=; without a bound, proximal problems have no minimum"
            raise ValueError(f"{name}: needs values of at least floor = {spec.lowest_value:g}, got {got}; {remedy}")
    _warn_of_kinks(spec, y, name)
    derivatives = differentiate_twice(spec.program, spec.n_targets)
    eigenvalues = _eigenvalues(derivatives, spec, y, z)
    constant = not spec.program.has_choices and not _hessian_depends(derivatives, spec)
    lowest = float(eigenvalues.min()) if constant else -np.inf
    size = np.abs(eigenvalues).max() + 1
    if spec.convex and eigenvalues.min() < -TRACE_ERROR * size:
        got = f"an eigenvalue {eigenvalues.min():.3g} of its Hessian"
        raise ValueError(f"convex: needs to be False, got True for a loss with {got}")
    convex = spec.convex or (constant and lowest >= -1e-12 * size)
    return spec._replace(
        convex=convex,
        lowest_curvature=max(lowest, 0.0) if convex else lowest,
        even=_are_equal(values, spec.evaluate(y, -z)),
        rotations=r > 1 and _are_equal(values, spec.evaluate(y, z @ rotation)),
    )


def _hessian_depends(derivatives: Program, spec: SequenceSpec) -> bool:
    """Return whether the Hessian depends on targets or fields."""
    return derivatives._replace(outputs=derivatives.outputs[1 + spec.n_fields :]).reduced().depends_on(0)


def _eigenvalues(derivatives: Program, spec: SequenceSpec, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the eigenvalues (N, k) of the Hessian at targets y (N, P) and fields z (N, L, r)."""
    hessian = _derivatives(derivatives, spec, y, z)[2]
    finite = np.isfinite(hessian).all(axis=(1, 2))
    return np.linalg.eigvalsh(hessian[finite]) if finite.any() else np.zeros((1, spec.n_fields))


def _derivatives(
    program: Program, spec: SequenceSpec, y: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses (N,), gradients (N, k) and Hessians (N, k, k) at targets y (N, P) and fields z (N, L, r)."""
    n, k = len(z), spec.n_fields
    with np.errstate(all="ignore"):
        rows = evaluate_rows(program, np.concatenate([y, z.reshape(n, k)], axis=1))
    hessian, (i, j) = np.empty((n, k, k)), np.tril_indices(k)
    hessian[:, i, j] = hessian[:, j, i] = rows[:, 1 + k :]
    return rows[:, 0], rows[:, 1 : 1 + k], hessian


def _warn_of_kinks(spec: SequenceSpec, y: np.ndarray, name: str) -> None:
    """Warn if the slope of the loss jumps upwards along random lines of fields, so that minima may lie at kinks."""
    if not spec.program.has_choices:
        return
    rng = np.random.default_rng(11)
    for number in range(LINES):
        base, along = rng.standard_normal((2, spec.n_tokens, spec.rank))
        jump = _convex_kink(spec, y[number], base * (number > 0), along)
        if jump > JUMP:
            warnings.warn(
                f"{name}: the slope of the loss jumps up by {jump:.2g} along a line of fields (by a very large number "
                "if the loss itself jumps). Minima can lie at such points, where Newton steps do not converge, so runs "
                "may end near a minimum with a status that states it. Use a smooth function, for example "
                "np.sqrt(x**2 + 1e-4) in place of abs(x)",
                KinkWarning,
                stacklevel=4,
            )
            return


def _convex_kink(spec: SequenceSpec, target: np.ndarray, base: np.ndarray, along: np.ndarray) -> float:
    """Return the largest increase of the slope at one point of a line base + t·along, divided by max(slope, 1)."""

    def changes(at: np.ndarray) -> tuple[float, np.ndarray]:
        values = spec.evaluate(np.tile(target, (len(at), 1)), base + at[:, None, None] * along)
        slopes = np.diff(values) / (at[1] - at[0])
        return float(np.abs(slopes).max()), np.diff(slopes)

    line = np.linspace(-REACH, REACH, POINTS)
    unit, first = changes(line)
    largest = 0.0
    for index in np.argsort(first)[::-1][:4]:
        at, spacing, jump = line[index + 1], line[1] - line[0], 0.0
        while spacing > SPACING:
            near = np.linspace(at - spacing, at + spacing, 33)
            _, near_changes = changes(near)
            strongest = int(np.argmax(near_changes))
            at, spacing, jump = near[strongest + 1], near[1] - near[0], float(near_changes[strongest])
        largest = max(largest, jump / max(unit, 1.0))
    return largest
