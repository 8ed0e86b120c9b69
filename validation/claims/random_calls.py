"""Random valid and invalid calls of the whole public API are answered correctly or refused with a clear error.

Method: a call is a line of Python: a valid call of a public function or class on a random problem of any family
(attention of several kinds, mixtures, generalized linear models, other penalties, user-defined arrays, losses and
maps), in which none, one or two random arguments are replaced: by numbers near the original, numbers from 1e-300 to
1e300, NaN, infinities and integers of hundreds of digits, words, None, arrays of other shapes, types and sizes,
tensors, objects. Other calls run a solver on a problem with a replaced parameter that passed the checks. Every call is
checked independently of its report (`_tools/evaluation.py`).

"False" counts results that report convergence although the gradient, by torch, exceeds the tolerance, or although one
more iteration of state evolution moves the fixed point. "NaN" counts results with numbers that are not finite and no
status that reports it. "Unnamed" counts exceptions other than a ValueError or TypeError that names an argument, what it
needs and what it got; "late" counts calls over their limit of processor time; "warned" counts calls that pass on a
warning of another library. "Refused" calls raise an error that names the cause.

Criterion: there is no false, NaN, unnamed, late or warned call. (Robustness page of the manual.)

Running time with --quick: about 20 s on one core, after compilation.
"""

from collections import Counter
from typing import Any

import numpy as np

from validation._tools.calls import (
    ATTENTION,
    BUILDERS,
    EFFORT,
    LINES,
    MODELS,
    USER_DATA,
    USES,
    Argument,
    list_arguments,
    replace_argument,
)
from validation._tools.evaluation import TimedEvaluator
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

BLOCK, BLOCKS, QUICK_BLOCK, QUICK_BLOCKS = 25, 80, 25, 2
LIMIT, LIMITS = 5.0, {"phase_boundaries": 90.0, "compare": 60.0, "branches": 30.0, "continue_branch": 30.0}  # seconds
# relative frequencies of slow functions, 1 for the others
RARE = {**dict.fromkeys(LIMITS, 0.1), "phase_boundaries": 0.02}
# functions of data, which receive other data
OF_DATA = ("run_gamp", "train", "minimize_risk", "gradient", "train_loss", "fit_linear_baseline")
FRACTION_OF_USES, FRACTION_UNCHANGED, FRACTION_OF_TWO = 0.35, 0.2, 0.2
EVALUATOR = TimedEvaluator()
POWERS = (-300, -160, -60, -20, -8, -3, 3, 8, 20, 60, 160, 300)
NUMBERS = (
    *(f"{sign}1e{power}" for sign in ("", "-") for power in POWERS), "0", "-1", "1", "2", "3", "0.5", "float('nan')",
    "float('inf')", "-float('inf')", "10**18", "2**63", "10**400", "-10**400", "np.float32(0.3)", "np.int64(2)",
)  # fmt: skip
OTHERS = (
    "None", "True", "False", "'word'", "''", "b'x'", "[]", "()", "{}", "[1, [2]]", "1j", "object()", "len", "float",
    "np.ones(0)", "np.ones((2, 2, 2))", "np.ones((2, 1))", "np.array(['a'])", "np.array([None])", "np.array(0.5)",
    "np.ma.masked_array([1.0, 2.0], [True, False])", "range(3)", "'semantic'", "'positional'", "'random'", "PAPER",
    "DATA", "X", "np.random.default_rng(0)", "[float('nan')]", "torch.ones(2, requires_grad=True)",
)  # fmt: skip
ARRAYS = (
    "{0}[..., None]", "{0}[:1]", "{0}.tolist()", "{0} * 1j", "{0}.astype(np.float32)", "{0}.astype(object)", "{0}.T",
    "frozen({0})", "np.asfortranarray({0})", "torch.tensor({0}, requires_grad=True)", "np.zeros_like({0})",
    "np.where(np.arange({0}.size).reshape({0}.shape) == 0, np.nan, {0})", "scaled(1e-8, {0})", "scaled(30, {0})",
)  # fmt: skip


def draw_near(slot: Argument, rng: np.random.Generator) -> str:
    """Return a number near the original."""
    value, most = float(slot.text), 0.5 if slot.name in EFFORT else 2.0
    other = value * 10 ** rng.uniform(-2, most)
    return str(round(other)) if slot.text.lstrip("-").isdigit() else f"{other:.3g}"


