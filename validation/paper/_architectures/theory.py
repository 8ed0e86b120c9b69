"""State evolution of the architectures: branches, and α_c, where their training losses are equal."""

import numpy as np

import gamp_attention as ga
from gamp_attention.problem.named_starts import POSITIONAL_SIZE
from validation.paper._architectures.instances import ARCHITECTURES, NOISE, ORDERS, SIGMA

MAX_WORK = 1e6  # number of proximal problems of one average, at most
# iterations, damping and paths of the trajectory that leads to the mixed branch
FOLLOWED, DAMPING, PATHS = 40, 0.2, 1024
ROUNDS = 3  # number of secant steps for α_c


def point(architecture, omega, alpha, branch):
    """Return one fixed point: its loss, order parameters, and whether replica symmetry is consistent there."""
    which = ARCHITECTURES[architecture]
    model = which.model(omega)
    init = build_mixed_start(model, alpha) if branch == "mixed" else branch
    se = ga.solve_state_evolution(model, alpha, init, rtol=which.rtol, max_work=MAX_WORK, stability=False)
    order, error = compute_order_parameters(model, se.overlaps), compute_order_parameters(model, se.overlaps_error)
    return {
        "status": se.status.value, "solved": se.status.value in ("converged", "inaccurate"),
        "train_loss": se.train_loss, "train_loss_error": se.train_loss_error, "order": order, "order_error": error,
        "consistent": se.consistent, "validity": se.validity,
    }  # fmt: skip


def compute_order_parameters(model, overlaps):
    """Return the order parameters of `instances` from overlaps; from errors of overlaps, their errors."""
    law = model.coordinates
    gamma, tau, far = law.gamma[0], law.tau[0], np.abs(law.tau[0]).argmax()
    return {
        "semantic": float(SIGMA * np.linalg.norm(overlaps.theta[0]) / gamma[0]),
        "positional": float(SIGMA * np.linalg.norm(overlaps.m[far]) / abs(tau[far])),
    }


def build_mixed_start(model, alpha):
    """Return overlaps after some steps of message passing from Q* in the first column, positions in the second."""
    gamma, tau = model.coordinates.gamma[0], model.coordinates.tau[0]
    sizes = np.array([1.0, POSITIONAL_SIZE])
    begin = ga.Overlaps(
        q=np.einsum("l,ab->lab", gamma, np.diag(sizes**2 + NOISE**2)),
        m=np.outer(tau, [0.0, sizes[1]]),
        theta=np.einsum("l,at->lat", gamma, np.array([[1.0], [0.0]])),
        V=np.einsum("l,ab->lab", gamma, np.eye(2)),
    )
    path = ga.trajectory(model, alpha, begin, ga.MessagePassing(damping=DAMPING), n_iter=FOLLOWED, n_paths=PATHS)
    end = ga.Overlaps(**{name: values[-1] for name, values in path.arrays().items()})
    one_of_each = np.eye(2)
    return ga.Overlaps(end.q * one_of_each, end.m * [0.0, 1.0], end.theta * [[1.0], [0.0]], end.V * one_of_each)


def crossing(architecture, omega, alphas):
    """Return α_c with its error, by secants between two given α at which Δε_t has different signs."""
    known = {}

    def positive(alpha):
        known[alpha] = compute_difference(architecture, omega, alpha)
        return known[alpha][0] > 0

    none = {"alpha_c": None, "alpha_c_error": None}
    if positive(alphas[0]) or not positive(alphas[-1]):
        return none
    low, high = 0, len(alphas) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if positive(alphas[middle]) else (middle, high)
    left, right = alphas[low], alphas[high]
    for _ in range(ROUNDS):
        ends = np.array([known[left][0], known[right][0]])
        share = ends[0] / (ends[0] - ends[1]) if np.isfinite(ends).all() else 0.5
        guess = left + share * (right - left)
        left, right = (left, guess) if positive(guess) else (guess, right)
        if abs(known[guess][0]) <= known[guess][1]:
            break
    near = sorted((alpha for alpha in known if np.isfinite(known[alpha][0])), key=lambda alpha: abs(known[alpha][0]))
    if len(near) < 2:
        return none
    (a, b), (x, y) = near[:2], (known[alpha][0] for alpha in near[:2])
    slope = (y - x) / (b - a)
    return {"alpha_c": a - x / slope, "alpha_c_error": known[a][1] / abs(slope)}


def compute_difference(architecture, omega, alpha):
    """Return Δε_t and its error; infinite if only one branch is found, positive for the semantic one."""
    semantic, positional = (point(architecture, omega, alpha, branch) for branch in ORDERS)
    if semantic["solved"] and positional["solved"]:
        error = np.hypot(semantic["train_loss_error"], positional["train_loss_error"])
        return positional["train_loss"] - semantic["train_loss"], error
    if semantic["solved"] == positional["solved"]:
        return np.nan, np.nan
    return (np.inf if semantic["solved"] else -np.inf), 0.0
