"""Random problems for the property tests."""

import numpy as np
from hypothesis import assume, strategies as st

import gamp_attention as ga
from gamp_attention.problem.losses.attention import pack_attention_parameters, softmax_rows


@st.composite
def attention_maps(draw, most=4):
    """Draw (map, columns): tied or untied, causal or not, softmax or linear, with one or two columns per part."""
    tied = draw(st.booleans())
    student = ga.DotProductAttention(10 ** draw(st.floats(-0.3, 0.5)), tied, draw(st.booleans()), draw(st.booleans()))
    return student, min(most, draw(st.integers(1, 2)) * student.parts)


@st.composite
def instances(draw, max_d=60, max_fields=8):
    """Draw a dataset with random sizes, rank, ω, λ, σ, A and positions."""
    L, t = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    student, r = draw(attention_maps(most=2))
    assume(max_fields // r >= 2)  # the softmax of one score is constant
    L = min(L, max_fields // r)
    d = draw(st.integers(r, max_d))
    n = draw(st.integers(1, 2 * d + 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    model = ga.attention_model(
        L,
        r,
        t,
        omega=draw(st.floats(0, 1)),
        sigma=draw(st.floats(0.1, 2.0)),
        lam=10 ** draw(st.floats(-3, 1)),
        A=rng.uniform(-1, 1, (L, L)) if draw(st.booleans()) else None,
        tau=rng.normal(size=L) if draw(st.booleans()) else None,
        student=student,
    )
    return ga.sample(model, d, n / d, rng)


@st.composite
def proximal_problems(draw, n=4):
    """Draw (loss, params, ω, V): a few proximal problems with one V between 1e-2 and 1e2."""
    L = draw(st.integers(2, 4))
    student, r = draw(attention_maps())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.floats(0, 1))
    u = rng.normal(size=(n, L, 1)) * draw(st.floats(0.1, 2))
    T = (1 - share) * softmax_rows(u @ np.swapaxes(u, 1, 2)) + share * rng.dirichlet(np.ones(L), L)
    size = draw(st.floats(0.1, 1.5))
    if draw(st.booleans()):  # exact risk: G is the Gram matrix of the tokens
        x = size * rng.normal(size=(n, L, 30))
        G = x @ x.transpose(0, 2, 1) / 30
        params = pack_attention_parameters(G, G @ T.transpose(0, 2, 1))
    else:
        rho = size**2 * np.ones(L)
        params = pack_attention_parameters(np.diag(rho)[None], rho[:, None] * T.transpose(0, 2, 1))
    root = rng.normal(size=(L, r, r)) * 0.3 + np.eye(r)
    V = 10 ** draw(st.floats(-2, 2)) * (root @ root.transpose(0, 2, 1) + 0.1 * np.eye(r))
    V /= np.abs(V).max() / min(np.abs(V).max(), 100)
    omega = draw(st.floats(0, 2)) * rng.normal(size=(n, L, r))
    return ga.AttentionLoss(student, L, r), params, omega, V
