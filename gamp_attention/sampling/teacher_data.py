"""Datasets whose outputs or labels come from a teacher."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gamp_attention.problem.dataset import Dataset, LabelledDataset, attention_terms, token_moments
from gamp_attention.problem.losses.attention import RiskTerms, asymptotic_terms
from gamp_attention.problem.passes import TokenMatrix
from gamp_attention.problem.penalties.standard import InterceptPenalty
from gamp_attention.problem.sources import Sources, by_group
from gamp_attention.problem.stores import join_parts, token_blocks
from gamp_attention.theory.models.model import Model


def teacher_dataset(
    model: Model,
    tokens: np.ndarray,
    positions: np.ndarray,
    Q_star: np.ndarray,
    spectra: np.ndarray,
    sources: Sources | None = None,
    noise: np.ndarray | None = None,
) -> Dataset:
    """Return samples with the outputs y = (T[xQ*/√d] + noise) x of a teacher, which are computed on request."""
    data = Dataset.__new__(Dataset)
    sources = Sources.plain(positions, len(tokens)) if sources is None else sources
    data.describe(tokens, sources, model.penalty, model.rank, spectra, model.student)
    targets, exact = _compute_targets(data.matrix, model.teacher, Q_star, noise)
    risks = {"exact": exact, "asymptotic": asymptotic_terms(targets, data.traces)}
    return data.copy_with(_risks=risks, targets=targets, Q_star=Q_star, model=model)


def _compute_targets(
    matrix: TokenMatrix, teacher: Callable[[np.ndarray], np.ndarray], Q_star: np.ndarray, noise: np.ndarray | None
) -> tuple[np.ndarray, RiskTerms]:
    """Return targets T[xQ*/√d] + noise (n, L, L), and the terms of the exact risk for y = targets · x, without y."""
    (tokens, positions), parts = matrix, []
    for rows, _, x in token_blocks(tokens):
        T = teacher(TokenMatrix(x, np.zeros_like(positions)).fields(Q_star))
        T = T if noise is None else T + noise[rows]
        xx, xp = token_moments(x, positions)
        M = (xx + xp.transpose(0, 2, 1)) @ T.transpose(0, 2, 1)
        parts.append((T, *attention_terms(positions, xx, xp, M, np.einsum("nij,njk,nik->n", T, xx, T))))
    targets, params, constant = map(join_parts, zip(*parts, strict=True))
    return targets, RiskTerms(params, constant)


def label_dataset(
    model: Model,
    tokens: np.ndarray,
    sources: Sources,
    Q_star: np.ndarray,
    spectra: np.ndarray,
    rng: np.random.Generator,
) -> Dataset:
    """Return samples with the labels of a teacher."""
    positions, means, groups = sources
    fields = TokenMatrix(tokens, np.zeros_like(positions)).fields(Q_star)
    noise = rng.standard_normal((len(tokens), model.task.n_noise))
    labels = by_group(groups, lambda rows, of: model.task_of(of).terms(fields[rows], noise[rows]).params)
    penalty = InterceptPenalty(model.penalty) if model.intercept else model.penalty
    first = spectra[model.classes.first]  # of the tokens in their first class
    data = LabelledDataset(
        tokens, labels, model.student, rank=model.rank, positions=positions, spectra=first, penalty=penalty
    )
    return data.copy_with(Q_star=Q_star, model=model, source_means=means, groups=groups, spectra=spectra)
