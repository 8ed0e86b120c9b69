"""The histogram task of Appendix A: its data, and many one-layer transformers trained side by side.

A sequence of L tokens from an alphabet of T is mapped to how often each of its tokens occurs in it. The transformer is
x = E[tokens] + P, a = softmax((xQ)(xK)ᵀ/√D) x U, logits = W₂ relu(W₁ norm(a) + b₁) + b₂. Parameters carry a leading
axis of R runs, starts and seeds, which share every batch of sequences and nothing else.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

BETAS, EPS, RATE = (0.9, 0.98), 1e-9, 1e-3  # of Adam; the rate of SGD is the same
NOISE = 1e-3  # before unfrozen training
STARTS = ("positional", "semantic")


class Size(NamedTuple):
    """All sizes of the experiment; those of the paper by default."""

    length: int = 10
    alphabet: int = 15
    width: int = 64
    hidden: int = 128
    sequences: int = 50_000
    batch: int = 32
    frozen_epochs: int = 200
    free_epochs: int = 100


def histogram_data(size: Size, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different sequences (N, L), in random order, and the counts (N, L) of their tokens."""
    rng = np.random.default_rng(seed)
    x = np.unique(rng.integers(size.alphabet, size=(size.sequences, size.length)), axis=0)
    x = torch.from_numpy(rng.permutation(x))
    return x, (x[:, :, None] == x[:, None, :]).sum(dim=2)


def masks(size: Size, start: str) -> dict[str, torch.Tensor]:
    """What is not frozen at zero: embeddings live in halves of their own, and attention sees one of these."""
    first = torch.arange(size.width) < size.width // 2
    seen = (~first if start == "positional" else first).float()
    return {"tokens": first.float()[None], "positions": (~first).float()[None], "Q": seen[:, None], "K": seen[:, None]}


