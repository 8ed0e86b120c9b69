"""Branches near their ends: no convergence on a lost branch, a description of the end, and few steps."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import assert_solutions_agree

# ω, σ, λ, A, α at which jumps end the positional branch of Stein's form, and minima at finite d have m = 0.20 to 0.22
JUMPS = ga.paper_model(0.4429, sigma=0.4544, lam=0.0033, A=[[0.983, 0.761], [0.334, 0.300]]), 1.406
NOISY = ga.paper_model(0.37, sigma=0.63, lam=0.004, A=[[0.7, 0.3], [0.8, 0.2]], score_noise=0.05), 1.23


@pytest.mark.slow
def test_a_branch_whose_overlap_is_noise_does_not_converge():
    """Newton's method on few random points finds a small θ, which is noise; no error is stated of it."""
    model, alpha = NOISY
    se = ga.solve_state_evolution(model, alpha, rtol=2e-2, max_work=1.2e4, stability=False)
    assert not se.converged
    assert not se.consistent
    assert not np.isfinite(se.overlaps_error.theta).any()


@pytest.mark.slow
def test_message_states_that_jumps_end_the_branch():
    model, alpha = JUMPS
    se = ga.solve_state_evolution(model, alpha, "positional", rtol=1e-2, stability=False)
    assert se.status is ga.Status.LOST
    assert se.replicon < 1
    assert "jumps where the branch is lost" in se.validity


@pytest.mark.slow
def test_minima_at_finite_d_have_the_branch_that_jumps_end():
    """Minima of the branch that jumps end have the m of the derivative form within 10 %."""
    model, alpha = JUMPS
    run = ga.run_gamp(ga.sample(model, 500, alpha, seed=0), "positional", "asymptotic", tol=1e-6)
    assert run.converged
    other = ga.solve_state_evolution(model, alpha, "positional", response="derivative", rtol=1e-2, stability=False)
    assert abs(run.overlaps.m[0, 0]) == pytest.approx(abs(other.overlaps.m[0, 0]), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_a_lost_branch_at_large_sigma_takes_few_steps(branch):
    """If steps that drift are halved, they take 49 and 106 iterations, and 120 and 190 averages of 0.2 to 0.4 s."""
    se = ga.solve_state_evolution(ga.paper_model(0.404, sigma=1.51, lam=0.0016), 0.768, branch, rtol=1e-2)
    assert se.status is ga.Status.LOST
    assert se.n_iter < 30
    assert not se.overlaps.m.any()
    assert not se.overlaps.theta.any()
    assert "replicon" in se.message


def test_message_names_the_budget_that_ended_the_refinement(model):
    early = ga.solve_state_evolution(model, 1.5, rtol=1e-5, max_work=1e5, stability=False)
    assert early.status is ga.Status.INACCURATE
    assert "max_work" in early.message
    assert "100000" in early.message
    none = ga.solve_state_evolution(model, 1.5, rtol=1e-2, max_work=1e4, stability=False)
    assert none.status is ga.Status.MAX_ITER
    assert "raise max_work" in none.message
    short = ga.solve_state_evolution(model, 1.5, rtol=1e-5, max_iter=2, stability=False)
    assert short.status is ga.Status.MAX_ITER
    assert "raise max_iter" in short.message
    assert ga.solve_state_evolution(model, 1.5, rtol=1e-2, stability=False).message == ""


@pytest.mark.slow
def test_errors_hold_if_student_fields_hardly_vary():
    """θ² is 0.999 of q ρ, so that lines of fields are short: the density along them has to be resolved by itself.

    Levels agreed to 1e-8 in V with a common error of 5e-7, and differed by 3e-6 in the training loss.
    """
    model = ga.paper_model(0.113, sigma=0.9386, lam=0.0126, A=[[0.567, 0.376], [0.542, -0.085]])
    fine = ga.solve_state_evolution(model, 3.867, rtol=3e-6, stability=False)
    assert fine.converged
    for rtol in (1e-2, 1e-4, 1e-5):
        rough = ga.solve_state_evolution(model, 3.867, rtol=rtol, stability=False)
        assert rough.converged
        assert_solutions_agree(rough, fine, "q theta V", "V_hat train_loss test_error")
