"""Fixed columns of attention layers without value matrices: minima against torch and scipy, and theory at finite d."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import gamp_attention as ga

LAM, D = 0.02, 40
UNTIED = ga.DotProductAttention(tied=False)
STUDENTS = {
    "tied": (ga.DotProductAttention(), 2),
    "keys": (ga.DotProductAttention(temperature=0.5, tied=False, causal=True), 2),
    "heads": (ga.MultiHeadAttention(2), 1),
}


def build_layer(student=UNTIED, rank=2, **options):
    return ga.attention_model(rank=rank, teacher_rank=2, student=student, lam=LAM, **options)


def attend(name, z):
    """Attention of a student (n, L, L) in torch, without code of the package."""
    first, second = z[:, :, :1], z[:, :, 1:]
    if name == "tied":
        return torch.softmax(z @ z.transpose(1, 2), dim=-1)
    if name == "heads":
        return sum(torch.softmax(q @ q.transpose(1, 2), dim=-1) for q in (first, second)) / 2
    scores = first @ second.transpose(1, 2) / 0.5
    return torch.softmax(scores.masked_fill(torch.ones(scores.shape[1:]).triu(1) > 0, -torch.inf), dim=-1)


def risk_of_free_column(data, name, risk, fixed, values):
    """Training risk and its gradient in the free column, from tokens and outputs, without code of the package."""
    x, positions = torch.as_tensor(np.array(data.tokens)), torch.as_tensor(data.positions)
    targets = None if data.targets is None else torch.as_tensor(data.targets)
    y = torch.as_tensor(np.array(data.outputs))
    weights = torch.ones(len(x)) if data.sample_weight is None else torch.as_tensor(data.sample_weight)

    def value_and_slope(free):
        column = torch.tensor(free, requires_grad=True)
        columns = [column, torch.as_tensor(values)]
        S = attend(name, (x + positions) @ torch.stack(columns if fixed else columns[::-1], dim=1) / D**0.5)
        if risk == "exact":
            losses = 0.5 * ((y - S @ (x + positions)) ** 2).sum((1, 2)) / D
        else:
            losses = 0.5 * 0.25 * ((targets - S) ** 2).sum((1, 2))
        value = (weights * losses).sum() + 0.5 * LAM * (column**2).sum()
        value.backward()
        return float(value.detach()), column.grad.numpy()

    return value_and_slope


@pytest.mark.parametrize(
    ("name", "risk", "fixed"),
    [("tied", "exact", 1), ("keys", "exact", 0), ("keys", "asymptotic", 1), ("heads", "exact", 1)],
)
def test_minimum_of_the_free_column(name, risk, fixed):
    student, rank = STUDENTS[name]
    data = ga.sample(build_layer(student, rank), d=D, alpha=3.0, seed=1)
    full = ga.run_gamp(data, data.Q_star, risk=risk, tol=1e-10)
    assert full.converged
    values, free = full.Q[:, fixed], full.Q[:, 1 - fixed]
    known = ga.fix_columns(data, {fixed: values}, risk=risk)
    start = free + 0.1 * np.random.default_rng(0).standard_normal(D)
    gamp = ga.run_gamp(known, start[:, None], tol=1e-10)
    assert gamp.converged
    # if a column is fixed at a minimum of the full risk, the other column has its minimum there as well
    np.testing.assert_allclose(gamp.Q[:, 0], free, atol=1e-6)
    function = risk_of_free_column(data, name, risk, fixed, values)
    value, slope = function(gamp.Q[:, 0])
    assert value / D == pytest.approx(gamp.train_loss, rel=1e-9)
    assert np.linalg.norm(slope) < 1e-8 * np.sqrt(D)
    end = minimize(function, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-10, "ftol": 0, "maxiter": 2000})
    assert end.fun == pytest.approx(value, rel=1e-9)
    # another value of the fixed column leads to another minimum, at which the risk has no slope either
    other = data.Q_star[:, fixed]
    moved = ga.run_gamp(ga.fix_columns(data, {fixed: other}, risk=risk), start[:, None], tol=1e-10)
    assert moved.converged
    assert np.linalg.norm(risk_of_free_column(data, name, risk, fixed, other)(moved.Q[:, 0])[1]) < 1e-8 * np.sqrt(D)
    assert np.abs(moved.Q[:, 0] - free).max() > 0.01


def test_queries_of_linear_attention_with_fixed_keys_are_a_ridge_solution():
    linear = ga.DotProductAttention(tied=False, softmax=False)
    data = ga.sample(build_layer(linear), d=D, alpha=2.0, seed=0)
    keys = data.Q_star[:, 1]
    gamp = ga.run_gamp(ga.fix_columns(data, {1: keys}, convex=True), "random", tol=1e-10)
    assert gamp.converged
    x = np.array(data.tokens) + data.positions
    k = x @ keys / np.sqrt(D)
    # outputs (x_i·q/√d) Σ_j k_j x_j are linear in the queries q
    features = np.einsum("nia,nj,njb->niba", x, k, x).reshape(-1, D) / np.sqrt(D)
    outputs = np.array(data.outputs).reshape(-1)
    ridge = np.linalg.solve(features.T @ features / D + LAM * np.eye(D), features.T @ outputs / D)
    np.testing.assert_allclose(gamp.Q[:, 0], ridge, atol=1e-7)


def test_columns_that_may_be_rotated_into_each_other():
    tied = ga.fix_columns(build_layer(ga.DotProductAttention(), 3), {2: [0.0, 1.0]})
    assert tied.student.rotations
    assert tied.rank == 2
    half = ga.fix_columns(build_layer(UNTIED, 4), {0: [1.0, 0.0]})
    assert not half.student.rotations
    for student, rank in [(UNTIED, 6), (ga.MultiHeadAttention(2), 2)]:
        with pytest.raises(ValueError, match=r"^columns: needs at most one column of the scores of each head free"):
            ga.fix_columns(build_layer(student, rank), {0: [1.0, 0.0]})
