"""Leave-one-out errors and the choice of λ are right on features that are not independent Gaussians.

Method: features with correlated neighbors, with lognormal row norms, with a common factor, with heavy tails; the
diabetes, breast cancer and digits data of scikit-learn, split at random into training and test halves. Ridge
regression, lasso, logistic regression and, on the first four kinds, attention. Each instance has a path of 12 values of
λ. At three of them leave-one-out errors are compared with exact refits by numpy, scipy, scikit-learn or torch: of all
samples for the ridge, otherwise of 8 or 30 random samples. The regret is the excess of the test error at the chosen λ
over the smallest test error along the path, on fresh samples or on the other half. RidgeCV, LassoCV and
LogisticRegressionCV choose among the same values on the same samples; for attention, five folds of the package do.

Criterion: fewer than 1 % of the estimates are trusted and wrong (off by more than 5 % from refits of the same samples);
fewer than 10 % are right and not trusted. The mean regret of each family on sampled features is below 2 %, and
on each kind of features the mean test error at the chosen λ is at most 1 % above five folds. A choice is more than 5 %
worse than five folds at most as often as it is more than 5 % better, or in at most 5 % of the instances. (Page
"Test error from the training data" of the manual.)

With --stored, refits and the rows of convex losses are the stored rows; paths of attention are computed again.
"""

import warnings
from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, draw_legend
from gamp_attention.extensions.inference.refits import sample_errors
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table
from validation.claims._exact_refits import compute_exact_errors
from validation.claims.own_data_calls import compute_mean_square, softmax

SAMPLED = ("correlated", "row norms", "common factor", "heavy tails")
REAL = {"diabetes": ("ridge", "lasso"), "breast cancer": ("logistic",), "digits": ("ridge", "logistic")}
FAMILIES = ("ridge", "lasso", "logistic", "attention")
COMPARED, SEEDS, FRESH, VALUES = (2, 5, 9), 3, 4000, 12
WRONG, DOUBTED, REGRET, WORSE, APART = 0.01, 0.1, 0.02, 0.01, 0.05


def draw_features(kind: str, rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return rows (n, d) of one kind of features with fixed parameters."""
    x = rng.normal(size=(n, d))
    if kind == "correlated":
        for i in range(1, d):
            x[:, i] = 0.85 * x[:, i - 1] + np.sqrt(1 - 0.85**2) * x[:, i]
    elif kind == "row norms":
        x *= np.exp(0.6 * rng.normal(size=(n, 1)))
    elif kind == "common factor":
        x += 2.0 * rng.normal(size=(n, 1))
    else:
        x = rng.standard_t(3, size=(n, d))
    return x


def load_real(name: str, family: str, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return training and test halves of a data set of scikit-learn, standardized by the training half."""
    from sklearn import datasets

    load = {"diabetes": datasets.load_diabetes, "breast cancer": datasets.load_breast_cancer,
            "digits": datasets.load_digits}[name]  # fmt: skip
    x, y = load(return_X_y=True)
    if name == "digits":
        y = np.where(y < 5, -1.0, 1.0)
    elif family == "logistic":
        y = 2.0 * y - 1.0
    order = rng.permutation(len(x))[:900]
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    center, scale = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - center) / np.where(scale > 0, scale, 1.0)
    if family != "logistic":
        y = (y - y[train].mean()) / y[train].std()
    return x[train], y[train], x[test], y[test]


def build_instance(kind: str, family: str, seed: int, d: int) -> tuple[np.ndarray, ...]:
    """Return training and fresh samples: rows and labels, or tokens and outputs."""
    rng = np.random.default_rng([seed, 47, (*SAMPLED, *REAL).index(kind), FAMILIES.index(family)])
    if kind in REAL:
        return load_real(kind, family, rng)
    if family == "attention":
        n = 5 * d
        x = draw_features(kind, rng, 2 * (n + FRESH // 2), d).reshape(-1, 2, d)
        x /= np.sqrt(compute_mean_square(x))
        z = x @ rng.normal(size=(d, 1)) / np.sqrt(d)
        maps = z @ z.transpose(0, 2, 1)
        y = (softmax(1.5 * maps / maps.std()) + 0.05 * rng.normal(size=maps.shape)) @ x
        return x[:n], y[:n], x[n:], y[n:]
    n = int(d * rng.choice([1.2, 2.5, 5.0]))
    x = draw_features(kind, rng, n + FRESH, d)
    x /= np.sqrt(compute_mean_square(x[:n]))
    w = rng.normal(size=d) * (rng.random(d) < (0.1 if family == "lasso" else 1.0))
    h = x @ w
    y = h / h[:n].std() + 0.6 * rng.normal(size=len(x))
    y = np.where(y > 0, 1.0, -1.0) if family == "logistic" else y
    return x[:n], y[:n], x[n:], y[n:]


def build_problems(family: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, dict[float, ga.Dataset]]:
    """Return the values of the hyperparameter and a dataset for each value."""
    if family == "attention":
        lams = np.geomspace(1e-3, 1.0, VALUES)
        return lams, {float(lam): ga.Dataset(x, y, lam=float(lam)) for lam in lams}
    if family == "lasso":
        most = np.abs(x.T @ y).max() / np.sqrt(x.shape[1])
        lams = most * np.geomspace(0.7, 0.01, VALUES)
        made = (ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, lam)) for lam in lams.tolist())
        return lams, dict(zip(lams.tolist(), made, strict=True))
    loss = ga.LogisticLoss() if family == "logistic" else ga.SquaredLoss()
    lams = np.geomspace(1e-3, 30.0 if family == "ridge" else 3.0, VALUES)
    return lams, {float(lam): ga.LabelledDataset(x, y, loss, lam=float(lam)) for lam in lams}


