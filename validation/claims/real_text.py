"""On real text, training losses are as for Gaussian tokens of the same covariance; test errors are higher.

Method: words of the docstrings of Python's standard library have vectors of d = 200 dimensions, samples are two
neighboring words, and α is the number of samples over d. Five kinds of tokens are compared:

- text: the vectors as they are;
- shuffled: the second token comes from another sample, so that tokens are independent;
- normed: every vector has the same norm, as after layer normalization;
- pairs: Gaussian samples with the covariance of the text, within and between tokens;
- gaussian: Gaussian tokens with the covariances of the text, independent.

Word vectors: words are in the order of the text, files in the order of their names; tests and installed packages are
left out, so that the corpus depends only on the version of Python; its checksum is stored. Vectors are the leading
singular vectors of the positive pointwise mutual information within a few words, times the square roots of the singular
values.

Planted: outputs come from the paper's teacher with drawn weights, and minima are found from these weights by message
passing with default settings and by L-BFGS. Errors are on 2000 held-out samples. State evolution uses `law_of` the
training samples.

Criterion: all runs reach a critical point. On Gaussian tokens the predicted training loss is within 10 % of the mean
over seeds. Training losses of text equal the losses of Gaussian pairs within 3 standard errors, as universality states;
test errors at the largest α are higher by more than 3. `law_of` reports this: no departure of Gaussian tokens is
strong, and the departure of norms in text is. (Page "When does it apply to my data?" of the manual.)
"""

import ast
import hashlib
import re
import sys
import sysconfig
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import svds

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, WORDS, draw_legend
from gamp_attention.problem.layer import Layer, Units
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import markdown_table, mean_and_error

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
WINDOW, LEAST = 5, 5  # number of words on either side; minimum count of a word


class Corpus(NamedTuple):
    """Words of a text as indices, and vectors of the words."""

    text: np.ndarray  # (T,) indices of the words in the vocabulary
    vectors: np.ndarray  # (V, d) vectors, centered and of mean square σ² over the text
    about: dict