def initial_parameters(size: Size, runs: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    """Torch's default initialisation of every run, with zeros where its start freezes weights."""
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
        allowed = masks(size, start)
        for name, value in one.items():
            stacks.setdefault(name, []).append(value * allowed.get(name, torch.ones(1)))
    return {name: torch.stack(values) for name, values in stacks.items()}


def attention_of(p: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention matrices (R, N, L, L), and embedded sequences (R, N L, D)."""
    R, D = p["Q"].shape[:2]
    n, L = x.shape
    embedded = (p["tokens"][:, x] + p["positions"][:, None]).reshape(R, n * L, D)
    queries, keys = (torch.bmm(embedded, p[name]).reshape(R * n, L, D) for name in ("Q", "K"))
    scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(D)
    return torch.softmax(scores, dim=-1).reshape(R, n, L, L), embedded


def logits_of(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Logits (R, N, L, L + 1) of the counts 0 to L."""
    S, embedded = attention_of(p, x)
    R, n, L, _ = S.shape
    D = embedded.shape[2]
    values = torch.bmm(embedded, p["U"]).reshape(R * n, L, D)
    mixed = torch.bmm(S.reshape(R * n, L, L), values).reshape(R, n * L, D)
    normed = torch.nn.functional.layer_norm(mixed, (D,)) * p["scale"] + p["shift"]
    hidden = torch.relu(torch.baddbmm(p["b1"], normed, p["W1"]))
    return torch.baddbmm(p["b2"], hidden, p["W2"]).reshape(R, n, L, L + 1)


def losses(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy (R,) of every run."""
    logits = logits_of(p, x)
    R, classes = logits.shape[0], logits.shape[-1]
    each = torch.nn.functional.cross_entropy(
        logits.reshape(-1, classes), y.reshape(1, -1).expand(R, -1).reshape(-1), reduction="none"
    )
    return each.reshape(R, -1).mean(dim=1)


@torch.no_grad()
def measured(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, chunk: int = 2000) -> dict[str, list[float]]:
    """Loss and accuracy of every run on sequences."""
    loss, right = 0.0, 0.0
    for first in range(0, len(x), chunk):
        a, b = x[first : first + chunk], y[first : first + chunk]
        loss = loss + losses(p, a, b) * len(a)
        right = right + (logits_of(p, a).argmax(dim=-1) == b).float().mean(dim=(1, 2)) * len(a)
    return {"loss": (loss / len(x)).tolist(), "accuracy": (right / len(x)).tolist()}


@torch.no_grad()
def shares(p: dict[str, torch.Tensor], x: torch.Tensor, alphabet: int) -> dict[str, list[float]]:
    """How much of the variance of attention S_ij, i ≠ j, over sequences and pairs, positions and tokens explain.

    By positions: Var E[S | i, j] / Var S. By tokens: Var E[S | x_i, x_j] / Var S. They need not add to one.
    """
    S, _ = attention_of(p, x)
    L = x.shape[1]
    apart = ~torch.eye(L, dtype=torch.bool, device=x.device)
    pair = (x[:, :, None] * alphabet + x[:, None, :])[:, apart].reshape(-1)
    found: dict[str, list[float]] = {"positions": [], "tokens": []}
    for each in S.double():
        entries = each[:, apart]
        total = entries.var(unbiased=False)
        by_place = entries.mean(dim=0)
        counts = torch.bincount(pair, minlength=alphabet**2)
        sums = torch.zeros(alphabet**2, dtype=torch.float64, device=x.device)
        means = sums.index_add(0, pair, entries.reshape(-1)) / counts.clamp(min=1)
        spread = (counts * (means - entries.mean()) ** 2).sum() / counts.sum()
        found["positions"].append(float(by_place.var(unbiased=False) / total))
        found["tokens"].append(float(spread / total))
    return found


def perturbed(p: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Embeddings, Q and K with a little noise."""
    numbers = torch.Generator().manual_seed(seed)
    noisy = ("tokens", "positions", "Q", "K")
    return {
        name: value + NOISE * torch.randn(value.shape, generator=numbers).to(value) if name in noisy else value.clone()
        for name, value in p.items()
    }


class Training:
    """Epochs of training of all runs, by Adam with frozen zeros or by SGD on everything."""

    def __init__(self, p: dict[str, torch.Tensor], frozen: dict[str, torch.Tensor] | None, seed: int) -> None:
        self.p = {name: value.clone().requires_grad_() for name, value in p.items()}
        self.frozen, self.seed, self.epoch = frozen, seed, 0
        values = list(self.p.values())
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(values, lr=RATE) if frozen is None else torch.optim.Adam(values, RATE, BETAS, EPS)
        )
        self.losses: list[list[float]] = []

    def run_epoch(self, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
        """One pass over the sequences, in an order that depends on the seed and the epoch alone."""
        numbers = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order, total = torch.randperm(len(x), generator=numbers).to(x.device), 0.0
        for first in range(0, len(x), batch):
            rows = order[first : first + batch]
            self.optimizer.zero_grad()
            each = losses(self.p, x[rows], y[rows])
            each.sum().backward()  # runs do not share parameters
            for name, mask in (self.frozen or {}).items():
                grad = self.p[name].grad
                assert grad is not None
                grad.mul_(mask)
            self.optimizer.step()
            total = total + each.detach() * len(rows)
        self.losses.append((total / len(x)).tolist())
        self.epoch += 1

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to go on, as arrays."""
        arrays = {f"p.{name}": value.detach().cpu().numpy() for name, value in self.p.items()}
        for number, slot in self.optimizer.state_dict()["state"].items():
            arrays |= {
                f"o.{number}.{name}": np.asarray(value.cpu()) for name, value in slot.items() if value is not None
            }
        return arrays | {"losses": np.array(self.losses), "epoch": np.array(self.epoch)}

    def restore(self, arrays: Any) -> None:
        """Go on from a state."""
        with torch.no_grad():
            for name, value in self.p.items():
                value.copy_(torch.from_numpy(arrays[f"p.{name}"]))
        found = self.optimizer.state_dict()
        for key in arrays:
            if key.startswith("o."):
                _, number, name = key.split(".")
                found["state"].setdefault(int(number), {})[name] = torch.from_numpy(arrays[key])
        self.optimizer.load_state_dict(found)
        self.losses, self.epoch = arrays["losses"].tolist(), int(arrays["epoch"])


def train(training: Training, x: torch.Tensor, y: torch.Tensor, batch: int, epochs: int, keep: Any, name: str) -> None:
    """Run the epochs that are missing; `keep` is called with the state after each."""
    for _ in tqdm(range(training.epoch, epochs), desc=name, initial=training.epoch, total=epochs, disable=None):
        training.run_epoch(x, y, batch)
        keep(training.state())
