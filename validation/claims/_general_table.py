"""The table of general models as markdown, and its picture."""

import numpy as np

from gamp_attention._core.display import format_with_error
from gamp_attention.experiments.figures import COLOURS, DARK, figure

TICKS = (-100, -10, -5, 0, 5, 10, 100)
HEADS = (
    "model", "α", "start", "d", "GAMP ended", "‖∇R‖ by autograd", "overlap", "GAMP", "state evolution", "gap",
    "trajectory, worst", "replica symmetry", "agrees",
)  # fmt: skip


def markdown(parts):
    """One line for each model, d and overlap that does not vanish by symmetry."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for part in parts:
        first = [
            part["name"], f"{part['alpha']:g}", part["init"], str(part["d"]), _ended(part),
            f"{max(part['layer_gradient_norm']):.0e}",
        ]  # fmt: skip
        last = [_validity(part), _agrees(part)]
        for number, key in enumerate(part["keys"]):
            v = part["fixed"][key]
            gap = v["gamp"] - v["se"]
            middle = [
                key, _number(v["gamp"], v["error"]), f"{v['se']:.4g}",
                f"{gap / v['error']:+.1f} s.e., {100 * gap / abs(v['se']):+.1f} %", _worst(part["followed"][key]),
            ]  # fmt: skip
            lines.append("| " + " | ".join([*(first if not number else [""] * 6), *middle,
                                            *(last if not number else [""] * 2)]) + " |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _number(value, error):
    digits = int(np.clip(1 - np.floor(np.log10(max(error, 1e-12))), 0, 8))
    return format_with_error(value, error, digits)


def _ended(part):
    """Statuses, how often message passing needed settling, and iterations."""
    counts = {status: part["statuses"].count(status) for status in dict.fromkeys(part["statuses"])}
    iterations = f"{min(part['n_iter'])} to {max(part['n_iter'])} iterations"
    return ", ".join(f"{n} {status}" for status, n in counts.items()) + f" ({iterations})"


def _worst(followed):
    gap, error, size = (np.array(followed[k], dtype=float)[1:] for k in ("gap", "error", "predicted"))
    return f"{np.max(np.abs(gap) / error):.1f} s.e., {100 * np.max(np.abs(gap) / np.abs(size).max()):.1f} %"


def _validity(part):
    if part["se_status"] == "lost":
        return "no such branch"
    share = (
        f"replicon {part['replicon']:.2g}, jumps {100 * part['jump_share']:.2g} %" if part["replicon"] else "unknown"
    )
    return ("consistent: " if part["consistent"] else "approximate: ") + share + f", {part['se_status']}"


def _agrees(part):
    fixed, followed = part["fixed_excess"] <= 1, part["followed_excess"] <= 1
    words = "yes" if fixed and followed else "fixed points" if fixed else "trajectories" if followed else "no"
    if not part["binding"]:
        return words + ", need not"
    return words + ("" if part["smooth_way"] else "; trajectories jump on their way, and need not")


def draw(parts, path):
    """Gaps of fixed points and of trajectories in per cent, one line a model; small d pale, large d full."""
    names = list(dict.fromkeys(part["name"] for part in parts))
    largest = max(part["d"] for part in parts)
    with figure(path, 1, 2, (11, 1.5 + 0.35 * len(names))) as axes:
        for part in parts:
            place = len(names) - 1 - names.index(part["name"])
            colour = COLOURS["semantic"] if part["binding"] else DARK
            for number, key in enumerate(part["keys"]):
                v, f = part["fixed"][key], part["followed"][key]
                y = place + 0.3 - 0.6 * number / max(1, len(part["keys"]) - 1)
                style = {"color": colour, "alpha": 1 if part["d"] == largest else 0.35, "ms": 4}
                scale = 100 / abs(v["se"])
                axes[0, 0].errorbar(
                    scale * (v["gamp"] - v["se"]), y, xerr=2 * scale * v["error"], fmt="o", lw=1, **style
                )
                gap, size = np.array(f["gap"]), np.abs(f["predicted"]).max()
                worst = int(np.argmax(np.abs(gap)))
                axes[0, 1].errorbar(
                    100 * gap[worst] / size, y, xerr=200 * f["error"][worst] / size, fmt="s", lw=1, **style
                )
        axes[0, 0].set(yticks=range(len(names)), yticklabels=names[::-1], xlabel="fixed point: GAMP − SE, %, ± 2 s.e.")
        axes[0, 1].set(yticks=range(len(names)), yticklabels=[], xlabel="trajectory: largest deviation, %, ± 2 s.e.")
        for axis in axes[0]:
            axis.axvline(0, color=DARK, lw=0.8)
            axis.set_xscale("symlog", linthresh=5)
            axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
            axis.minorticks_off()
        axes[0, 0].figure.suptitle(
            "Each overlap from the top: q, θ or m, V. Blue must agree; grey: jumps or no branch. Pale: smaller d"
        )
