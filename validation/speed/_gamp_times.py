"""CPU times of message passing, as lines of JSON; `gamp_speed --base` starts this script in two checkouts.

An iteration is timed as the difference of a long and a short run, so that set-up and analysis cancel.
"""

import json
import sys
import time

import gamp_attention as ga

REPEATS = 3 if "quick" in sys.argv else 9
LONG, SHORT = (30, 10) if "quick" in sys.argv else (60, 20)
DIM = 400 if "quick" in sys.argv else 1000


def time_call(call):
    """Return the CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def print_fastest(name, calls):
    """Print the smallest sum of the CPU seconds of calls, each with its sign, over the repeats."""
    for _, call in calls:
        call()  # compiles
    fastest = [min(time_call(call) for _ in range(REPEATS)) for _, call in calls]
    seconds = sum(sign * least for (sign, _), least in zip(calls, fastest, strict=True))
    print(json.dumps({"name": name, "seconds": seconds}), flush=True)


def iterations(data, n, **options):
    """Return a call that makes n damped iterations."""
    return lambda: ga.run_gamp(data, "semantic", damping=0.5, tol=0, max_iter=n, **options)


def bayes_iterations(data, n):
    """Return a call that makes n iterations of the Bayes-optimal algorithm."""
    return lambda: ga.run_bayes_amp(data, damping=0.5, tol=0, max_iter=n)


if __name__ == "__main__":
    models = {"two tokens": (ga.paper_model(0.3), {}), "three tokens": (ga.attention_model(3), {"risk": "asymptotic"}),
              "two columns": (ga.attention_model(2, 2, 2), {})}  # fmt: skip
    for title, (model, options) in models.items():
        small = ga.sample(model, DIM if title == "two tokens" else DIM // 4, 1.5, seed=0)
        few = [iterations(small, n, **options) for n in (LONG, SHORT)]
        print_fastest(f"an iteration, {title}", [(1, few[0]), (-1, few[1])])
        print_fastest(f"a run to 1e-8, {title}", [(1, lambda data=small: ga.run_gamp(data, "semantic"))])
    teacher = ga.sample(ga.paper_model(0.3), DIM // 2, 1.5, seed=0)
    print_fastest("an iteration, Bayes", [(1, bayes_iterations(teacher, LONG)), (-1, bayes_iterations(teacher, SHORT))])