def read_docstrings():
    """Yield the docstrings of the standard library, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        if LEFT_OUT & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


@cache
def build_corpus(d, sigma):
    """Return the corpus with vectors of d dimensions."""
    words = [word for text in read_docstrings() for word in re.findall("[a-z]+", text.lower())]
    counts = Counter(words)
    vocabulary = sorted((word for word in counts if counts[word] >= LEAST), key=lambda word: (-counts[word], word))
    number = {word: k for k, word in enumerate(vocabulary)}
    text = np.array([number[word] for word in words if word in number])
    V = len(vocabulary)
    pairs = [(text[:-k], text[k:]) for k in range(1, WINDOW + 1)]
    rows, columns = (np.concatenate(each) for each in zip(*pairs, strict=True))
    counted = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(V, V)).tocsr()
    counted = (counted + counted.T).tocoo()
    margin = np.asarray(counted.sum(axis=0)).ravel()
    information = np.log(counted.data * margin.sum() / (margin[counted.row] * margin[counted.col]))
    positive = coo_matrix((np.maximum(information, 0), (counted.row, counted.col)), shape=(V, V)).tocsr()
    U, size, _ = svds(positive, k=d, v0=np.ones(V), solver="arpack")
    vectors = U * np.sqrt(size)
    vectors = vectors - vectors[text].mean(axis=0)
    vectors *= sigma / np.sqrt(np.mean(vectors[text] ** 2))
    about = {
        "words": len(words), "vocabulary": V, "text": len(text), "python": sys.version.split()[0],
        "sha256": hashlib.sha256(" ".join(words).encode()).hexdigest()[:16],
    }  # fmt: skip
    return Corpus(text, vectors, about)


KINDS = ("text", "shuffled", "normed", "pairs", "gaussian")
ALPHAS, SEEDS, D, HELD_OUT = (0.75, 1.5, 3.0), 8, 200, 2000
SIGMA, LAM, NEAR, ERRORS = 0.5, 0.01, 0.1, 3.0
SAME = 1e-6  # relative difference of losses in one minimum, at most
TEACHER = ga.SoftmaxTeacher(0.3, np.array([[0.6, 0.4], [0.4, 0.6]]))


def draw_samples(kind, d, n, length, rng):
    """Return vectors (n, length, d) of samples of one kind."""
    text, vectors, _ = build_corpus(d, SIGMA)
    if kind == "normed":
        vectors = vectors * (SIGMA * np.sqrt(d) / np.linalg.norm(vectors, axis=1, keepdims=True))
        vectors = vectors - vectors[text].mean(axis=0)
    rows = np.stack([text[k : len(text) - length + k] for k in range(length)], axis=1)
    if kind in ("pairs", "gaussian"):
        return draw_gaussian(kind, d, n, length, rng)
    chosen = rng.permutation(len(rows) // length)[:n] * length
    sentences = vectors[rows[chosen]]
    if kind == "shuffled":
        sentences[:, 1] = sentences[rng.permutation(n), 1]
    return sentences


_ROOTS = {}


def draw_gaussian(kind, d, n, length, rng):
    """Return Gaussian samples with the covariance of the text."""
    if (kind, d, length) not in _ROOTS:
        text, vectors, _ = build_corpus(d, SIGMA)
        flat = np.concatenate([vectors[text[k : len(text) - length + k]] for k in range(length)], axis=1)
        covariance = np.cov(flat.T)
        if kind == "gaussian":
            block = np.arange(length * d) // d
            covariance *= block[:, None] == block
        size, turns = np.linalg.eigh(covariance)
        _ROOTS[kind, d, length] = turns * np.sqrt(size.clip(0))
    root = _ROOTS[kind, d, length]
    return (rng.standard_normal((n, length * d)) @ root.T).reshape(n, length, d)


def build_positions(d):
    """Return the positions p_1 = −p_2 = 1_d/√d."""
    return np.outer([1.0, -1.0], np.full(d, d**-0.5))


def compute_overlaps(x, Q, weights):
    """Return q and θ from the fields of held-out samples, averaged over tokens."""
    z, u = (np.asarray(x @ W)[:, :, 0] / np.sqrt(len(W)) for W in (Q, weights))
    q, theta = (np.mean([np.cov(z[:, l], each[:, l])[0, 1] for l in range(2)]) for each in (z, u))
    return {"q": float(q), "theta": float(abs(theta))}


def run_planted(kind, alpha, d, seed):
    """Return message passing, L-BFGS and state evolution on samples with a planted teacher."""
    rng = np.random.default_rng([d, seed, 31])
    n, weights = round(alpha * d), rng.standard_normal((d, 1))
    x = draw_samples(kind, d, n + HELD_OUT, 2, rng)
    y, p = TEACHER(x @ weights / np.sqrt(d)) @ x, build_positions(d)
    data = ga.Dataset(x[:n], y[:n], p, lam=LAM)
    gamp, descent = ga.run_gamp(data, weights), ga.minimize_risk(data, weights, method="lbfgs")
    test = Layer(data.student, gamp.Q, p, Units.raw(d)).errors(x[n:], y[n:]).mean()
    law = ga.law_of(data, weights, target=TEACHER, noise=0.0)
    se = ga.solve_state_evolution(law, alpha, rtol=3e-3, stability=False)
    ends = se.overlaps.scalars()
    return {
        "converged": bool(gamp.converged), "train": gamp.train_loss, "descent": descent.train_loss, "test": float(test),
        **compute_overlaps(x[n:], gamp.Q, weights), "strong": list(law.strong),
        "predicted": {"train": se.train_loss, "test": se.test_error, "q": float(ends["q"]),
                      "theta": float(abs(ends["theta"])), "status": se.status.value},
    }  # fmt: skip


def format_planted(rows):
    """Return a table of means over seeds for each kind and α, and the means."""
    names = ("train", "test", "q", "theta")
    scale = {"train": 1e3, "test": 1e3, "q": 1.0, "theta": 1.0}
    heads = ["tokens", "α", "runs", "below, at, above L-BFGS"]
    for word in ("10³ ε_t", "10³ ε_g", "q", "θ"):
        heads += [word, "predicted"]
    lines, summaries = [], []
    for kind, alpha in product(KINDS, sorted({row["alpha"] for row in rows})):
        mine = [row for row in rows if (row["kind"], row["alpha"]) == (kind, alpha)]
        above = np.array([row["train"] / row["descent"] - 1 for row in mine])
        beside = ", ".join(str(each.sum()) for each in (above < -SAME, np.abs(above) <= SAME, above > SAME))
        cells = [kind, f"{alpha:g}", str(len(mine)), beside]
        known = [row for row in mine if np.isfinite(row["predicted"]["train"])]  # a branch may be lost
        each = {"kind": kind, "alpha": alpha}
        for name in names:
            measured, theory = (mean_and_error([scale[name] * row[name] for row in part])
                             for part in (mine, [row["predicted"] for row in known]))  # fmt: skip
            ratio = mean_and_error([row[name] / row["predicted"][name] for row in known])
            cells += [plus_minus(*measured), plus_minus(*theory)]
            each[name] = {"found": measured, "predicted": theory, "ratio": ratio}
        summaries.append(each)
        lines.append(cells)
    return markdown_table(heads, lines), summaries


NAMES = {
    "text": "words of a text", "shuffled": "shuffled words", "normed": "words of equal norm",
    "pairs": "Gaussian, correlated tokens", "gaussian": "Gaussian, independent tokens",
}  # fmt: skip


def draw(numbers, path):
    """Draw measured and predicted errors against α, for each kind."""
    summaries = numbers["told"]
    titles = (r"training loss $10^3\,\epsilon_t$", r"test error $10^3\,\epsilon_g$", WORDS["q"])
    with figure(path, 1, 3, (9.6, 4.2)) as axes:
        for axis, name, title in zip(axes[0], ("train", "test", "q"), titles, strict=True):
            for number, (kind, marker) in enumerate(zip(KINDS, "osD^v", strict=True)):
                mine = [each for each in summaries if each["kind"] == kind]
                alphas = np.array([each["alpha"] for each in mine]) * (1 + 0.03 * (number - 2))
                mean, error = np.array([each[name]["found"] for each in mine]).T
                style = {"fmt": marker, "ms": 5, "color": f"C{number}", "capsize": 2}
                axis.errorbar(alphas, mean, error, label=NAMES[kind], **style)
                theory = np.array([each[name]["predicted"] for each in mine])[:, 0]
                axis.plot(alphas, theory, color=f"C{number}", lw=1)
            axis.set(xlabel=ALPHA, xscale="log", title=title)
            ticks = [each["alpha"] for each in summaries if each["kind"] == KINDS[0]]
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        axes[0, 0].plot([], [], color=DARK, lw=1, label="predicted for the estimated distribution")
        draw_legend(axes[0, 0], columns=3)


def plan(quick):
    """Return the instances of all kinds of tokens."""
    d, alphas, seeds = (60, (2.0,), 2) if quick else (D, ALPHAS, SEEDS)
    cases = product(KINDS, alphas, range(seeds))
    return {run_planted: [{"kind": k, "alpha": a, "d": d, "seed": s} for k, a, s in cases]}


def judge(verdict, rows):
    """Check runs, training losses, test errors and departures."""
    quick, solved = verdict.quick, [row["converged"] for row in rows]
    verdict.check(all(solved), f"{sum(solved)} of {len(solved)} runs reach a critical point")
    table, summaries = format_planted(rows)
    verdict.write_table(table)
    of = {(each["kind"], each["alpha"]): each for each in summaries}
    alphas = sorted({alpha for _, alpha in of})
    for alpha in alphas:
        ratio, error = of["gaussian", alpha]["train"]["ratio"]
        words = f"gaussian, α = {alpha:g}: training loss over the predicted one {plus_minus(ratio, error)}"
        verdict.check(quick or abs(ratio - 1) <= NEAR, words)
        for name in ("train", "test"):
            (a, ea), (b, eb) = (of[kind, alpha][name]["found"] for kind in ("text", "pairs"))
            away = (a - b) / np.hypot(ea, eb)
            words = f"α = {alpha:g}: {name} {plus_minus(a, ea)} of text, {plus_minus(b, eb)} of Gaussian pairs"
            if name == "train":
                verdict.check(quick or abs(away) <= ERRORS, words)
            elif alpha == alphas[-1]:
                verdict.check(quick or away > ERRORS, words)
    strong = {kind: [set(row["strong"]) for row in rows if row["kind"] == kind] for kind in KINDS}
    verdict.check(quick or not any(strong["gaussian"]), "gaussian: no departure is strong")
    norms = ["variance of norms / Gaussian variance" in each for each in strong["text"]]
    verdict.check(all(norms), f"text: norms are a strong departure in {sum(norms)} of {len(norms)} samples")
    return {"about": build_corpus(rows[0]["d"], SIGMA).about, "told": summaries}


def main():
    run_claim("real_text", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
