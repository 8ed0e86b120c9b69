"""The error estimates of state evolution: two independent rules against each other and against a much finer run.

Random problems (α, ω, λ, σ, A), both branches. Criteria: the split rule and randomised Sobol points agree within
the sum of their stated errors, and each covers its difference to a much finer split run, in at
least 95 % of all overlaps and losses.
"""

import time

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.plotting import DARK, figure
from validation._report import Verdict, options

PROBLEMS, ASKED, FINE = 60, (1e-3, 1e-4), 1e-5  # asked of every other problem


def problems(count):
    """Random problems on which both branches exist more often than not."""
    rng = np.random.default_rng(20)
    for _ in range(count):
        a, b = rng.uniform(0.5, 0.9, 2)
        model = ga.paper_model(
            omega=rng.uniform(0.05, 0.6),
            sigma=rng.uniform(0.35, 0.7),
            lam=10 ** rng.uniform(-2.3, -1.3),
            A=((a, 1 - a), (1 - b, b)),
        )
        yield model, rng.uniform(0.5, 2.5)


def numbers(se):
    """Everything with an error: values and errors, zeros by symmetry left out."""
    pairs = [(getattr(se.overlaps, k).ravel(), getattr(se.overlaps_error, k).ravel()) for k in ("q", "m", "theta", "V")]
    values = np.concatenate([v for v, _ in pairs] + [[se.train_loss, se.test_error]])
    errors = np.concatenate([e for _, e in pairs] + [[se.train_loss_error, se.test_error_error]])
    return values, errors


def main():
    found = options(__doc__)
    verdict = Verdict("quadrature", found)
    rows, skipped = [], []
    for number, (model, alpha) in enumerate(
        tqdm(list(problems(6 if found.quick else PROBLEMS)), desc="problems", disable=None)
    ):
        for branch in ("semantic", "positional"):
            began = time.perf_counter()
            split = ga.solve_state_evolution(model, alpha, branch, rtol=ASKED[number % 2], max_iter=100, stable=False)
            seconds = time.perf_counter() - began
            if not split.converged:
                skipped.append((number, branch, split.status.value))
                continue
            fine = ga.solve_state_evolution(model, alpha, split.overlaps, rtol=FINE, stable=False)
            points = ga.solve_state_evolution(
                model, alpha, split.overlaps, rule="sobol", rtol=2e-2, max_work=4e4, stable=False, seed=number
            )
            (a, a_error), (f, f_error), (b, b_error) = numbers(split), numbers(fine), numbers(points)
            known = np.abs(f) > 0
            with found.out.joinpath("quadrature_log.txt").open("a") as log:
                print(
                    number,
                    branch,
                    (a - f) / (a_error + f_error + 1e-300),
                    (b - f) / (b_error + f_error + 1e-300),
                    file=log,
                )
            rows.append(
                {
                    "problem": number,
                    "branch": branch,
                    "status": (split.status.value, fine.status.value, points.status.value),
                    "seconds": seconds,
                    "split": (a - f)[known] / (a_error + f_error)[known],
                    "sobol": (b - f)[known] / (b_error + f_error)[known],
                    "between": (a - b)[known] / (a_error + b_error)[known],
                    "error": (split.error, points.error),
                }
            )
    print(f"{len(rows)} fixed points; without the branch: {skipped}")
    failed = [row for row in rows if row["status"][:2] != ("converged",) * 2]
    verdict.check(
        not failed, f"all split runs reach the accuracy asked for; not: {[(r['problem'], r['status']) for r in failed]}"
    )
    for key, claim in (
        ("split", "the split rule's errors cover the difference to the finer run"),
        ("sobol", "the errors of Sobol points cover the difference to the finer run"),
        ("between", "the two rules agree within their errors"),
    ):
        ratios = np.abs(np.concatenate([row[key] for row in rows]))
        share = float(np.mean(ratios <= 1))
        verdict.check(
            share >= 0.95, f"{claim} in {100 * share:.1f} % of {len(ratios)} numbers, at most {ratios.max():.1f} times"
        )
    print(f"seconds, contention included: median {np.median([row['seconds'] for row in rows]):.2f}")
    with figure(verdict.path(".png"), 1, 1, (6, 4)) as axes:
        axis = np.ravel(axes)[0]
        for key, style in (("split", "-"), ("sobol", "--"), ("between", ":")):
            ratios = np.sort(np.abs(np.concatenate([row[key] for row in rows])))
            axis.plot(ratios + 1e-4, np.arange(1, len(ratios) + 1) / len(ratios), style, color=DARK, label=key)
        axis.axvline(1, color="0.7")
        axis.axhline(0.95, color="0.7")
        axis.set(xlabel="difference / stated error", ylabel="share of numbers", xscale="log", xlim=(1e-3, 5))
        axis.legend()
    verdict.end({"rows": rows, "skipped": skipped})


if __name__ == "__main__":
    main()
