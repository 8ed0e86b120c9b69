"""Appendix A (figures 1, 4, 5, 6, table 1): the histogram task has a positional and a semantic solution.

Method: a sequence of L tokens from an alphabet of T is mapped to the count of each of its tokens in it. The transformer
is x = E[tokens] + P, a = softmax((xQ)(xK)ᵀ/√D) x U, logits = W₂ relu(W₁ norm(a) + b₁) + b₂. Parameters have a leading
axis of R runs (starts and seeds), which use the same batches of sequences. First half of the weights, which act on
tokens or on positions, are frozen at zero (Adam). Then all weights train, from there with a little noise (SGD). The
paper shows pictures of the attention; here two numbers are added, the fractions of its variance that positions explain
and that tokens explain (`explain_variance`).

Criterion, for every seed, before and after free training: test accuracy of at least 98 %. At the positional solution
positions explain more than half of the attention and tokens less than a tenth; at the semantic solution the reverse.
Free training moves the weights by at most 5 %.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from gamp_attention.extensions.comparison.figures import COLORS, DARK
from validation._tools.drawing import figure
from validation._tools.report import begin
from validation._tools.tables import markdown_table

BETAS, EPS, RATE = (0.9, 0.98), 1e-9, 1e-3  # β, ε and learning rate of Adam; SGD has the same rate
NOISE = 1e-3  # standard deviation of the noise on weights before free training
STARTS = ("positional", "semantic")


class Size(NamedTuple):
    """Sizes of the experiment; the defaults are the paper's."""

    length: int = 10
    alphabet: int = 15
    width: int = 64
    hidden: int = 128
    sequences: int = 50_000
    batch: int = 32
    frozen_epochs: int = 200
    free_epochs: int = 100


