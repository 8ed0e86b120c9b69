"""Appendix A (figures 1, 4, 5, 6, table 1): the histogram task has a positional and a semantic solution.

At first half of the weights, those that see tokens or those that see positions, are frozen at zero (Adam). Then all
weights train, from there with a little noise (SGD). The paper shows pictures of the attention; here two numbers stand
beside them, the shares of its variance that positions explain and that tokens explain (`shares` in `_histogram.py`).

Criterion, for every seed, before and after free training: test accuracy of at least 98 %. At the positional solution
positions explain more than half of the attention and tokens less than a tenth; at the semantic one it is the reverse.
Free training moves the weights by at most 5 %. Finished epochs are stored, and an interrupted run goes on.
"""

import numpy as np
import torch

from gamp_attention.experiments.figures import COLOURS, DARK, figure
from validation._tools.report import Verdict, options
from validation.paper._histogram import (
    STARTS,
    Size,
    Training,
    attention_of,
    histogram_data,
    initial_parameters,
    masks,
    measured,
    perturbed,
    shares,
    train,
)

SEEDS, QUICK_SEEDS = 3, 2
QUICK = Size(length=6, alphabet=8, width=32, hidden=64, sequences=12_000, batch=64, frozen_epochs=20, free_epochs=5)
MIN_ACCURACY = 0.98  # on the test sequences
TRAINED = 0.7  # share of the sequences that are trained on; the others test
SHOWN = 4  # example sequences in the picture
PROBES = 3000  # sequences that shares of variance are taken over


def stored_run(path, training, x, y, batch, epochs, name):
    """Train to the end, from what is stored of it."""
    if path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            training.restore(dict(arrays))

    def keep(state):
        aside = path.with_suffix(".part.npz")
        np.savez(aside, **state)
        aside.replace(path)

    train(training, x, y, batch, epochs, keep, name)
    return {name: value.detach() for name, value in training.p.items()}, training.losses


def seen(p, x, y, n_trained, alphabet):
    """Everything that is measured of the runs."""
    found = {"train": measured(p, x[:n_trained], y[:n_trained]), "test": measured(p, x[n_trained:], y[n_trained:])}
    return found | {"shares": shares(p, x[n_trained : n_trained + PROBES], alphabet)}


def experiment(size, seeds, folder, device):
    """All runs, before and after free training."""
    runs = [(start, seed) for start in STARTS for seed in range(seeds)]
    x, y = (part.to(device) for part in histogram_data(size, seed=0))
    n_trained = int(TRAINED * len(x))
    frozen = {
        name: torch.stack([masks(size, start)[name] for start, _ in runs]).to(device) for name in masks(size, STARTS[0])
    }
    begin = {name: value.to(device) for name, value in initial_parameters(size, runs).items()}
    training = Training(begin, frozen, seed=1)
    data = x[:n_trained], y[:n_trained], size.batch
    before, falls = stored_run(folder / "frozen.npz", training, *data, size.frozen_epochs, "frozen, Adam")
    shaken = perturbed(before, seed=2)
    free = Training(shaken, None, seed=3)
    after, later = stored_run(folder / "free.npz", free, *data, size.free_epochs, "free, SGD")
    norms = {
        "weights": [float(sum((before[k][r] ** 2).sum() for k in before) ** 0.5) for r in range(len(runs))],
        "moved": [
            float(sum(((after[k][r] - before[k][r]) ** 2).sum() for k in before) ** 0.5) for r in range(len(runs))
        ],
    }
    numbers = {
        "size": size._asdict(), "runs": runs, "device": str(device), "losses": falls + later, "norms": norms,
        "frozen": seen(before, x, y, n_trained, size.alphabet), "free": seen(after, x, y, n_trained, size.alphabet),
        "examples": x[n_trained : n_trained + SHOWN].tolist(),
        "attention": {
            name: attention_of(p, x[n_trained : n_trained + SHOWN])[0][[0, seeds]].cpu().numpy()
            for name, p in (("frozen", before), ("free", after))
        },
    }  # fmt: skip
    return numbers


def table(numbers):
    """Table 1, with the shares of variance."""
    lines = [
        "| start | seed | phase | test accuracy | loss | by positions | by tokens | ‖θ‖ | moved |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r, (start, seed) in enumerate(numbers["runs"]):
        for phase in ("frozen", "free"):
            got, norms = numbers[phase], numbers["norms"]
            last = (f"{norms['weights'][r]:.1f}", "") if phase == "frozen" else ("", f"{norms['moved'][r]:.2f}")
            lines.append(
                f"| {start} | {seed} | {phase} | {got['test']['accuracy'][r]:.2%} | {got['test']['loss'][r]:.4f} "
                f"| {got['shares']['positions'][r]:.1%} | {got['shares']['tokens'][r]:.1%} | {last[0]} | {last[1]} |"
            )
    return "\n".join(lines) + "\n"


def judge(numbers, verdict):
    """The criterion."""
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
    """Attention of both solutions for examples, before and after free training, and the training losses."""
    examples, letters = numbers["examples"], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    with figure(path, 5, len(examples), (2.1 * len(examples), 10.5)) as axes:
        row, largest = 0, max(np.max(S) for S in numbers["attention"].values())
        for which, start in enumerate(STARTS):
            for phase in ("frozen", "free"):
                for column, tokens in enumerate(examples):
                    axis, S = axes[row, column], np.array(numbers["attention"][phase])[which, column]
                    image = axis.imshow(S, cmap="cividis", vmin=0, vmax=largest)
                    names = [letters[t] for t in tokens]
                    axis.set_xticks(range(len(names)), names, fontsize=7)
                    axis.set_yticks(range(len(names)), names, fontsize=7)
                axes[row, 0].set_ylabel(f"{start},\n{phase}", color=COLOURS[start])
                row += 1
        bar = axes[0, 0].figure.colorbar(image, ax=axes[:4], shrink=0.5, aspect=40)
        bar.set_label("attention weight")
        grid = axes[4, 0].get_gridspec()
        for axis in axes[4]:
            axis.remove()
        axis, falls = axes[0, 0].figure.add_subplot(grid[4, :]), np.array(numbers["losses"])
        for r, (start, seed) in enumerate(numbers["runs"]):
            axis.semilogy(
                1 + np.arange(len(falls)), falls[:, r], color=COLOURS[start], lw=1, label=start if not seed else None
            )
        axis.axvline(numbers["size"]["frozen_epochs"] + 0.5, color=DARK, lw=0.8, ls=":")
        axis.annotate(" all weights free", (numbers["size"]["frozen_epochs"] + 0.5, falls.max()), va="top", fontsize=8)
        axis.set(xlabel="epoch", ylabel="training loss")
        axis.legend(frameon=False)
        axes[0, 0].figure.suptitle("Histogram task: attention matrices of the two solutions (seed 0)")


def main():
    found = options(__doc__, draw=True)
    verdict = Verdict("histogram_task", found)
    if found.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = verdict.path("_runs")
    folder.mkdir(exist_ok=True)
    size, seeds = (QUICK, QUICK_SEEDS) if found.quick else (Size(), SEEDS)
    numbers = experiment(size, seeds, folder, device)
    print(table(numbers))
    judge(numbers, verdict)
    verdict.path(".md").write_text(table(numbers))
    draw(numbers, verdict.path(".png"))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
