"""Hypothesis profiles, shared fixtures, and reference implementations that do not use the package's kernels."""

import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

import gamp_attention as ga

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker uses one thread, because workers run in parallel
    numba.config.NUMBA_NUM_THREADS = 1
    with contextlib.suppress(ImportError):  # not installed in the environments of .ci/versions
        # workers only: the process that starts them would begin two seconds later
        import torch

        torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent


def pytest_configure(config):
    """Restrict parallel workers and child processes to one thread, because idle BLAS threads use CPU time.

    A shell without job control starts background processes with Ctrl-C ignored. Tests that press Ctrl-C restore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "numprocesses", None):
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ.setdefault(name, "1")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run slow tests, as .ci/validate does")


def pytest_collection_modifyitems(config, items):
    """Without --slow, leave out slow tests: of `slow(keep=k)`, all except the first k parameter sets."""
    if config.getoption("--slow"):
        return
    counts, left_out = {}, []
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            counts[name] = counts.get(name, 0) + 1
            if counts[name] > mark.kwargs.get("keep", 0):
                left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    left = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in left]


def pytest_collection_finish():
    """Exclude modules and tests from searches for garbage, which compilation starts often, and start fewer of them."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


_common = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, **_common)
settings.register_profile("thorough", max_examples=1000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

PATIENCE = 600  # seconds after which a process that does not end or answer fails a test, on a machine under any load
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

# mixture: joint probabilities of the classes of two tokens, class means and standard deviations
CLASSES = [[0.4, 0.15], [0.1, 0.35]]
MEANS = [[0.5, -0.7], [0.3, -0.2]]
SIGMA = [[0.4, 0.6], [0.5, 0.3]]
# options of a sweep with CELLS cells, and of a sweep with one cell for each branch
TINY = {"alpha": [1.0, 1.5], "method": ["SE", "GAMP"], "seed": [0, 1, 2, 3], "d": 60, "rtol": 1e-2, "n_test": 50}
CELLS = 4 + 16
QUICK = {"alpha": 1.0, "method": "GAMP", "d": 40, "n_test": 20}


@ga.register_loss
class MarginLoss(NamedTuple):
    """Bounded loss ½ (1 − p tanh z) for labels p = ±1, which is not convex; derivatives by differences."""

    def value(self, p, z):
        return 0.5 * (1 - p[0] * math.tanh(z[0, 0]))

    def floor(self, p):
        return 0.0


def examples(count):
    """Set the number of examples of a property to `count`, or to 10 `count` in the thorough profile."""
    return settings(max_examples=10 * count if THOROUGH else count)


def draw_planted(n, L, d, rank, seed=0):
    """Return samples of a tied layer with `rank` columns."""
    rng = np.random.default_rng(seed)
    x, teacher = 0.8 * rng.standard_normal((n, L, d)), rng.standard_normal((d, rank))
    return ga.Dataset(x, ga.DotProductAttention()(x @ teacher / np.sqrt(d)) @ x, rank=rank)


def make_overlaps(q, m, theta, V=10.0):
    """Return overlaps of two tokens with m of opposite signs."""
    one = np.ones((2, 1, 1))
    return ga.Overlaps(q * one, np.array([[m], [-m]], dtype=float), theta * one, V * one)


def assert_solutions_agree(one, other, overlaps="q m theta V", numbers="train_loss test_error", factor=1.0):
    """Check that numbers of two solutions of state evolution agree within `factor` times the sum of their errors."""
    for name in overlaps.split():
        away = np.abs(getattr(one.overlaps, name) - getattr(other.overlaps, name))
        error = getattr(one.overlaps_error, name) + getattr(other.overlaps_error, name)
        assert (away <= factor * error).all(), name
    for name in numbers.split():
        away = np.abs(getattr(one, name) - getattr(other, name))
        error = getattr(one, f"{name}_error") + getattr(other, f"{name}_error")
        assert np.all(away <= factor * error), name


def layer_attention(student, z):
    """Compute S[z] in torch from its definition."""
    import torch

    if student.heads > 1:  # of tied queries and keys
        return sum(layer_attention(student.single, part) for part in z.chunk(student.heads, dim=-1)) / student.heads
    half = z.shape[-1] // 2
    queries, keys = (z, z) if student.tied else (z[..., :half], z[..., half:])
    scores = torch.einsum("nia,nja->nij", queries, keys) / student.temperature
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(diagonal=1) & student.causal
    if student.softmax:
        return torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
    return scores.masked_fill(later, 0.0)


def layer_risk(data, Q, risk):
    """Compute R and ∇R by torch: of the attention layer for the exact risk, of eq. (41) for the asymptotic risk."""
    import torch

    x, p = torch.tensor(data.tokens), torch.tensor(data.positions)
    weights = torch.tensor(Q, requires_grad=True)
    d = x.shape[2]
    z = (x + p) @ weights / d**0.5
    S = layer_attention(data.student, z)
    if risk == "exact":
        value = ((torch.tensor(data.outputs) - S @ (x + p)) ** 2).sum() / (2 * d)
    else:
        rho = np.empty(x.shape[:2])  # traces of the covariances of the sources of each sample's tokens
        for rows, sources in data.groups:
            rho[rows] = data.spectra.mean(axis=1)[sources]
        value = 0.5 * ((S - torch.tensor(data.targets)) ** 2 * torch.tensor(rho)[:, None]).sum()
    lams = torch.tensor(getattr(data.penalty, "lams", data.lam), dtype=torch.float64)
    value = value + (lams * weights**2).sum() / 2
    (gradient,) = torch.autograd.grad(value, weights)
    return float(value.detach()), gradient.numpy()


def layer_gradient(data, Q, risk):
    """Compute ∇R by torch autograd."""
    return layer_risk(data, Q, risk)[1]


def layer_gradient_norm(data, Q, risk):
    """Compute ‖∇R‖_F/(λ√d) by torch autograd."""
    return float(np.linalg.norm(layer_gradient(data, Q, risk)) / (data.lam * np.sqrt(data.dim)))


def compute_hessian(data, Q, risk, step=1e-5):
    """Return ∇²R (d r, d r) by central differences of the gradient."""
    rows = []
    for unit in np.eye(Q.size):
        shift = step * unit.reshape(Q.shape)
        rows.append((ga.gradient(data, Q + shift, risk) - ga.gradient(data, Q - shift, risk)).ravel() / (2 * step))
    return np.array(rows)


@pytest.fixture(scope="session")
def model():
    return ga.paper_model()


@pytest.fixture(scope="session")
def mixture():
    """Mixture of correlated classes with different means and variances, and a teacher that overlaps with the means."""
    return ga.mixture_model(CLASSES, MEANS, sigma=SIGMA, teacher_mean=[0.4])


@pytest.fixture(scope="session")
def tiny_sweep(model, tmp_path_factory):
    """Sweep that was run serially and without interruption."""
    return ga.sweep(model, tmp_path_factory.mktemp("tiny_sweep"), **TINY)


@pytest.fixture(scope="session")
def data(model):
    return ga.sample(model, d=200, alpha=1.5, seed=0)


@pytest.fixture(scope="module")
def quick_comparisons():
    """Reduce the number of paths by which comparisons predict trajectories from 4096 to 512."""
    from gamp_attention.extensions.comparison import comparison

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "trajectory", partial(ga.trajectory, n_paths=512))
        yield


