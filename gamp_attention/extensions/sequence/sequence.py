"""Sequence multi-index models: targets and predictions are plain functions of the fields of a sample's tokens.

    u = x Q*/√d (L, t),  y = teacher(u, ξ),  z = (x + p) Q/√d (L, r),  R(Q) = Σ_μ loss(y, student(z)) + (λ/2)‖Q‖²

Attention layers, generalized linear models and multi-layer attention are all of this form. So are attention layers with
value matrices, f(x) = Σ_h S_h[z] z_h R_h, whose fields z (L, r) contain the queries and keys of all heads and their
values z_h (L, v): outputs have p numbers for each token, whatever d is (`value_model`). `sequence_model` checks the
three functions on random numbers, traces them (`gamp_attention.extensions.sequence.tracing`), and returns a model with
a registered loss (`gamp_attention.extensions.sequence.sequence_loss`) and a label model (`SequenceLabels`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention.extensions.sequence.expressions import Graph, Program, evaluate_rows
from gamp_attention.extensions.sequence.sequence_labels import (
    N_SYMMETRY,
    TRACE_ERROR,
    UserFunction,
    are_equal,
    trace_teacher,
)
from gamp_attention.extensions.sequence.sequence_loss import (
    MAX_OPERATIONS,
    SequenceSpec,
    differentiate_twice,
    sequence_loss,
)
from gamp_attention.problem.layer import Predictor, Units, attention_of_heads
from gamp_attention.problem.losses.attention import (
    DotProductAttention,
    HeadLayout,
    require_valid_attention,
)
from gamp_attention.problem.losses.heads import require_heads
from gamp_attention.problem.penalties.standard import require_penalty
from gamp_attention.problem.sources import ClassLaw
from gamp_attention.theory.models.attention import default_mixing
from gamp_attention.theory.models.coordinate_classes import CoordinateClasses, isotropic_law, value_classes
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.glm import GLMModel, LabelTask
from gamp_attention.theory.models.mixtures import ShiftedTeacher, TokenClasses
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True, eq=False)
class TracedLayer(Predictor):
    """Layer whose outputs (L, p) are a function of the fields z = (x + p − c) W/√d + b, W = Q/s."""

    model: Any  # model of the layer, with `predict`, and with the attention map `head` if it has attention
    Q: np.ndarray  # (d, r) weights for tokens in the units c and s
    positions: np.ndarray
    units: Units  # center c and scale s
    intercept: np.ndarray  # (r,) b

    width = property(lambda self: self.model.target_shape[1])  # number p of outputs for each token

    def outputs(self, tokens: np.ndarray) -> np.ndarray:
        """Return outputs (n, L, p)."""
        return self.model.predict(self.fields(tokens) + self.intercept)

    def head_attention(self, tokens: np.ndarray) -> np.ndarray:
        """Return the attention matrices (n, H, L, L) of the heads."""
        return attention_of_heads(self.model.head, self.model.student, self.fields(tokens) + self.intercept)

    def attention(self, tokens: np.ndarray) -> np.ndarray:
        """Return the mean (n, L, L) of the attention matrices of the heads."""
        return self.head_attention(tokens).mean(axis=1)


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

    prediction: Program = field(kw_only=True, repr=False)
    head: Any = field(default=None, kw_only=True)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the target of a sample."""
        return self.student.spec.target_shape

    @cached_property
    def has_column_signs(self) -> bool:  # type: ignore[override]
        """True if each column of student and teacher, at least two of each, may change sign together."""
        law, r = self.coordinates, self.rank
        covariances = np.concatenate([law.teacher_cov, law.unseen[None]])
        is_diagonal = np.array_equal(covariances, covariances * np.eye(self.teacher_rank))
        if not (self.even and 1 < r == self.teacher_rank and is_diagonal) or law.teacher_mean.any():
            return False
        return all(self._keeps_losses(partial(np.multiply, signs)) for signs in 1 - 2 * np.eye(r))

    def _has_token_symmetry(self, order: np.ndarray) -> bool:
        """Return whether a permutation of the tokens keeps the loss of teacher and student, and the covariances."""
        law = self.coordinates
        keeps_law = np.array_equal(law.gamma, law.gamma[:, order]) and not law.teacher_mean.any()
        return self.even and len(order) > 1 and keeps_law and self._keeps_losses(lambda u: u[:, order])

    def trained_layer(self, data: Any, Q: np.ndarray) -> Any:
        """Return the layer with weights Q (d, r) of a dataset."""
        d = data.dim - data.intercept  # an intercept is one more coordinate of the data
        weights = Q[:d] * np.sqrt(d / data.dim)
        return TracedLayer(self, weights, data.positions[:, :d], Units.raw(d), data.intercepts(Q))

    def predict(self, z: ArrayLike) -> np.ndarray:
        """Return the student's predictions (N, ...) for fields z (N, L, r)."""
        fields = check.array("z", z, ("N", self.n_tokens, self.rank))
        return evaluate_rows(self.prediction, fields.reshape(len(fields), -1)).reshape(len(fields), *self.target_shape)

    def derivatives(self, targets: ArrayLike, z: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the loss (N,), its gradient (N, L, r) and its Hessian (N, L, r, L, r) in the fields z (N, L, r).

        `targets` has the shape (N, ...) of `data.targets`. The numbers are those of the compiled code up to rounding.
        """
        fields = check.array("z", z, ("N", self.n_tokens, self.rank))
        n, spec = len(fields), self.student.spec
        rows = check.array("targets", targets, (n, *spec.target_shape)).reshape(n, spec.n_targets)
        value, gradient, hessian = spec.derivatives(rows, fields)
        return value, gradient.reshape(fields.shape), hessian.reshape(*fields.shape, *fields.shape[1:])


@dataclass(frozen=True, eq=False)
class SequenceMixture(TokenClasses, SequenceModel):
    """A sequence model whose samples have classes, built by `sequence_model`.

    Token l of a sample of class c is drawn from source c L + l.

    Attributes
    ----------
    teacher : label models of all classes.
    coordinates : distribution ν over the sources, with the spikes of their means.
    classes : distribution of the classes; pattern c has the sources of class c.
    class_means : (K, S) means of the sources times √d, without spikes, in each class of coordinates.
    Others : as for `SequenceModel`.
    """

    def __post_init__(self) -> None:
        if not getattr(self.teacher, "of_class", ()):
            raise check.fail("teacher", self.teacher, "label models of all classes, as of `sequence_model`", TypeError)
        super().__post_init__()

    @cached_property
    def task(self) -> LabelTask:
        """Learning task of the samples of the first class; other classes differ in their targets."""
        return self.task_of(self.classes.patterns[0])

    def task_of(self, sources: np.ndarray) -> LabelTask:
        """Return the learning task of the samples whose tokens are drawn from given sources (L,)."""
        labels, loss = self.teacher.of_class[sources[0] // self.n_tokens], self.student
        return LabelTask(labels, loss, self.rank, labels.count, jumps=not loss.convex)

    def given(self, number: int) -> Model:
        """Return the model of samples of a class, for fields without their means."""
        labels, shift = self.teacher.of_class[number], self.teacher_shift[self.classes.patterns[number]]
        teacher = ShiftedTeacher(labels, shift) if shift.any() else labels
        return GLMModel(teacher, self.law_of_pattern(number), self.penalty, self.rank, self.student)

    def _keeps_losses(self, change: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return False: symmetries of samples with classes are not searched for."""
        return False


def _classes_law(
    classes: Any, means: Any, spikes: Any, sigma: Any, L: int, t: int
) -> tuple[ClassLaw, CoordinateLaw, np.ndarray]:
    """Return the distribution of classes, the distribution of coordinates over all sources, and the class means."""
    probability = check.array("classes", classes, ("C",))
    C, max_sources = len(probability), 4096
    if C < 2 or max_sources < C * L or (probability <= 0).any() or abs(probability.sum() - 1) > 1e-9:
        needs = f"the probabilities of 2 or more classes, positive numbers that add to 1, for at most {max_sources} "
        remedy = "; list a single class twice, with probabilities of a half" * (C == 1)
        raise check.fail("classes", classes, needs + "pairs of class and token" + remedy)
    mu = value_classes("means", np.zeros((C, L)) if means is None else means, (C, L))
    shape: tuple[int, ...] = {0: (), 1: (L,)}.get(check.ndim("sigma", sigma), (C, L))
    deviations = np.broadcast_to(check.standard_deviations("sigma", sigma, shape), (C, L)).ravel()
    if spikes is not None:
        spikes = check.array("spikes", spikes, ("C", "L", "t"))
        if spikes.shape != (C, L, t):
            raise check.fail_words("spikes", f"shape {spikes.shape}", f"shape (C, L, t) = {(C, L, t)}")
    K, S = len(mu.weight), C * L
    class_means = mu.values.reshape(K, S)
    coordinates = CoordinateLaw(
        weight=mu.weight,
        gamma=np.tile(deviations**2, (K, 1)),
        tau=class_means,
        teacher_mean=np.zeros((K, t)),
        teacher_cov=np.tile(np.eye(t), (K, 1, 1)),
        spikes=None if spikes is None else spikes.reshape(S, t),
    )
    return ClassLaw(np.arange(S).reshape(C, L), probability / probability.sum()), coordinates, class_means


def sequence_model(
    teacher: Callable[..., Any],
    student: Callable[[np.ndarray], Any],
    loss: Callable[[Any, Any], Any] | None = None,
    *,
    n_tokens: int,
    rank: int,
    teacher_rank: int | None = None,
    n_noise: int = 0,
    sigma: ArrayLike = 1.0,
    lam: float | str | Sequence[float | str] | None = None,
    convex: bool = False,
    intercept: bool = False,
    classes: ArrayLike | None = None,
    means: ArrayLike | CoordinateClasses | None = None,
    spikes: ArrayLike | None = None,
) -> SequenceModel:
    """Build a sequence multi-index model (Troiani et al., 2025) from plain Python functions of one sample.

    The functions may use arithmetic, indexing, loops, conditions, functions of numpy, `math` and `scipy.special`, and
    helper functions that do the same. First and second derivatives are exact up to rounding: the functions are traced,
    differentiated by the chain rule and compiled.

    Parameters
    ----------
    teacher : function teacher(u, noise) that returns the target of a sample, a number or an array of any fixed shape,
        for fields u = x Q*/√d of shape (L, t) and noise of shape (n_noise,), independent standard normal numbers. With
        `classes` it is a function teacher(u, noise, c), with the class c of the sample, an integer.
    student : function student(z) that returns the prediction, of the target's shape, for fields z = (x + p) Q/√d of
        shape (L, r).
    loss : function loss(target, prediction) that returns a number; ½ ‖target − prediction‖² if not given.
    n_tokens, rank, teacher_rank : number of tokens L of a sample, columns r of the student's weights and columns t of
        the teacher's weights; t = r if not given.
    n_noise : number of random numbers that the teacher receives for each sample, at most 10 000.
    sigma, lam : as for `glm_model`. The tokens have no positions; `replace` of `coordinates` changes their means.
    convex : True if the loss is a convex function of the fields, so that no search is needed. Detected if the Hessian
        does not depend on the fields.
    intercept : whether the student adds an intercept b (r,) without a penalty to its fields, as for `glm_model`.
    classes : (C,) probabilities of the classes of a sample, from which they are drawn independently. If each token has
        a class, list all combinations. The tokens of a sample of class c are Gaussian with means
        means[c, l] 1_d/√d + Q* spikes[c, l]/√d and standard deviations sigma[c, l]; `sigma` may be of shape (C, L).
        Overlaps then have C L entries instead of L, first those of the tokens of class 0.
    means : (C, L) components of the means along 1_d/√d; 0 if not given. For means along other directions, (J, C, L) or
        `CoordinateClasses` of such values: one for each of J classes of coordinates.
    spikes : (C, L, t) components of the means along the teacher's columns, of norm √d; 0 if not given.

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
        the same arguments; the loss is negative; `convex` is wrong; a size is below 1, `n_noise` is too large,
        or `sigma` or `lam` is not positive; `classes` are not probabilities of at least two classes, or `means` or
        `spikes` are given without classes.

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

    Spiked tokens: the mean of one of three tokens, drawn at random, is shifted along Q*, and the token is the target:

    >>> spiked = ga.sequence_model(
    ...     lambda u, noise, c: u[c, 1], lambda z: softmax(z[:, :1].T)[0] @ z[:, 1], n_tokens=3, rank=2,
    ...     classes=[1 / 3, 1 / 3, 1 / 3], spikes=[[[2.0 * (l == c), 0] for l in range(3)] for c in range(3)],
    ... )
    >>> data = ga.sample(spiked, d=50, alpha=2.0, seed=0)
    >>> data.n_tokens, data.n_sources
    (3, 9)
    """
    L, r = check.integer("n_tokens", n_tokens, low=1), check.integer("rank", rank, low=1)
    t = r if teacher_rank is None else check.integer("teacher_rank", teacher_rank, low=1)
    n_noise = check.integer("n_noise", n_noise, low=0, high=10_000)
    convex, penalty = check.flag("convex", convex), require_penalty(None, lam)
    check.require_memory("n_tokens, rank, teacher_rank", L + r + t, L + r + t)
    if classes is None:
        for name, value in (("means", means), ("spikes", spikes)):
            if value is not None:
                needs = "None unless `classes` are given, two equal classes if all samples have the same class"
                raise check.fail(name, value, needs)
        numbers: list[int | None] = [None]
        coordinates = isotropic_law(L, t, sigma, np.zeros(L))
    else:
        law, coordinates, class_means = _classes_law(classes, means, spikes, sigma, L, t)
        numbers = list(range(len(law.probability)))
    of_class = [trace_teacher(teacher, L, t, n_noise, c) for c in numbers]
    shape = of_class[0].target_shape
    if any(labels.target_shape != shape for labels in of_class):
        shapes = sorted({labels.target_shape for labels in of_class})
        raise ValueError(f"teacher: needs to return arrays of one shape for all classes, got {shapes}")
    function = UserFunction("student", student, {"z": (L, r)}, "(L, r)")
    if (got := function.probe()) != shape:
        raise function.error(f"to return an array of the teacher's shape {shape}", f"shape {got}")
    prediction = function.trace()
    if "input" not in prediction.names:
        raise function.error("to depend on z", "a constant")
    spec = SequenceSpec(_trace_loss(loss, prediction, shape), shape, L, r, -np.inf, convex, False, False)
    rng = np.random.default_rng(7)
    u, noise = rng.standard_normal((N_SYMMETRY, 1, L, t)), rng.standard_normal((N_SYMMETRY, 1, n_noise))
    targets = np.concatenate([of_class[k % len(of_class)](u[k], noise[k]) for k in range(N_SYMMETRY)])
    spec = complete_spec(spec, targets, "loss" if loss is not None else "student")
    student_loss = sequence_loss(spec)
    options: dict[str, Any] = {"prediction": prediction, "intercept": intercept}
    if classes is None:
        return SequenceModel(of_class[0], coordinates, penalty, r, student_loss, **options)
    labels = replace(of_class[0], even=all(labels.even for labels in of_class), of_class=tuple(of_class))
    return SequenceMixture(
        labels, coordinates, penalty, r, student_loss, classes=law, class_means=class_means, **options
    )


def _trace_loss(loss: Any, prediction: Program, shape: tuple[int, ...]) -> Program:
    """Return the program of the loss as a function of the entries of a target and of the fields."""
    arguments = {"target": shape, "prediction": shape}
    plain = loss or (lambda target, prediction: 0.5 * ((prediction - target) ** 2).sum())
    function = UserFunction("loss", plain, arguments, "of the target", "of the target")
    if (got := function.probe()) != ():
        raise function.error("to return one number", f"an array of shape {got}", TypeError)
    graph, P = Graph(prod(shape) + prediction.n_inputs), prod(shape)
    predicted = graph.include(prediction, graph.inputs[P:])
    return graph.program(graph.include(function.trace(), [*graph.inputs[:P], *predicted]))


def complete_spec(spec: SequenceSpec, y: np.ndarray, name: str) -> SequenceSpec:
    """Return the content of a loss with its symmetries and bounds, after checks at targets y (N, P) and random fields.

    `name` is the function that messages refer to.
    """
    L, r, rng = spec.n_tokens, spec.rank, np.random.default_rng(6)
    z = rng.standard_normal((N_SYMMETRY, L, r))
    values, rotation = spec.evaluate(y, z), np.linalg.qr(rng.standard_normal((r, r)))[0]
    if not np.isfinite(values).all():
        needs = f"finite values at random fields; the entries of the targets are up to {np.abs(y).max():.3g}"
        raise check.fail(name, values, needs)
    for size in (1.0, 10.0, 100.0, 1000.0):  # standard deviations of the fields
        far = spec.evaluate(y, size * z)
        if (far < -1e-9).any():
            worst = int(np.nanargmin(far))
            got = f"{far[worst]:.6g} at z = {(size * z[worst]).round(3).tolist()}"
            remedy = "add a constant; without a lower bound, proximal problems have no minimum"
            raise ValueError(f"{name}: needs values of at least 0, got {got}; {remedy}")
    matrices = spec.derivatives(y, z)[2]
    eigenvalues = np.linalg.eigvalsh(matrices[np.isfinite(matrices).all(axis=(1, 2))]).reshape(-1, spec.n_fields)
    eigenvalues = eigenvalues if len(eigenvalues) else np.zeros((1, spec.n_fields))
    derivatives = differentiate_twice(spec.program, spec.n_targets)
    hessian = derivatives._replace(outputs=derivatives.outputs[1 + spec.n_fields :]).drop_unused()
    constant = "input" not in hessian.names and not spec.program.names & {"abs", "sign", "floor", "where"}
    lowest = float(eigenvalues.min()) if constant else -np.inf
    size = np.abs(eigenvalues).max() + 1
    if spec.convex and eigenvalues.min() < -TRACE_ERROR * size:
        got = f"an eigenvalue {eigenvalues.min():.3g} of its Hessian"
        raise ValueError(f"convex: needs to be False, got True for a loss with {got}")
    convex = spec.convex or (constant and lowest >= -1e-12 * size)
    return spec._replace(
        convex=convex,
        lowest_curvature=max(lowest, 0.0) if convex else lowest,
        even=are_equal(values, spec.evaluate(y, -z)),
        rotations=r > 1 and are_equal(values, spec.evaluate(y, z @ rotation)),
    )


@dataclass(frozen=True, eq=False)
class ValueLayer:
    """Attention layer with value matrices, as a function of the fields of a sample."""

    attention: DotProductAttention  # the map of a single head
    layout: HeadLayout  # columns of the weights
    readout: np.ndarray  # (H v, p) read-out R

    def __call__(self, z: Any, mixed: Callable[[Any, int], Any] = lambda weights, head: weights) -> list[Any]:
        """Return the outputs, L rows (p,), for fields z (L, r); `mixed` changes the attention weights of a head."""
        total: Any = 0.0
        for head in range(self.layout.heads):
            weights = mixed(self.attention(z[:, self.layout.scores(head).ravel()]), head)
            rows = slice(head * self.layout.values, (head + 1) * self.layout.values)
            total = total + weights @ (z[:, self.layout.value_columns(head)] @ self.readout[rows])
        return total


def _build_layer(
    student: Any, heads: int, rank: int, values: int, readout: np.ndarray, name: str = "rank"
) -> ValueLayer:
    """Return the layer of H heads with `rank` columns of scores and `values` columns of values each, after checks."""
    single = getattr(require_valid_attention("student", student), "single", None)
    if single is None:
        raise check.fail("student", student, "a DotProductAttention for a layer with value matrices", TypeError)
    if rank % single.parts:
        raise check.fail(name, rank, f"a multiple of {single.parts}, as queries and keys have separate columns")
    blocks = readout.reshape(heads, values, -1)
    kinds = tuple(next(k for k in range(h + 1) if np.array_equal(blocks[k], blocks[h])) for h in range(heads))
    return ValueLayer(single, HeadLayout(heads, single.parts, rank // single.parts, values, kinds), readout)


def value_model(
    n_tokens: int = 2,
    rank: int = 1,
    teacher_rank: int = 1,
    *,
    values: int = 1,
    readout: ArrayLike | None = None,
    heads: int | None = None,
    omega: float = 0.3,
    sigma: ArrayLike = 0.5,
    lam: float | str | Sequence[float | str] | None = None,
    A: ArrayLike | None = None,
    tau: ArrayLike | None = None,
    student: DotProductAttention | None = None,
    score_noise: float = 0.0,
    intercept: bool = False,
) -> SequenceModel:
    """Build the model of an attention layer whose heads have value matrices.

    The layer returns f(x) = Σ_h S_h[z] z_h R_h for fields z_h (L, v) of the values and a fixed read-out R. Its targets
    (L, p) are labels with the loss ½ ‖y − f(x)‖², so it is a sequence model. The teacher is a layer with the student's
    heads, values and read-out, and attention (1 − ω) S_h[u] + ω A + s N_h in head h, with white noise N_h (L, L).

    Parameters
    ----------
    n_tokens : number of tokens L.
    rank, teacher_rank : columns of the queries (and keys) of each head, of the student and of the teacher.
    values : columns v of the value matrix of each head. Only small layers can be compiled: with one head and v = 4, for
        example, 4 tokens and p = 20.
    readout : (H v, p) read-out R; if not given, the values of the heads are added, so that p = v.
    heads : number of heads H; one head, or the heads of `student`, if not given.
    omega, sigma, lam, A, tau, student, score_noise : as for `attention_model`.
    intercept : whether an intercept without a penalty is added to the fields of each column: the biases of queries,
        keys and values.

    Returns
    -------
    SequenceModel, whose columns are the scores of all heads, followed by their values.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if a size is below 1; `omega` is outside [0, 1]; `sigma` or `lam` is not positive; `score_noise` is
        negative; `A`, `tau` or `readout` has another shape; `heads` differs from the heads of `student`; or the layer
        is too large.

    Examples
    --------
    Two heads with value matrices of one column each:

    >>> import gamp_attention as ga
    >>> layer = ga.value_model(heads=2, values=1, readout=[[1.0, 0.0], [0.0, 1.0]])
    >>> layer.rank, layer.target_shape
    (4, (2, 2))
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    r, t = check.integer("rank", rank, low=1), check.integer("teacher_rank", teacher_rank, low=1)
    student = DotProductAttention() if student is None else student
    H, v = require_heads(heads, student), check.integer("values", values, low=1)
    check.require_memory("heads, values, rank", H * (r + v), H * (r + v))
    R = np.tile(np.eye(v), (H, 1)) if readout is None else np.array(check.array("readout", readout, (H * v, "p")))
    omega, noise = check.real("omega", omega, low=0, high=1), check.real("score_noise", score_noise, low=0)
    A = default_mixing(L) if A is None else check.array("A", A, (L, L))
    layer, taught = _build_layer(student, H, r, v, R), _build_layer(student, H, t, v, R, "teacher_rank")
    columns, p = layer.layout.rank, np.count_nonzero(R) / (H * v)  # outputs that each value enters
    if 2 * H * L**3 * (p + columns / H - v) * columns > MAX_OPERATIONS:  # at least 5 times fewer than are needed
        got = f"{L} tokens, {count_noun(H, 'head')} with {count_noun(v, 'value')}, {count_noun(R.shape[1], 'output')}"
        needs = "a small layer with value matrices, which is compiled as one function of all fields"
        raise check.fail_words("n_tokens, heads, values, readout", got, needs)
    model = sequence_model(
        partial(_teach_outputs, taught, omega, A, noise), layer, n_tokens=L, rank=columns,
        teacher_rank=taught.layout.rank, n_noise=H * L * L * (noise > 0), sigma=sigma, lam=lam, intercept=intercept,
    )  # fmt: skip
    loss = sequence_loss(model.student.spec._replace(layout=layer.layout))
    law = isotropic_law(L, taught.layout.rank, sigma, np.linspace(1, -1, L) * (L > 1) if tau is None else tau)
    return replace(model, student=loss, head=layer.attention, coordinates=law)


def _teach_outputs(layer: ValueLayer, omega: float, A: np.ndarray, s: float, u: Any, noise: Any) -> Any:
    """Return the outputs (L, p) of a teacher with fields u (L, t)."""
    white = s * noise.reshape(-1, *A.shape)  # no matrices without noise
    return layer(u, lambda weights, head: (1 - omega) * weights + omega * A + (white[head] if s else 0.0))
