"""Losses of sequence multi-index models: functions of a target and of fields that were traced from plain Python.

A `SequenceLoss` is a registered loss (`gamp_attention.problem.losses.point`) whose class is made for one traced
function. The class contains the function as a `Program`. Its derivatives follow by differentiation of the program, and
numba receives both as machine instructions (`gamp_attention.extensions.sequence.expressions`). The name of the class
contains a hash of all of its content, so that compiled code which is stored on disk is found by every process that
traces the same function.
"""

import sys
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from gamp_attention._kernels.compiled import inline_kernel
from gamp_attention._tools import check
from gamp_attention._tools.numerics import hash_bytes
from gamp_attention.extensions.sequence.expressions import Graph, Program, emit, evaluate_rows
from gamp_attention.problem.losses.attention import HeadLayout
from gamp_attention.problem.losses.point import LOSSES

MAX_OPERATIONS = 100_000  # maximum number of operations of a Hessian, which would take minutes to compile


class SequenceSpec(NamedTuple):
    """Content of a `SequenceLoss`: plain data, which identifies its class in all processes."""

    # the loss as a function of the entries of the target, followed by the L r fields in row-major order
    program: Program
    target_shape: tuple[int, ...]  # shape of a target
    # n_tokens, rank: shape (L, r) of the fields
    n_tokens: int
    rank: int
    lowest_curvature: float  # lower bound of the eigenvalues of the Hessian; −inf if none is known
    convex: bool  # True if the loss is a convex function of the fields
    # even, rotations: True if ℓ(−z) = ℓ(z), and if ℓ(zO) = ℓ(z) for all orthogonal O
    even: bool
    rotations: bool
    layout: HeadLayout | None = None  # columns of a layer with heads and value matrices; None for any other function

    @property
    def n_targets(self) -> int:
        """Number of entries of a target."""
        return prod(self.target_shape)

    @property
    def n_fields(self) -> int:
        """Number of fields L r."""
        return self.n_tokens * self.rank

    def evaluate(self, targets: np.ndarray, fields: np.ndarray) -> np.ndarray:
        """Return losses (N,) for targets (N, P) and fields (N, L, r), without compiled code."""
        return evaluate_rows(self.program, np.concatenate([targets, fields.reshape(len(fields), -1)], axis=1))[:, 0]

    def derivatives(self, targets: np.ndarray, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return losses (N,), gradients (N, k) and Hessians (N, k, k), without compiled code."""
        n, k = len(fields), self.n_fields
        inputs = np.concatenate([targets, fields.reshape(n, k)], axis=1)
        rows = evaluate_rows(differentiate_twice(self.program, self.n_targets), inputs)
        hessian, (i, j) = np.empty((n, k, k)), np.tril_indices(k)
        hessian[:, i, j] = hessian[:, j, i] = rows[:, 1 + k :]
        return rows[:, 0], rows[:, 1 : 1 + k], hessian


@lru_cache(maxsize=8)
def differentiate_twice(program: Program, n_targets: int) -> Program:
    """Return the program of value, gradient (k,) and lower triangle of the Hessian, row by row, in the last inputs.

    Raises
    ------
    ValueError : if the Hessian needs more than `MAX_OPERATIONS` operations.
    """
    graph = Graph(program.n_inputs)
    (value,) = graph.include(program, graph.inputs)
    fields = range(n_targets, program.n_inputs)
    gradient = [graph.derivative(value, i) for i in fields]
    hessian = []
    for slope, i in zip(gradient, fields, strict=True):
        hessian += [graph.derivative(slope, j) for j in range(n_targets, i + 1)]
        if len(graph.code) > MAX_OPERATIONS:
            needs = f"second derivatives of the loss that take at most {MAX_OPERATIONS} operations"
            remedy = "reduce n_tokens, the number of columns or the number of entries of a target"
            raise ValueError(f"student: needs {needs}, got more for L r = {len(fields)} fields; {remedy}")
    return graph.program([value, *gradient, *hessian])


class SequenceLoss(NamedTuple):
    """Loss of a sequence multi-index model, made by `sequence_model`; base of one class for each traced function."""

    lowest_curvature: float = -np.inf  # lower bound of the eigenvalues of the Hessian
    spec = None  # type: ignore[misc]

    def value(self, p, z):
        """Return ℓ. Compiled code."""
        return _value(self, p, z)  # type: ignore[call-arg]

    def derivatives(self, p, z, grad, hess):
        """Return ℓ and fill its gradient and Hessian. Compiled code."""
        return _derivatives(self, p, z, grad, hess)  # type: ignore[call-arg]

    def floor(self, p):
        """Return a lower bound of ℓ. Compiled code."""
        return 0.0

    def curvature(self, p, n_fields, radius):
        """Return a lower bound of the eigenvalues of the Hessian. Compiled code."""
        return self.lowest_curvature

    def read_targets(self, labels: Any, n_samples: int, n_tokens: int, rank: int) -> np.ndarray:
        """Return targets (n, P), from rows (n, P) or an array (n, ...) in the shape of the targets.

        Raises
        ------
        TypeError : if the targets are not real numbers.
        ValueError : if they have another shape, if the loss is for other numbers of tokens and columns, or if the loss
            is not finite at random fields.
        """
        spec: Any = self.spec
        if (n_tokens, rank) != (spec.n_tokens, spec.rank):
            needs = f"the loss's shape of fields (L, r) = {(spec.n_tokens, spec.rank)}"
            raise check.fail_words("loss", f"(L, r) = {(n_tokens, rank)}", needs)
        if check.ndim("labels", labels) == 1 + len(spec.target_shape) != 2:
            given = check.array("labels", labels, (n_samples, *spec.target_shape))
            labels = given.reshape(n_samples, spec.n_targets)
        rows = np.ascontiguousarray(check.array("labels", labels, (n_samples, spec.n_targets)))
        fields = np.random.default_rng(0).standard_normal((min(len(rows), 5), n_tokens, rank))
        values = spec.evaluate(rows[: len(fields)], fields)
        if not np.isfinite(values).all():
            raise check.fail("loss", values, "finite values for the first samples and random fields")
        return rows

    def head_layout(self, rank: int) -> HeadLayout | None:
        """Return the columns of the heads if the function is a layer with heads; None for any other function."""
        return None if self.spec is None else self.spec.layout

    def torch(self, p: Any, z: Any) -> Any:
        """Return ℓ (n,) for tensors p (n, P) and z (n, L, r), with the gradient of the traced function."""
        import torch

        inputs = torch.cat([p, z.flatten(1)], dim=1).numpy(force=True)
        rows = torch.as_tensor(evaluate_rows(_value_and_gradient(self.spec), inputs)).to(z)
        linear = (rows[:, 1:].reshape(z.shape) * z).sum((1, 2))
        return rows[:, 0] + (linear - linear.detach())

    def _summary(self) -> str:
        """Return the sizes of the loss; its name, which identifies its class, contains a hash."""
        spec = self.spec
        return f"SequenceLoss(n_tokens={spec.n_tokens}, rank={spec.rank}, target_shape={spec.target_shape})"

    def __reduce__(self) -> Any:
        return (sequence_loss, (self.spec,)) if self.spec is not None else (SequenceLoss, tuple(self))


LOSSES.add(SequenceLoss, inline_kernel)


@cache
def _value_and_gradient(spec: SequenceSpec) -> Program:
    """Return the program of a loss and its gradient."""
    program = differentiate_twice(spec.program, spec.n_targets)
    return program._replace(outputs=program.outputs[: 1 + spec.n_fields]).drop_unused()


@cache
def sequence_loss(spec: SequenceSpec) -> SequenceLoss:
    """Return the loss of a traced function; the class is made once for each content."""
    name = f"SequenceLoss_{hash_bytes(repr(spec).encode())}"
    traits = {"convex": spec.convex, "even": spec.even, "rotations": spec.rotations}
    cls = type(name, (SequenceLoss,), {"__module__": __name__, "__slots__": (), "spec": spec, **traits})
    setattr(sys.modules[__name__], name, cls)  # stored code refers to the class by its name
    return cls(spec.lowest_curvature)


def _emitter(program: Program, spec: SequenceSpec) -> Any:
    """Return a code generator of a function(loss, p, z, *outputs), with a gradient and Hessian as outputs or none.

    It fills the outputs with the results of a program, and returns the loss.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args[1:]
        arrays = [context.make_array(kind)(context, builder, a) for kind, a in zip(kinds, arguments[1:], strict=True)]

        def place(number: int, *indices: Any) -> Any:
            kind, view, numbers = kinds[number], arrays[number], [context.get_constant(types.intp, i) for i in indices]
            return cgutils.get_item_pointer(context, builder, kind, view, numbers, wraparound=False, boundscheck=False)

        L, r, k = spec.n_tokens, spec.rank, spec.n_fields
        entries = [place(0, i) for i in range(spec.n_targets)] + [place(1, l, a) for l in range(L) for a in range(r)]
        value, *others = emit(context, builder, program, [builder.load(entry) for entry in entries])
        for i, slope in enumerate(others[:k]):
            builder.store(slope, place(2, i))
        for entry, row, column in zip(others[k:], *np.tril_indices(k), strict=bool(others)):
            builder.store(entry, place(3, row, column))
            builder.store(entry, place(3, column, row))
        return value

    return generate


@intrinsic
def _value(typing_context: Any, loss: Any, p: Any, z: Any) -> Any:
    """Return the loss."""
    spec = loss.instance_class.spec
    return types.float64(loss, p, z), _emitter(spec.program, spec)


@intrinsic
def _derivatives(typing_context: Any, loss: Any, p: Any, z: Any, grad: Any, hess: Any) -> Any:
    """Return the loss, and fill its gradient and Hessian."""
    spec = loss.instance_class.spec
    return types.float64(loss, p, z, grad, hess), _emitter(differentiate_twice(spec.program, spec.n_targets), spec)
