"""Tables and pictures of an architecture, from stored numbers."""

import numpy as np

from gamp_attention.extensions.comparison.figures import ALPHA, COLORS, DARK, GREY, OMEGA
from validation._tools.drawing import build_branch_colormap, figure
from validation._tools.landscape import to_array
from validation._tools.report import plus_minus

ORDERS = {"semantic": r"$\sigma|Q^\top Q_*|/d$", "positional": r"$\sigma|Q^\top p_1|/\sqrt{d}$"}
DIFFERENCE = r"$10^3\,[\varepsilon_t$(positional) − $\varepsilon_t$(semantic)]"
SHORT = r"$10^3\Delta\varepsilon_t$"
LINES = (
    ("{name}, d = {d}", r"$\alpha_c$, finite d", {"color": DARK, "fmt": "s:", "mfc": "white", "ms": 6}),
    ("{name}, state evolution", r"$\alpha_c$, state evolution", {"color": DARK, "fmt": "o-", "ms": 3}),
    (
        "paper, state evolution",
        r"$\alpha_c$ of the paper's model, state evolution",
        {"color": GREY, "fmt": "D-", "ms": 4},
    ),
)


def format_mean(statistics, scale=1e3):
    """Format a mean with its standard error."""
    return plus_minus(*(np.nan if statistics[key] is None else scale * statistics[key] for key in ("mean", "error")))


def select_slice(result, of="cells"):
    return [cell for cell in result[of] if cell["omega"] == result["slice"]]


def get_prediction(result, alpha, branch, key):
    """Return the prediction of state evolution at the slice; NaN if it was not computed or has no such branch."""
    for theory in result["theory"]:
        if (theory["alpha"], theory["branch"]) == (alpha, branch) and theory["solved"]:
            return float(theory["train_loss"] if key == "train_loss" else theory["order"][key])
    return np.nan


