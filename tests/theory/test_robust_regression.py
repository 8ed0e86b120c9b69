"""State evolution and message passing of Huber's and Tukey's loss with outliers, against integrals in one dimension."""

import numpy as np
import pytest

import gamp_attention as ga
from validation._tools.robust import Huber, Tukey, build_model, estimation_error, solve_scalar


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("loss", [Tukey(2.0), Huber(1.0)])
def test_state_evolution_equals_integrals_in_one_dimension(loss):
    theory = ga.solve_state_evolution(build_model(loss, 1.0), 5.0, "semantic", rtol=1e-2, stability=False)
    scalar = solve_scalar(loss, 1.0, 5.0)
    assert theory.converged
    assert estimation_error(theory.overlaps) == pytest.approx(scalar.error, rel=1e-3)
    assert theory.overlaps.V[0, 0, 0] == pytest.approx(scalar.V, rel=1e-3)
    errors = []
    for seed in range(4):
        data = ga.sample(build_model(loss, 1.0), 300, 5.0, seed=seed)
        run = ga.run_gamp(data, "random")
        assert run.converged
        errors.append(np.sum((run.Q - data.Q_star) ** 2) / 300)
    assert abs(np.mean(errors) - scalar.error) < 4 * np.std(errors, ddof=1) / 2 + scalar.error / 300


@pytest.mark.slow
@pytest.mark.parametrize(("lam", "word"), [(1.0, "consistent"), (0.05, "inconsistent")])
def test_validity_of_a_redescending_loss(lam, word):
    theory = ga.solve_state_evolution(build_model(Tukey(1.0), lam), 3.0, "semantic", rtol=1e-2)
    replicon = solve_scalar(Tukey(1.0), lam, 3.0).replicon
    assert (replicon < 1) == (word == "consistent")
    assert theory.validity.startswith(word)
    assert f"{replicon:.2f}"[:4] in theory.validity
