"""Columns of Q that are held fixed at given values, for sequence models, attention layers and their data.

A fixed column enters the loss only through its fields (x + p) Q_a/√d, which are known numbers of each sample. They are
appended to the targets, and the loss becomes a function of the fields of the other columns. The result is a problem
with fewer columns for which every solver works without changes, because a fixed column has no force, no response and no
variance. In theory a fixed column is a combination of the teacher's columns and of independent Gaussian columns, so
that its fields are jointly Gaussian with the fields of the teacher and of the other columns. The independent columns
are columns of the teacher that the targets do not depend on:

    Q_a = Σ_c C_ca Q*_c,   (y, u C) are the targets,   ℓ(y, u C; z) is the loss of the free fields z

Attention layers without value matrices are sequence models, too (`gamp_attention.extensions.sequence.value_layers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.choices import RISKS
from gamp_attention.extensions.sequence.expressions import Graph, Program
from gamp_attention.extensions.sequence.sequence import SequenceModel, complete_spec, probe_targets
from gamp_attention.extensions.sequence.sequence_labels import N_SYMMETRY, LabelsOfClasses, SequenceLabels
from gamp_attention.extensions.sequence.sequence_loss import SequenceLoss, SequenceSpec, sequence_loss
from gamp_attention.extensions.sequence.value_layers import (
    attention_as_sequence,
    attention_loss,
    is_traceable,
    sequence_targets,
)
from gamp_attention.problem.dataset import Dataset, LabelledDataset
from gamp_attention.problem.penalties.columns import ColumnRidge
from gamp_attention.problem.penalties.standard import InterceptPenalty
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.model import Model


def fix_columns(
    problem: Model | Dataset, columns: Mapping[int, ArrayLike], *, convex: bool | None = None, risk: str = "exact"
) -> Any:
    """Hold columns of Q fixed at given values and return the problem of the other columns, in their order.

    Parameters
    ----------
    problem : a model of `sequence_model` or `attention_model`, or samples with the loss of such a model. Attention
        layers without value matrices need a `DotProductAttention` or `MultiHeadAttention`.
    columns : values of each fixed column, by its index in Q. For samples, an array (d,). For a model, an array (t + k,)
        of coefficients: the column is the sum of the t columns of the teacher and of k independent columns with
        standard normal entries, times these numbers. k ≥ 0 is the same for all fixed columns.
    convex : whether the loss is a convex function of the fields of the other columns. By default, it is if the loss is
        a convex function of all fields.
    risk : "exact" or "asymptotic", the risk of samples of an attention layer without value matrices; its loss
        parameters become targets. Models have the asymptotic risk, and other samples a single risk.

    Returns
    -------
    SequenceModel or LabelledDataset, of r − f columns for f fixed columns. Targets (n, P + L f) are the entries of the
        targets of `problem`, followed by the fields of the fixed columns, token by token. Their penalty is left out, as
        it is constant. In a model, the fields of fixed columns are xQ_a/√d without positions, whose projections vanish
        for large d. The teacher of the model has t + k columns: first the columns with the index of a free column, then
        its other columns and the independent columns. For attention layers without value matrices, the targets of
        `problem` are the loss parameters G, M and the constant of its risk, 2 L² + 1 numbers, and the test error is the
        mean loss ½ Tr[(S − T) ρ (S − T)ᵀ] of a new sample.

    Raises
    ------
    TypeError : if `problem` is not of these kinds, for example a mixture of attention layers; or `columns` is not a
        dictionary of arrays, or `risk` not a string.
    ValueError : if `columns` is empty or fixes all columns, an index is not in 0 to r − 1, an array has another length
        or is not finite, `convex` is wrong, `risk` is unknown or not known for the samples, or free columns of scores
        of an attention layer with heads, keys or values may be rotated into each other.

    Examples
    --------
    A gate whose direction is known, and the regression behind it:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> gate = lambda z: z[0, 0] * np.tanh(z[0, 1])
    >>> model = ga.sequence_model(lambda u, noise: gate(u), gate, n_tokens=1, rank=2, lam=0.1)
    >>> known = ga.fix_columns(model, {1: [0.0, 1.0]}, convex=True)
    >>> data = ga.sample(known, d=50, alpha=4.0, seed=0)
    >>> gamp = ga.run_gamp(data, "random")
    >>> known.rank, data.targets.shape, gamp.converged
    (1, (200, 2), True)
    """
    check.choice("risk", risk, RISKS)
    if type(problem) is Model and is_traceable(problem.student):
        problem = attention_as_sequence(problem)
    elif type(problem) is Dataset and is_traceable(problem.student):
        problem = _with_sequence_loss(problem, risk)
    if isinstance(problem, SequenceModel):
        fixed, values = _require_columns(columns, problem.rank, "(t + k,)")
        if convex is not None:
            check.flag("convex", convex)
        return _fix_in_model(problem, fixed, values, convex)
    if not isinstance(problem, LabelledDataset) or not isinstance(problem.student, SequenceLoss):
        needs = (
            "a model of sequence_model or attention_model with dot products and no classes, or samples with its loss"
        )
        name = type(problem).__name__ if isinstance(problem, Dataset | Model) else problem
        raise check.fail("problem", name, needs, TypeError)
    fixed, values = _require_columns(columns, problem.rank, "(d,)")
    if convex is not None:
        check.flag("convex", convex)
    return _fix_in_data(problem, fixed, values, convex)


def _with_sequence_loss(data: Dataset, risk: str) -> Dataset:
    """Return samples of an attention layer with the parameters of a risk as their targets."""
    targets, weights = sequence_targets(data.terms(risk)), data.sample_weight
    if weights is not None:  # parameters of the exact risk contain them
        targets = targets / weights[:, None]
    return _with_targets(data, targets, attention_loss(data.student, data.n_tokens, data.rank), data.penalty)


def _require_columns(columns: Any, rank: int, shape: str) -> tuple[list[int], np.ndarray]:
    """Return the indices of fixed columns in ascending order, and their values (N, f)."""
    if not isinstance(columns, Mapping):
        raise check.fail("columns", columns, f"a dictionary of arrays {shape} by index of the column", TypeError)
    fixed = sorted(check.integer("columns", index, low=0, high=rank - 1) for index in columns)
    if not 0 < len(fixed) < rank:
        raise check.fail("columns", fixed, f"at least one of the {rank} columns, and not all of them")
    arrays = [check.array(f"columns[{index}]", columns[index], ("N",)) for index in fixed]
    if len({len(array) for array in arrays}) > 1:
        raise check.fail("columns", [len(array) for array in arrays], "arrays of one length")
    return fixed, np.stack(arrays, axis=1)


def _fix_in_model(model: SequenceModel, fixed: list[int], values: np.ndarray, convex: bool | None) -> SequenceModel:
    """Return the model of the free columns, for coefficients `values` (t + k, f)."""
    t, L = model.teacher_rank, model.n_tokens
    if len(values) < t:
        raise check.fail(f"columns[{fixed[0]}]", len(values), f"at least {t} numbers, one for each teacher column")
    free = [a for a in range(model.rank) if a not in fixed]
    first = [a for a in free if a < t]
    order = first + [c for c in range(len(values)) if c not in first]
    of_class = model.teacher.of_class if hasattr(model.teacher, "of_class") else (model.teacher,)
    labels = tuple(_extend_labels(teacher, L, t, order, values) for teacher in of_class)
    spec = _fixed_spec(model.student.spec, fixed, convex, probe_targets(labels, L, len(values)))
    return replace(
        model, teacher=LabelsOfClasses(labels) if model.is_mixture else labels[0],
        coordinates=_extend_law(model.coordinates, order), penalty=_without(model.penalty, fixed), rank=len(free),
        student=sequence_loss(spec), prediction=None, head=None, fixed_columns=model.fixed_columns + tuple(fixed),
    )  # fmt: skip


def _fix_in_data(data: LabelledDataset, fixed: list[int], values: np.ndarray, convex: bool | None) -> Dataset:
    """Return samples with the loss of the free columns, for values (d, f) of the fixed columns."""
    if len(values) != data.dim:
        raise check.fail(f"columns[{fixed[0]}]", len(values), f"an array of d = {data.dim} numbers")
    assert data.labels is not None
    known = data.matrix.fields(values).reshape(data.n_samples, -1)
    rows = np.concatenate([data.labels, known], axis=1)
    probes = rows[np.arange(N_SYMMETRY) % len(rows)]
    spec = _fixed_spec(data.student.spec, fixed, convex, probes)
    return _with_targets(data, rows, sequence_loss(spec), _without(data.penalty, fixed))


def _with_targets(data: Dataset, rows: np.ndarray, loss: SequenceLoss, penalty: Any) -> Dataset:
    """Return the same samples and teacher with targets (n, P) of another loss."""
    other = LabelledDataset(
        data.tokens, rows, loss, rank=loss.spec.rank, positions=data.positions, spectra=data.spectra[: data.n_tokens],
        penalty=penalty, sample_weight=data.sample_weight,
    )  # fmt: skip
    changes = {"source_means": data.source_means, "groups": data.groups, "spectra": data.spectra}
    return other.copy_with(Q_star=data.Q_star, **(changes if data.is_mixture else {}))


def _fixed_spec(spec: SequenceSpec, fixed: list[int], convex: bool | None, targets: np.ndarray) -> SequenceSpec:
    """Return the loss as a function of targets (N, P + L f) and of the free fields, with its symmetries and bounds."""
    L, P, f = spec.n_tokens, spec.n_targets, len(fixed)
    layout, free = spec.layout, [a for a in range(spec.rank) if a not in fixed]
    if layout is not None and layout.size > 1:
        for head in range(layout.heads):
            left = np.count_nonzero(~np.isin(layout.scores(head), fixed).any(axis=0))
            # if all free columns may be rotated into each other, `complete_spec` finds it, and solvers consider it
            if left > 1 and (layout.values or left < len(free)):
                needs = "at most one column of the scores of each head free, or pair of query and key, as several may "
                raise check.fail("columns", fixed, needs + "be rotated into each other")
    graph = Graph(P + L * spec.rank)
    places = []
    for l in range(L):
        for a in range(spec.rank):
            place = P + l * f + fixed.index(a) if a in fixed else P + L * f + l * len(free) + free.index(a)
            places.append(graph.inputs[place])
    program = graph.program(graph.include(spec.program, [*graph.inputs[:P], *places]))
    is_convex = spec.convex if convex is None else convex
    reduced = SequenceSpec(program, (P + L * f,), L, len(free), -np.inf, is_convex, False, False)
    return complete_spec(reduced, targets, "problem")


def _extend_labels(labels: SequenceLabels, L: int, t: int, order: list[int], values: np.ndarray) -> SequenceLabels:
    """Return the label model that appends the fields of the fixed columns (t + k, f) to the targets.

    `order` are the original indices of the columns of the extended teacher.
    """
    T, count = len(order), labels.count
    columns = np.argsort(order)
    shape = (int(np.prod(labels.target_shape, dtype=int)) + L * values.shape[1],)
    if labels.program is None:

        def extended(u: np.ndarray, noise: np.ndarray) -> np.ndarray:
            fields = u[:, columns]
            return np.concatenate([labels(fields[None, :, :t], noise[None])[0], (fields @ values).ravel()])

        return SequenceLabels(extended, shape, L * T, count, False)
    return SequenceLabels(None, shape, L * T, count, False, _extend_program(labels.program, L, t, columns, values))


def _extend_program(program: Program, L: int, t: int, columns: np.ndarray, values: np.ndarray) -> Program:
    """Return the program of the targets and of the fields of the fixed columns, see `_extend_labels`."""
    T = len(columns)
    graph = Graph(program.n_inputs + L * (T - t))
    u = [[graph.inputs[l * T + columns[c]] for c in range(T)] for l in range(L)]
    outputs = graph.include(program, [u[l][c] for l in range(L) for c in range(t)] + graph.inputs[L * T :])
    for l in range(L):
        for coefficients in values.T:
            total = graph.constant(0.0)
            for field, coefficient in zip(u[l], coefficients, strict=True):
                total = graph.apply("add", total, graph.apply("mul", graph.constant(coefficient), field))
            outputs = [*outputs, total]
    return graph.program(outputs)


def _extend_law(law: CoordinateLaw, order: list[int]) -> CoordinateLaw:
    """Return the distribution with independent standard normal columns of the teacher, in the given order."""
    K, t = law.teacher_mean.shape
    mean, cov = np.zeros((K, len(order))), np.tile(np.eye(len(order)), (K, 1, 1))
    mean[:, :t], cov[:, :t, :t] = law.teacher_mean, law.teacher_cov
    spikes = None
    if law.spikes is not None:
        spikes = np.concatenate([law.spikes, np.zeros((len(law.spikes), len(order) - t))], axis=1)[:, order]
    return replace(law, teacher_mean=mean[:, order], teacher_cov=cov[:, order][:, :, order], spikes=spikes)


def _without(penalty: Any, fixed: list[int]) -> Any:
    """Return the penalty of the free columns."""
    if penalty.intercept:
        return InterceptPenalty(_without(penalty.penalty, fixed))
    if not penalty.by_column:
        return penalty
    return ColumnRidge(tuple(value for a, value in enumerate(penalty.lams) if a not in fixed))