def format_table(result):
    """Return the slice with a line for each α and start, and α_c at all ω."""
    heads = [f"{what} | state evolution" for what in ("10³ ε_t", "semantic order", "positional order")]
    lines = [
        f"{result['title']}, ω = {result['slice']:g}, d = {result['size']['d']}", "",
        "| α | start | stayed | " + " | ".join(heads) + " |", "|" + "---|" * (3 + 2 * len(heads)),
    ]  # fmt: skip
    for cell in select_slice(result):
        for start, entry in cell["starts"].items():
            words = [f"{cell['alpha']:g}", start, f"{entry['count']} of {cell['instances']}"]
            for key, scale in (("train_loss", 1e3), ("semantic", 1), ("positional", 1)):
                theory = scale * get_prediction(result, cell["alpha"], start, key)
                words += [format_mean(entry[key], scale), f"{theory:.3f}" if np.isfinite(theory) else "–"]
            lines.append("| " + " | ".join(words) + " |")
    if result["kinds"]:
        names = list(result["lines"])
        lines += ["", "| ω | " + " | ".join(f"α_c, {name}" for name in names) + " |", "|" + "---|" * (1 + len(names))]
        for omega in result["size"]["omegas"]:
            entry = [next((line for line in result["lines"][name] if line["omega"] == omega), None) for name in names]
            words = [
                "–" if line is None or line["alpha_c"] is None
                else plus_minus(line["alpha_c"], line["alpha_c_error"]) for line in entry
            ]  # fmt: skip
            lines.append(f"| {omega:g} | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def draw(result, path):
    """Draw the plane, and losses and order parameters along the slice."""
    size = result["size"]
    with figure(path, 2, 2, (9.6, 8.2)) as axes:
        plane, losses, orders, last = axes.flat
        last.axis("off")
        draw_plane(result, plane)
        (draw_difference if result["kinds"] else draw_losses)(result, losses)
        draw_orders(result, orders)
        for axis in (losses, orders):
            axis.set(xlabel=ALPHA, title=f"ω = {result['slice']:g}, {size['slice_seeds']} instances at each α")
        entries = {}
        for axis in (plane, losses, orders):
            handles, labels = axis.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        last.legend(entries.values(), entries.keys(), loc="center left")
        axes[0, 0].figure.suptitle(f"{result['title']}: d = {size['d']}, bars: 2 standard errors")


def draw_plane(result, axis):
    """Draw Δε_t, or the difference of the order parameters of the deepest minimum if minima are of both kinds."""
    colors = build_branch_colormap(missing="#DDDDDD")
    from matplotlib.colors import CenteredNorm

    alphas, omegas = (np.array(result["size"][name]) for name in ("alphas", "omegas"))
    values = np.full((len(alphas), len(omegas)), np.nan)
    for cell in result["cells"]:
        place = np.searchsorted(alphas, cell["alpha"]), np.searchsorted(omegas, cell["omega"])
        if not result["kinds"]:
            values[place] = cell["deepest"]["semantic"]["mean"] - cell["deepest"]["positional"]["mean"]
        elif cell["pairs"] >= cell["instances"] / 2:
            values[place] = 1e3 * cell["difference"]["mean"]
        else:
            kind = "semantic" if cell["semantic_deeper"] > 0.5 else "positional"
            axis.plot(cell["omega"], cell["alpha"], "o", color=COLORS[kind], ms=6)
    mesh = axis.pcolormesh(
        omegas, alphas, np.ma.masked_invalid(values), cmap=colors, norm=CenteredNorm(), shading="nearest"
    )
    axis.figure.colorbar(mesh, ax=axis, label=SHORT if result["kinds"] else " − ".join(ORDERS.values()))
    title = "difference of losses; dots: only this branch exists"
    axis.set_title(title if result["kinds"] else "difference of overlaps at the deepest minimum")
    for name, label, style in LINES:
        line = result["lines"].get(name.format(name=result["architecture"], d=result["size"]["d"]), [])
        entries = [to_array([each[key] for key in ("omega", "alpha_c", "alpha_c_error")]) for each in line]
        at, value, error = np.reshape(entries, (-1, 3)).T
        if np.isfinite(value).any():
            axis.errorbar(at, value, 2 * error, capsize=2, lw=1.2, label=label, **style)
    axis.set(xlabel=OMEGA, ylabel=ALPHA)


def draw_points(axis, means, scale, **style):
    """Draw means with bars of two standard errors, from pairs of α and statistics."""
    rows = to_array([[alpha, entry["mean"], entry["error"]] for alpha, entry in means])
    alphas, values, errors = rows.reshape(-1, 3).T
    axis.errorbar(alphas, scale * values, 2 * scale * errors, capsize=2, ms=4.5, lw=1, **style)


def draw_curve(axis, result, branch, key, scale, **style):
    """Draw state evolution along the slice."""
    alphas = result["size"]["predicted"]
    axis.plot(alphas, [scale * get_prediction(result, alpha, branch, key) for alpha in alphas], "x-", ms=4, **style)


def draw_difference(result, axis):
    """Draw Δε_t along the slice, if half of the instances keep both branches, and Δε_t of the paper's model."""
    for of, color, label in (("cells", DARK, result["title"]), ("paper", GREY, "the paper's model")):
        cells = [cell for cell in select_slice(result, of) if cell["pairs"] >= cell["instances"] / 2]
        means = [(cell["alpha"], cell["difference"]) for cell in cells]
        draw_points(axis, means, 1e3, fmt="o", color=color, label=f"{SHORT}, {label}")
    alphas = result["size"]["predicted"]
    semantic, positional = (
        np.array([get_prediction(result, alpha, branch, "train_loss") for alpha in alphas]) for branch in ORDERS
    )
    axis.plot(alphas, 1e3 * (positional - semantic), "x-", ms=4, color=DARK, label=f"{SHORT}, state evolution")
    axis.axhline(0, color=GREY, lw=0.8)
    axis.set_ylabel(DIFFERENCE)


def draw_losses(result, axis):
    """Draw training losses along the slice: all starts, and the minima of the paper's model."""
    for start, marker in zip(result["starts"], "^vo+x", strict=True):
        means = [(cell["alpha"], cell["starts"][start]["train_loss"]) for cell in select_slice(result)]
        style = {"color": COLORS.get(start.split()[-1], DARK), "mfc": "white" if start in COLORS else DARK}
        draw_points(axis, means, 1e3, fmt=marker, label=f"{start} start", **style)
    for kind in ORDERS:
        means = [(cell["alpha"], cell["starts"][kind]["train_loss"]["mean"]) for cell in select_slice(result, "paper")]
        alphas, values = to_array(means).T
        axis.plot(alphas, 1e3 * values, "--", color=COLORS[kind], lw=1, label=f"rank 1, {kind}")
    draw_curve(axis, result, "mixed", "train_loss", 1e3, color=DARK, label="state evolution, mixed")
    axis.set_ylabel(r"$10^3\,\varepsilon_t$")


def draw_orders(result, axis):
    """Draw order parameters along the slice, for branches that half of the runs keep, or both of the mixed start."""
    for kind, label in ORDERS.items():
        branch = kind if result["kinds"] else "mixed"
        cells = [(cell["alpha"], cell["instances"], cell["starts"][branch]) for cell in select_slice(result)]
        means = [(alpha, mine[kind]) for alpha, instances, mine in cells if mine["count"] >= instances / 2]
        draw_points(axis, means, 1.0, fmt="o", color=COLORS[kind], label=f"{label}, {branch} branch")
        draw_curve(axis, result, branch, kind, 1.0, color=COLORS[kind], label=f"overlap, {kind}, state evolution")
    axis.set(ylabel="overlap with teacher or positions", ylim=(0, None))