def draw_data(size: Size, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return different sequences (N, L), in random order, and the counts (N, L) of their tokens."""
    rng = np.random.default_rng(seed)
    x = np.unique(rng.integers(size.alphabet, size=(size.sequences, size.length)), axis=0)
    x = torch.from_numpy(rng.permutation(x))
    return x, (x[:, :, None] == x[:, None, :]).sum(dim=2)


def build_masks(size: Size, start: str) -> dict[str, torch.Tensor]:
    """Return masks that freeze weights at zero: embeddings use one half of the width each, attention sees one half."""
    first = torch.arange(size.width) < size.width // 2
    seen = (~first if start == "positional" else first).float()
    return {"tokens": first.float()[None], "positions": (~first).float()[None], "Q": seen[:, None], "K": seen[:, None]}


def draw_parameters(size: Size, runs: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    """Return torch's default initialization of every run, with zeros for weights that its start freezes."""
    stacks: dict[str, list[torch.Tensor]] = {}
    for start, seed in runs:
        numbers = torch.Generator().manual_seed(seed)

        def uniform(fan_in: int, *shape: int, numbers: torch.Generator = numbers) -> torch.Tensor:
            return (2 * torch.rand(*shape, generator=numbers) - 1) / math.sqrt(fan_in)

        D, H = size.width, size.hidden
        one = {
            "tokens": torch.randn(size.alphabet, D, generator=numbers),
            "positions": torch.randn(size.length, D, generator=numbers),
            **{name: uniform(D, D, D) for name in ("Q", "K", "U")},
            "scale": torch.ones(1, D), "shift": torch.zeros(1, D),
            "W1": uniform(D, D, H), "b1": uniform(D, 1, H),
            "W2": uniform(H, H, size.length + 1), "b2": uniform(H, 1, size.length + 1),
        }  # fmt: skip
        allowed = build_masks(size, start)
        for name, value in one.items():
            stacks.setdefault(name, []).append(value * allowed.get(name, torch.ones(1)))
    return {name: torch.stack(values) for name, values in stacks.items()}


def compute_attention(p: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention matrices (R, N, L, L), and embedded sequences (R, N L, D)."""
    R, D = p["Q"].shape[:2]
    n, L = x.shape
    embedded = (p["tokens"][:, x] + p["positions"][:, None]).reshape(R, n * L, D)
    queries, keys = (torch.bmm(embedded, p[name]).reshape(R * n, L, D) for name in ("Q", "K"))
    scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(D)
    return torch.softmax(scores, dim=-1).reshape(R, n, L, L), embedded


def compute_logits(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return logits (R, N, L, L + 1) of the counts 0 to L."""
    S, embedded = compute_attention(p, x)
    R, n, L, _ = S.shape
    D = embedded.shape[2]
    values = torch.bmm(embedded, p["U"]).reshape(R * n, L, D)
    mixed = torch.bmm(S.reshape(R * n, L, L), values).reshape(R, n * L, D)
    normed = torch.nn.functional.layer_norm(mixed, (D,)) * p["scale"] + p["shift"]
    hidden = torch.relu(torch.baddbmm(p["b1"], normed, p["W1"]))
    return torch.baddbmm(p["b2"], hidden, p["W2"]).reshape(R, n, L, L + 1)


def compute_losses(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy (R,) of every run."""
    logits = compute_logits(p, x)
    R, classes = logits.shape[0], logits.shape[-1]
    each = torch.nn.functional.cross_entropy(
        logits.reshape(-1, classes), y.reshape(1, -1).expand(R, -1).reshape(-1), reduction="none"
    )
    return each.reshape(R, -1).mean(dim=1)


@torch.no_grad()
def measure(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, chunk: int = 2000) -> dict[str, list[float]]:
    """Return loss and accuracy of every run on sequences."""
    loss, right = 0.0, 0.0
    for first in range(0, len(x), chunk):
        a, b = x[first : first + chunk], y[first : first + chunk]
        loss = loss + compute_losses(p, a, b) * len(a)
        right = right + (compute_logits(p, a).argmax(dim=-1) == b).float().mean(dim=(1, 2)) * len(a)
    return {"loss": (loss / len(x)).tolist(), "accuracy": (right / len(x)).tolist()}


@torch.no_grad()
def explain_variance(p: dict[str, torch.Tensor], x: torch.Tensor, alphabet: int) -> dict[str, list[float]]:
    """Return the fractions of the variance of S_ij, i ≠ j, that positions and that tokens explain.

    By positions: Var E[S | i, j] / Var S. By tokens: Var E[S | x_i, x_j] / Var S, over sequences and pairs. They need
    not add to one.
    """
    S, _ = compute_attention(p, x)
    L = x.shape[1]
    apart = ~torch.eye(L, dtype=torch.bool, device=x.device)
    pair = (x[:, :, None] * alphabet + x[:, None, :])[:, apart].reshape(-1)
    explained: dict[str, list[float]] = {"positions": [], "tokens": []}
    for each in S.double():
        entries = each[:, apart]
        total = entries.var(unbiased=False)
        by_place = entries.mean(dim=0)
        counts = torch.bincount(pair, minlength=alphabet**2)
        sums = torch.zeros(alphabet**2, dtype=torch.float64, device=x.device)
        means = sums.index_add(0, pair, entries.reshape(-1)) / counts.clamp(min=1)
        spread = (counts * (means - entries.mean()) ** 2).sum() / counts.sum()
        explained["positions"].append(float(by_place.var(unbiased=False) / total))
        explained["tokens"].append(float(spread / total))
    return explained


def perturb(p: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return the parameters with a little noise on embeddings, Q and K."""
    numbers = torch.Generator().manual_seed(seed)
    noisy = ("tokens", "positions", "Q", "K")
    return {
        name: value + NOISE * torch.randn(value.shape, generator=numbers).to(value) if name in noisy else value.clone()
        for name, value in p.items()
    }


class Training:
    """Training of all runs, by Adam with frozen zeros or by SGD on all weights."""

    def __init__(self, p: dict[str, torch.Tensor], frozen: dict[str, torch.Tensor] | None, seed: int) -> None:
        self.p = {name: value.clone().requires_grad_() for name, value in p.items()}
        self.frozen, self.seed, self.epoch = frozen, seed, 0
        values = list(self.p.values())
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(values, lr=RATE) if frozen is None else torch.optim.Adam(values, RATE, BETAS, EPS)
        )
        self.losses: list[list[float]] = []

    def run_epoch(self, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
        """Run one pass over the sequences, in an order that depends only on the seed and the epoch."""
        numbers = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order, total = torch.randperm(len(x), generator=numbers).to(x.device), 0.0
        for first in range(0, len(x), batch):
            rows = order[first : first + batch]
            self.optimizer.zero_grad()
            each = compute_losses(self.p, x[rows], y[rows])
            each.sum().backward()  # the gradient of the sum is each run's gradient, as runs have separate parameters
            for name, mask in (self.frozen or {}).items():
                grad = self.p[name].grad
                assert grad is not None
                grad.mul_(mask)
            self.optimizer.step()
            total = total + each.detach() * len(rows)
        self.losses.append((total / len(x)).tolist())
        self.epoch += 1


def train(training: Training, x: torch.Tensor, y: torch.Tensor, batch: int, epochs: int, name: str) -> Any:
    """Run all epochs; return the parameters and the losses of each epoch."""
    for _ in tqdm(range(epochs), desc=name, disable=None):
        training.run_epoch(x, y, batch)
    return {name: value.detach() for name, value in training.p.items()}, training.losses


SEEDS, QUICK_SEEDS = 3, 2
QUICK = Size(length=6, alphabet=8, width=32, hidden=64, sequences=12_000, batch=64, frozen_epochs=20, free_epochs=5)
MIN_ACCURACY = 0.98  # on the test sequences
TRAINED = 0.7  # fraction of the sequences for training; the others are for tests
SHOWN = 4  # number of example sequences in the picture
PROBES = 3000  # number of sequences for the fractions of variance


def measure_runs(p, x, y, n_trained, alphabet):
    """Return all measurements of the runs."""
    measurements = {"train": measure(p, x[:n_trained], y[:n_trained]), "test": measure(p, x[n_trained:], y[n_trained:])}
    return measurements | {"shares": explain_variance(p, x[n_trained : n_trained + PROBES], alphabet)}


def run_experiment(size, seeds, device):
    """Return the measurements of all runs, before and after free training."""
    runs = [(start, seed) for start in STARTS for seed in range(seeds)]
    x, y = (part.to(device) for part in draw_data(size, seed=0))
    n_trained = int(TRAINED * len(x))
    frozen = {
        name: torch.stack([build_masks(size, start)[name] for start, _ in runs]).to(device)
        for name in build_masks(size, STARTS[0])
    }
    begin = {name: value.to(device) for name, value in draw_parameters(size, runs).items()}
    training = Training(begin, frozen, seed=1)
    data = x[:n_trained], y[:n_trained], size.batch
    before, falls = train(training, *data, size.frozen_epochs, "frozen, Adam")
    shaken = perturb(before, seed=2)
    free = Training(shaken, None, seed=3)
    after, later = train(free, *data, size.free_epochs, "free, SGD")
    norms = {
        "weights": [float(sum((before[k][r] ** 2).sum() for k in before) ** 0.5) for r in range(len(runs))],
        "moved": [
            float(sum(((after[k][r] - before[k][r]) ** 2).sum() for k in before) ** 0.5) for r in range(len(runs))
        ],
    }
    numbers = {
        "size": size._asdict(), "runs": runs, "device": str(device), "losses": falls + later, "norms": norms,
        "frozen": measure_runs(before, x, y, n_trained, size.alphabet),
        "free": measure_runs(after, x, y, n_trained, size.alphabet),
        "examples": x[n_trained : n_trained + SHOWN].tolist(),
        "attention": {
            name: compute_attention(p, x[n_trained : n_trained + SHOWN])[0][[0, seeds]].cpu().numpy()
            for name, p in (("frozen", before), ("free", after))
        },
    }  # fmt: skip
    return numbers


def format_table(numbers):
    """Return table 1, with the fractions of variance."""
    heads = ("start", "seed", "phase", "test accuracy", "loss", "by positions", "by tokens", "‖θ‖", "moved")
    lines = []
    for r, (start, seed) in enumerate(numbers["runs"]):
        for phase in ("frozen", "free"):
            got, norms = numbers[phase], numbers["norms"]
            last = (f"{norms['weights'][r]:.1f}", "") if phase == "frozen" else ("", f"{norms['moved'][r]:.2f}")
            lines.append([
                start, seed, phase, f"{got['test']['accuracy'][r]:.2%}", f"{got['test']['loss'][r]:.4f}",
                f"{got['shares']['positions'][r]:.1%}", f"{got['shares']['tokens'][r]:.1%}", *last,
            ])  # fmt: skip
    return markdown_table(heads, lines)


def check_criterion(numbers, verdict):
    """Check the criterion."""
    for r, (start, seed) in enumerate(numbers["runs"]):
        for phase in ("frozen", "free"):
            got, where = numbers[phase], f"{start}, seed {seed}, {phase}"
            accuracy = got["test"]["accuracy"][r]
            place, token = (got["shares"][name][r] for name in ("positions", "tokens"))
            verdict.check(accuracy >= MIN_ACCURACY, f"{where}: test accuracy {accuracy:.2%}")
            more, less = (place, token) if start == "positional" else (token, place)
            verdict.check(
                more > 0.5 > 0.1 > less, f"{where}: positions explain {place:.1%}, tokens {token:.1%} of the attention"
            )
        moved = numbers["norms"]["moved"][r] / numbers["norms"]["weights"][r]
        verdict.check(moved <= 0.05, f"{start}, seed {seed}: free training moves the weights by {moved:.2%}")


def draw(numbers, path):
    """Draw the attention of both solutions for examples, before and after free training, and the training losses."""
    examples, letters = numbers["examples"], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    with figure(path, 5, len(examples), (2.2 * len(examples), 10.5)) as axes:
        row, largest = 0, max(np.max(S) for S in numbers["attention"].values())
        for which, start in enumerate(STARTS):
            for phase in ("frozen", "free"):
                for column, tokens in enumerate(examples):
                    axis, S = axes[row, column], np.array(numbers["attention"][phase])[which, column]
                    image = axis.imshow(S, cmap="cividis", vmin=0, vmax=largest)
                    names = [letters[t] for t in tokens]
                    axis.set_xticks(range(len(names)), names, fontsize=8.2)
                    axis.set_yticks(range(len(names)), names, fontsize=8.2)
                axes[row, 0].set_ylabel(f"{start} start,\n{phase}", color=COLORS[start])
                row += 1
        bar = axes[0, 0].figure.colorbar(image, ax=axes[:4], shrink=0.5, aspect=40)
        bar.set_label("attention weight")
        grid = axes[4, 0].get_gridspec()
        for axis in axes[4]:
            axis.remove()
        axis, falls = axes[0, 0].figure.add_subplot(grid[4, :]), np.array(numbers["losses"])
        for r, (start, seed) in enumerate(numbers["runs"]):
            axis.semilogy(
                1 + np.arange(len(falls)), falls[:, r], color=COLORS[start], lw=1, label=start if not seed else None
            )
        axis.axvline(numbers["size"]["frozen_epochs"] + 0.5, color=DARK, lw=0.8, ls=":")
        axis.annotate(" all weights free", (numbers["size"]["frozen_epochs"] + 0.5, falls.max()), va="top", fontsize=9)
        axis.set(xlabel="epoch", ylabel="training loss")
        axis.legend(frameon=False)
        axes[0, 0].figure.suptitle("Histogram task: attention matrices of the two solutions (seed 0)")


def main():
    args, verdict = begin("histogram_task", __doc__, draw)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, seeds = (QUICK, QUICK_SEEDS) if args.quick else (Size(), SEEDS)
    numbers = run_experiment(size, seeds, device)
    verdict.write_table(format_table(numbers))
    check_criterion(numbers, verdict)
    verdict.end(numbers, draw)


if __name__ == "__main__":
    main()