def draw_other(slot: Argument, rng: np.random.Generator) -> str:
    """Return a replacement for an argument."""
    draw = rng.random()
    if draw < 0.1:
        return str(rng.choice(OTHERS))
    if slot.kind == "number":
        wild = [text for text in NUMBERS if not (slot.name in EFFORT and text in ("1e3", "1e8"))]
        return draw_near(slot, rng) if draw < 0.6 else str(rng.choice(wild))
    if slot.kind == "array":
        text = f"np.asarray({slot.text})"
        return f"scaled({rng.choice(NUMBERS[:24])}, {text})" if draw < 0.5 else str(rng.choice(ARRAYS)).format(text)
    if slot.kind == "flag":
        return str(rng.choice(["True", "False"]))
    return str(rng.choice(OTHERS))


def draw_call(rng: np.random.Generator) -> tuple[str, str, str]:
    """Return a name, a random line that calls it, and the line that compiles its kernels."""
    if rng.random() < FRACTION_OF_USES:
        name = str(rng.choice(BUILDERS))
        use, made = str(rng.choice(USES)), LINES[name]
        return name, use.format(model=change_arguments(made, rng)), use.format(model=made)
    names = sorted(LINES)
    weight = np.array([RARE.get(name, 1.0) for name in names])
    name = str(rng.choice(names, p=weight / weight.sum()))
    line = LINES[name]
    family = str(rng.choice(ATTENTION if name in LIMITS or name == "sweep" else list(MODELS)))
    if (
        name in ("run_gamp", "train", "minimize_risk", "gradient", "train_loss", "fit_linear_baseline")
        and rng.random() < 0.7
    ):
        data = rng.choice([*USER_DATA, *(f"SAMPLES['{model}']" for model in MODELS)])
        line = line.replace("DATA", str(data)).replace("init=WEIGHTS", "init='random'").replace("V=WIDE", "V=None")
    elif name not in ("compare", "Overlaps") and rng.random() < 0.7:
        line = line.replace("(SHARP", f"({family}").replace("(PAPER", f"({family}")
    return name, change_arguments(line, rng), line


def change_arguments(line: str, rng: np.random.Generator) -> str:
    """Return a line with none, one or two arguments replaced."""
    draw = rng.random()
    times = 0 if draw < FRACTION_UNCHANGED else 1 + (draw > 1 - FRACTION_OF_TWO)
    for _ in range(times):
        places = list_arguments(line)
        if places:
            slot = places[rng.integers(len(places))]
            line = replace_argument(line, slot.number, draw_other(slot, rng))
    return line


def run_block(seed: int, size: int) -> dict[str, Any]:
    """Run random calls in a separate process, which is restarted if a call is late."""
    rng, rows = np.random.default_rng([seed, 19]), []
    for _ in range(size):
        name, line, warm = draw_call(rng)
        rows.append({"name": name} | EVALUATOR(line, LIMITS.get(name, LIMIT), warm))
    return {"calls": rows}


COLUMNS = ("calls", "answered", "converged", "refused", "false", "NaN", "unnamed", "late", "warned", "longest")
FAULTS = {"false": "false", "NaN": "nan", "unnamed": "raised", "late": "late", "warned": "warned"}


def count_calls(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of the columns."""
    seen = Counter(row["outcome"] for row in rows)
    numbers = {"calls": len(rows), "answered": seen["answered"], "refused": seen["refused"]}
    numbers["converged"] = sum(row["status"] in ("converged", "settled") for row in rows)
    numbers |= {column: sum(fault in row["faults"] for row in rows) for column, fault in FAULTS.items()}
    numbers["longest"] = max((row["seconds"] for row in rows), default=0.0)
    return {column: numbers[column] for column in COLUMNS}


def main() -> None:
    args = options(__doc__ or "", workers=True, blocks={"type": int, "help": "blocks of calls", "default": None})
    verdict = Verdict("random_calls", args)
    number, size = (QUICK_BLOCKS, QUICK_BLOCK) if args.quick else (args.blocks or BLOCKS, BLOCK)
    with pool(args) as executor:
        asked = [{"seed": seed, "size": size} for seed in range(number)]
        blocks = run_trials(folder(args, verdict.name), run_block, asked, executor)
    rows = [row for each in blocks for row in each["calls"]]
    names = sorted({row["name"] for row in rows})
    table = {f"`{name}`": count_calls([row for row in rows if row["name"] == name]) for name in names}
    table["all"] = count_calls(rows)
    verdict.write_table(counts_table(table, "{:.1f} s", "call"))
    faulty = [row for row in rows if row["faults"]]
    for row in faulty:
        print(", ".join(row["faults"]), "|", row["line"], "|", row["message"] or row["warned"] or row["status"])
    verdict.check(len(blocks) == number, f"{len(blocks)} of {number} blocks ended")
    for column in FAULTS:
        verdict.check(table["all"][column] == 0, f"{table['all'][column]} of {len(rows)} calls {column}")
    verdict.end({"table": table, "faulty": faulty})


if __name__ == "__main__":
    main()