def choose_by_scikit_learn(family: str, x: np.ndarray, y: np.ndarray, lams: np.ndarray) -> int:
    """Return the index of the value that scikit-learn chooses."""
    from sklearn.linear_model import LassoCV, LogisticRegressionCV, RidgeCV

    n, d = x.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if family == "ridge":
            chosen = RidgeCV(alphas=lams * d, fit_intercept=False, cv=5).fit(x, y).alpha_ / d
        elif family == "lasso":
            model = LassoCV(alphas=lams * np.sqrt(d) / n, fit_intercept=False, cv=5, max_iter=20000).fit(x, y)
            chosen = model.alpha_ * n / np.sqrt(d)
        else:
            model = LogisticRegressionCV(Cs=1 / (lams * d), fit_intercept=False, cv=5, scoring="neg_log_loss",
                                         solver="lbfgs", max_iter=5000, tol=1e-6).fit(x, y)  # fmt: skip
            chosen = 1 / (np.ravel(model.C_)[0] * d)
    return int(np.argmin(np.abs(np.log(lams / chosen))))


def compare_choices(
    kind: str, family: str, seed: int, d: int, compared: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return estimates with exact refits, and the regrets of the choices, on one instance.

    `compared` are stored estimates with exact refits, which are then not computed.
    """
    x, y, fresh_x, fresh_y = build_instance(kind, family, seed, d)
    lams, made = build_problems(family, x, y)
    first = next(iter(made.values()))
    convex = family != "attention"
    options = {"n_starts": 1 if convex else 4, "init": "random" if convex else "spectral"}
    path = ga.regularization_path(made if family == "lasso" else first, None if family == "lasso" else lams, **options)
    tests = []
    for result, data in zip(path.results, made.values(), strict=True):
        if family == "attention":
            other = ga.Dataset(fresh_x, fresh_y, data.positions, lam=data.lam)
        else:
            other = ga.LabelledDataset(fresh_x, fresh_y, data.student, lam=1.0)
        tests.append(float(sample_errors(other, other.fields(result.Q)).mean()))
    if convex:
        folds = choose_by_scikit_learn(family, x, y, lams)
    else:
        from gamp_attention.extensions.inference.path_training import PathPlan, fold_errors

        along = PathPlan(lams, list(made.values()), list(range(VALUES)), "spectral", 4, 1e-3, 10000, 0)
        folds = int(np.argmin(fold_errors(along, 5, {}, lambda is_new: None)[0].mean(axis=1)))
    rows = [] if compared is None else compared
    for k in COMPARED if compared is None else ():
        data, result = list(made.values())[k], path.results[k]
        loo = ga.leave_one_out(data, result)
        count = data.n_samples if family == "ridge" else 30 if convex else 8
        samples = np.sort(np.random.default_rng([seed, k]).permutation(data.n_samples)[:count])
        exact = compute_exact_errors(data, result.Q, samples)
        there = np.isfinite(exact)
        rows.append({
            "lam": float(lams[k]), "estimate": float(loo.errors[samples][there].mean()),
            "exact": float(exact[there].mean()),
            "error": loo.test_error_error, "trusted": loo.trusted, "converged": bool(result.converged),
            "reached": float(there.mean()), "form": loo.form,
        })  # fmt: skip
    test = np.array(tests)
    return {
        "compared": rows, "test": tests, "estimates": path.test_error.tolist(), "form": path.form, "n": len(x),
        "regret": float(test[path.best] / test.min() - 1), "regret_folds": float(test[folds] / test.min() - 1),
        "worse": float(test[path.best] / test[folds] - 1), "best": path.best, "folds": folds,
    }  # fmt: skip


def is_wrong(row: dict[str, Any]) -> bool:
    """Return whether an estimate is off by more than 5 %; refits of the same samples have no sampling error."""
    return bool(abs(row["estimate"] - row["exact"]) > 0.05 * row["exact"])


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return a row for each kind of features and family."""
    heads = ("features", "family", "estimates: largest deviation from refits", "trusted", "regret, mean and largest",
             "of five folds", "in folds")  # fmt: skip
    lines = []
    for kind, family in dict.fromkeys((row["kind"], row["family"]) for row in rows):
        mine = [row for row in rows if (row["kind"], row["family"]) == (kind, family)]
        there = [each for row in mine for each in row["compared"]]
        apart = max(abs(each["estimate"] / each["exact"] - 1) for each in there)
        regret, folds = (100 * np.array([row[name] for row in mine]) for name in ("regret", "regret_folds"))
        lines.append([
            kind, family, f"{100 * apart:.2g} %", f"{sum(each['trusted'] for each in there)} of {len(there)}",
            f"{regret.mean():.2g} %, {regret.max():.2g} %", f"{folds.mean():.2g} %, {folds.max():.2g} %",
            f"{sum(row['form'] == 'folds' for row in mine)} of {len(mine)}",
        ])  # fmt: skip
    return markdown_table(heads, lines)


def draw(numbers: dict[str, Any], path: Any) -> None:
    """Draw estimates against refits, and regrets against five folds."""
    rows = numbers["rows"]
    with figure(path, 1, 2, (9, 4.4)) as axes:
        left, right = axes[0]
        for k, (family, marker) in enumerate(zip(FAMILIES, "osD^", strict=False)):
            mine = [row for row in rows if row["family"] == family]
            there = [each for row in mine for each in row["compared"]]
            exact, estimates = ([each[name] for each in there] for name in ("exact", "estimate"))
            left.loglog(exact, estimates, marker, ms=3.5, mew=0, color=f"C{k}", label=family)
            apart = [[100 * max(row[name], 3e-4) for row in mine] for name in ("regret_folds", "regret")]
            right.loglog(*apart, marker, ms=5, mew=0, alpha=0.8, color=f"C{k}")
        ends = np.array(left.get_xlim())
        left.plot(ends, ends, color=DARK, lw=0.7, label="equal")
        right.plot([0.03, 100], [0.03, 100], color=DARK, lw=0.7)
        right.axhline(100 * REGRET, color=DARK, lw=1, ls=":", label=f"criterion for the mean: {100 * REGRET:g} %")
        left.set(xlabel="test error of a sample, by exact refits", ylabel="test error, leave-one-out estimate")
        right.set(
            xlabel="regret of the λ of five-fold cross-validation, %",
            ylabel="regret of the λ of leave-one-out, %",
            title="regret: test error above the best λ; at 0.03 %: less",
        )
        draw_legend(left, right, columns=6)


def main() -> None:
    args = options(__doc__ or "", draw=True, workers=True, stored=True)
    verdict, quick = Verdict("leave_one_out_on_real_features", args), args.quick
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    pairs = [(kind, family) for kind in SAMPLED for family in FAMILIES]
    pairs += [(kind, family) for kind, families in REAL.items() for family in families]
    if quick:
        pairs = [("correlated", "ridge"), ("row norms", "logistic"), ("common factor", "lasso"), ("diabetes", "ridge")]
    seeds = 1 if quick else SEEDS
    asked = [
        {"kind": kind, "family": family, "seed": s, "d": 40 if quick else 50 if family == "attention" else 200}
        for s in range(seeds) for kind, family in pairs
    ]  # fmt: skip
    names = ("kind", "family", "seed", "d", "compared")
    known = verdict.stored()["rows"] if args.stored else []
    wanted = [{name: row[name] for name in names} for row in known if row["family"] == "attention"] or asked
    with pool(args) as executor:
        rows = run_trials(folder(args, "leave_one_out_on_real_features"), compare_choices, wanted, executor)
    rows = [row for row in known if row["family"] != "attention"] + rows
    order = [(each["kind"], each["family"], each["seed"]) for each in asked]
    rows.sort(key=lambda row: order.index((row["kind"], row["family"], row["seed"])))
    verdict.check(len(rows) == len(asked), f"{len(rows)} of {len(asked)} instances ran")
    there = [each for row in rows for each in row["compared"] if each["converged"] and each["reached"] > 0.7]
    off = [each for each in there if is_wrong(each)]
    trusted = sum(each["trusted"] for each in off)
    verdict.check(trusted < WRONG * len(there), f"{trusted} of {len(there)} estimates are trusted and wrong")
    doubted = sum(not each["trusted"] for each in there if not is_wrong(each))
    verdict.check(doubted < DOUBTED * len(there), f"{doubted} of {len(there)} estimates are right and not trusted")
    slack = 5.0 if quick else 1.0
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family and row["kind"] in SAMPLED]
        mean, folds = (float(np.mean([row[name] for row in mine])) for name in ("regret", "regret_folds"))
        about = f"{family}: mean regret {100 * mean:.2g} % on sampled features, {100 * folds:.2g} % by five folds"
        verdict.check(mean < slack * REGRET, about)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        worse = float(np.mean([row["worse"] for row in rows if row["kind"] == kind]))
        about = f"{kind}: the test error is {100 * worse:+.2g} % relative to five folds"
        verdict.check(worse <= slack * WORSE, about)
    worse, better = (sum(sign * row["worse"] > APART for row in rows) for sign in (1, -1))
    about = f"{worse} of {len(rows)} choices are more than 5 % worse than five folds on the same data, {better} better"
    verdict.check(worse <= max(better, slack * APART * len(rows)), about)
    verdict.write_table(format_table(rows))
    verdict.end({"rows": rows}, None if quick else draw)


if __name__ == "__main__":
    main()