@pytest.fixture
def named_error(tmp_path, monkeypatch):
    """Check that a call fails with an error that names the argument, its value and the requirement."""
    monkeypatch.chdir(tmp_path)

    def check(call, pattern):
        with np.errstate(all="ignore"), pytest.raises((ValueError, TypeError), match=f"(?s){pattern}") as caught:
            call()
        assert "need" in str(caught.value)
        assert "got" in str(caught.value)
        assert type(caught.value).__module__.partition(".")[0] in ("builtins", "gamp_attention")
        assert not list(tmp_path.iterdir())

    return check


@pytest.fixture
def by_threads(monkeypatch):
    """Function that returns the results of a call for each number of threads, of compiled kernels and of BLAS."""

    def compute(call, counts=(1, 2)):
        results = []
        for threads in counts:
            monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
            with threadpool_limits(threads):
                results.append(call())
        return results

    return compute


def interrupt_at(monkeypatch, module, name, number):
    """Have a function of a module be interrupted, as by Ctrl-C, at one of its calls."""
    calls, function = [], getattr(module, name)

    def counted(*args, **options):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*args, **options)

    monkeypatch.setattr(module, name, counted)


@pytest.fixture
def start():
    """Function that starts a Python process in the checkout; the process ends with the test."""
    started = []

    def run(*command):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def interrupted(process):
    """Send SIGINT to a process and return its standard error."""
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert "Traceback" not in message
    return message
