"""What instances of an architecture say together: means over a cell of the (α, ω) plane, and α_c at finite d."""

import numpy as np
from scipy.interpolate import PchipInterpolator

from validation._tools.landscape import ENDED, statistics
from validation.paper._architectures.instances import ORDERS

RESAMPLED = 200
KEYS = ("train_loss", *ORDERS)


def reached(end):
    """The kind of solution: the direction, Q* or p_1, that the weights make the smaller angle with."""
    return max(ORDERS, key=lambda name: end["order"][name])


def on_branch(end, start):
    """Whether a descent ended at zero gradient, and on the branch that its start is named after, if that is a kind."""
    return end["status"] in ENDED and (start not in ORDERS or reached(end) == start)


def cell(rows, starts, kinds=True):
    """Statistics of the instances of one (α, ω); runs that left their branch are left out, if there are branches."""
    ends = {name: [row[name] for row in rows] for name in starts}
    kept = {name: [on_branch(end, name) if kinds else end["status"] in ENDED for end in ends[name]] for name in starts}
    table = {
        name: statistics(
            [{"train_loss": end["train_loss"]} | end["order"] for end, good in zip(ends[name], kept[name], strict=True)
             if good], KEYS)
        | {"count": sum(kept[name]), "gamp": message_passing(ends[name])}
        for name in starts
    }  # fmt: skip
    deepest = [min((row[name] for name in starts), key=lambda end: end["train_loss"]) for row in rows]
    return {
        "omega": rows[0]["omega"], "alpha": rows[0]["alpha"], "instances": len(rows), "starts": table,
        "difference": statistics([{"all": value} for value in differences(rows)], ["all"])["all"],
        "pairs": len(differences(rows)),
        "semantic_deeper": float(np.mean([reached(end) == "semantic" for end in deepest])),
        "deepest": statistics([{"train_loss": end["train_loss"]} | end["order"] for end in deepest], KEYS),
    }  # fmt: skip


def message_passing(ends):
    """In how many instances GAMP was run and ended at zero gradient, and its loss relative to that of the descent."""
    runs = [end for end in ends if end.get("gamp")]
    ended = [end["gamp"]["train_loss"] / end["train_loss"] - 1 for end in runs if end["gamp"]["converged"]]
    return {"runs": len(runs), "ended": len(ended), "above": statistics([{"all": v} for v in ended], ["all"])["all"]}


def differences(rows):
    """ε_t(positional) − ε_t(semantic) of the instances in which both starts ended on their branches."""
    return [
        row["positional"]["train_loss"] - row["semantic"]["train_loss"]
        for row in rows
        if all(on_branch(row[name], name) for name in ORDERS)
    ]


def by_alpha(rows, omega):
    """Instances at one ω, for each α."""
    mine = [row for row in rows if row["omega"] == omega]
    return {alpha: [row for row in mine if row["alpha"] == alpha] for alpha in sorted({row["alpha"] for row in mine})}


def finite_crossing(rows, omega):
    """α_c of the mean Δε_t at one ω with its standard error, from resampled instances; None where there is no sign.

    Only α at which at least half of the instances keep both branches.
    """
    values = {alpha: differences(part) for alpha, part in by_alpha(rows, omega).items()}
    wanted = {alpha: len(part) / 2 for alpha, part in by_alpha(rows, omega).items()}
    values = {alpha: np.array(part) for alpha, part in values.items() if len(part) >= max(2, wanted[alpha])}
    alphas, rng = np.array(list(values)), np.random.default_rng(0)
    if len(alphas) < 2:
        return {"alpha_c": None, "alpha_c_error": None}
    found = root(alphas, [part.mean() for part in values.values()])
    again = [root(alphas, [rng.choice(part, len(part)).mean() for part in values.values()]) for _ in range(RESAMPLED)]
    again = [value for value in again if value is not None]
    if found is None or len(again) < RESAMPLED / 2:
        return {"alpha_c": None, "alpha_c_error": None}
    return {"alpha_c": found, "alpha_c_error": float(np.std(again))}


def root(alphas, values):
    """The last α at which a monotone interpolation changes from negative to positive, if there is one."""
    curve = PchipInterpolator(alphas, values)
    roots = [x for x in curve.roots(extrapolate=False) if curve(x, 1) > 0]
    return float(roots[-1]) if roots else None
