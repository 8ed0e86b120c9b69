"""Hypothesis profiles, cases that several files share, and references written apart from the package's kernels."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import gamp_attention as ga

try:
    import torch
except ImportError:  # in environments of .ci/versions
    torch = None

if "PYTEST_XDIST_WORKER" in os.environ:  # one owner of the cores at a time
    numba.config.NUMBA_NUM_THREADS = 1
    if torch is not None:
        torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent


def pytest_configure(config):
    """Workers side by side, and processes that tests start, have a thread each: those of BLAS spin while they wait."""
    if getattr(config.option, "numprocesses", None):
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ.setdefault(name, "1")


_common = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, **_common)
settings.register_profile("thorough", max_examples=1000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

# a mixture: joint probabilities of the classes of two tokens, means and standard deviations
CLASSES = [[0.4, 0.15], [0.1, 0.35]]
MEANS = [[0.5, -0.7], [0.3, -0.2]]
SIGMA = [[0.4, 0.6], [0.5, 0.3]]
# a sweep of CELLS cells, and one of a cell for each branch
TINY = {"alpha": [1.0, 1.5], "method": ["SE", "GAMP"], "seed": [0, 1, 2, 3], "d": 60, "rtol": 1e-2, "n_test": 50}
CELLS = 4 + 16
QUICK = {"alpha": 1.0, "method": "GAMP", "d": 40, "n_test": 20}


def examples(count):
    """Number of examples of a property: `count`, or ten times as many in the thorough profile."""
    return settings(max_examples=10 * count if THOROUGH else count)


def layer_attention(student, z):
    """S[z] in torch, written out from the definition."""
    half = z.shape[-1] // 2
    queries, keys = (z, z) if student.tied else (z[..., :half], z[..., half:])
    scores = torch.einsum("nia,nja->nij", queries, keys) / student.temperature
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(diagonal=1) & student.causal
    if student.softmax:
        return torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
    return scores.masked_fill(later, 0.0)


def layer_gradient(data, Q, risk):
    """∇R by torch autograd: of the attention layer itself for the exact risk, of eq. (41) for the asymptotic one."""
    x, p = torch.tensor(data.tokens), torch.tensor(data.positions)
    weights = torch.tensor(Q, requires_grad=True)
    d = x.shape[2]
    z = (x + p) @ weights / d**0.5
    S = layer_attention(data.student, z)
    if risk == "exact":
        value = ((torch.tensor(data.outputs) - S @ (x + p)) ** 2).sum() / (2 * d)
    else:
        rho = np.empty(x.shape[:2])  # the traces of each sample's own tokens
        for rows, sources in data.groups:
            rho[rows] = data.spectra.mean(axis=1)[sources]
        value = 0.5 * ((S - torch.tensor(data.targets)) ** 2 * torch.tensor(rho)[:, None]).sum()
    value = value + data.lam / 2 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(value, weights)
    return gradient.numpy()


def layer_gradient_norm(data, Q, risk):
    """‖∇R‖_F/(λ√d) by torch autograd."""
    return float(np.linalg.norm(layer_gradient(data, Q, risk)) / (data.lam * np.sqrt(data.dim)))


@pytest.fixture(scope="session")
def model():
    return ga.paper_model()


@pytest.fixture(scope="session")
def mixture():
    """Correlated classes with means and variances of their own, and a teacher that sees the means."""
    return ga.mixture_model(CLASSES, MEANS, sigma=SIGMA, teacher_mean=[0.4])


@pytest.fixture(scope="session")
def tiny_sweep(model, tmp_path_factory):
    """An uninterrupted serial run."""
    return ga.sweep(model, tmp_path_factory.mktemp("tiny_sweep"), **TINY)


@pytest.fixture(scope="session")
def data(model):
    return ga.sample(model, d=200, alpha=1.5, seed=0)


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
def start():
    """Starts a process that ends with the test, in the checkout."""
    started = []

    def run(*command):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # in the background of a shell without job control, Ctrl-C is ignored, and children inherit that
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        started.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, **pipes, **heard))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def interrupted(process):
    """The last words of a process that is sent SIGINT."""
    process.send_signal(signal.SIGINT)
    words = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "Traceback" not in words
    return words
