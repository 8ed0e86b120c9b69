"""One valid call of every public function and class, as a line of Python whose arguments can be replaced.

Names in capitals stand for small problems and arrays; `build_names` creates them.
"""

import ast
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import gamp_attention as ga

MODELS = {
    "PAPER": "ga.paper_model(lam=0.1)",
    "SHARP": "ga.paper_model()",
    "SQUARED": "ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3), lam=0.1)",
    "PHASE": "ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1)",
    "SIGNS": "ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0), lam=0.1)",
}
START = "ga.Overlaps(q=PAIR, m=FLAT, theta=PAIR, V=WIDE)"

ARRAYS = {
    "X": "RNG.standard_normal((12, 2, 8)) / 2",
    "Y": "RNG.standard_normal((12, 2, 8)) / 2",
    "P": "np.outer([1.0, -1.0], np.full(8, 8**-0.5))",
    "PLUS_MINUS": "np.tile([1.0, -1.0], 6)",
    "SPECTRA": "np.full((2, 1), 0.25)",
    "SQUARE": "np.array([[0.6, 0.4], [0.4, 0.6]])",
    "SHARES": "np.array([[0.4, 0.15], [0.1, 0.35]])",
    "HALVES": "np.array([0.5, 0.5])",
    "COLUMN": "np.zeros((2, 1))",
    "PAIR": "np.full((2, 1, 1), 0.1)",
    "FLAT": "np.full((2, 1), 0.1)",
    "WIDE": "np.full((2, 1, 1), 1.25)",
    "TAU": "np.array([1.0, -1.0])",
    "ONE": "np.array([0.3])",
    "WEIGHTS": "0.3 * RNG.standard_normal((8, 1))",
    "SPECTRUM_ROWS": "np.repeat([[0.2, 0.3], [0.4, 0.1]], 4, axis=0)",
    "OMEGA": "0.3 * RNG.standard_normal((12, 2, 1))",
    "PARAMS": "DATA.terms('exact').params",
}
OBJECTS = {
    "DATA": "ga.sample(PAPER, d=8, alpha=1.5, seed=0)",
    "LARGE_DATA": "ga.sample(PAPER, d=8, alpha=4.0, seed=0)",
    "FIT": "ga.run_gamp(DATA, 'random')",
    "FIXED_POINT": "ga.solve_state_evolution(SHARP, alpha=1.5, rtol=0.05, stability=False)",
    "LOSS": "DATA.loss",
    "ROWS": "ga.sample(SIGNS, d=8, alpha=1.5, seed=0)",
    "NORM_LOSS": "lambda z, y, s: np.logaddexp(0, 0.1 * s - y * z)",
    "SOLUTION": "ga.solve_equations(lambda x, average, p: {'m': 0.5 * x.m + p}, {'m': 0.1}, p=0.1)",
    "STATE": "ga.initial_state(DATA, WEIGHTS)",
    "TEACHER": "ga.SoftmaxTeacher(0.3, SQUARE)",
    "LAW": "ga.coordinate_law()",
}

# every keyword of a function occurs, except keywords that a call of this size cannot use
LINES = {
    "ClassLaw": "ga.ClassLaw(patterns=[[0, 2], [1, 3]], probability=HALVES)",
    "ColumnRidge": "ga.glm_model(ga.SquaredLoss(), penalty=ga.ColumnRidge(lams=[0.1]))",
    "CoordinateClasses": "ga.coordinate_law(ga.CoordinateClasses(values=HALVES, weight=HALVES))",
    "CoordinateLaw": (
        "ga.CoordinateLaw(weight=HALVES, gamma=SQUARE, tau=SQUARE, teacher_mean=COLUMN, teacher_cov=PAIR)"
    ),
    "ClassLabels": "ga.glm_model(ga.MultinomialLoss(), ga.ClassLabels(), rank=2)",
    "Dataset": (
        "ga.Dataset(tokens=X, outputs=Y, positions=P, lam=0.1, rank=1, spectra=SPECTRA, student=None, penalty=None)"
    ),
    "DotProductAttention": (
        "ga.attention_model(student=ga.DotProductAttention(temperature=1.0, tied=True, causal=False, softmax=True))"
    ),
    "ElasticNet": "ga.paper_model(penalty=ga.ElasticNet(lam=0.1, l1=0.1))",
    "GradientDescent": (
        "(ga.trajectory(PAPER, 1.5, method=ga.GradientDescent(lr=1.0, momentum=0.5, nesterov=True), "
        "n_iter=3, n_paths=128, n_replicas=2, seed=0), "
        "ga.trajectory(PAPER, 1.5, method=ga.GradientDescent(lr=1.0, batch=0.5), n_iter=3, n_paths=128, n_replicas=2))"
    ),
    "IntensityLabels": "ga.sample(ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(noise=0.1)), 8, 1.5)",
    "LabelledDataset": (
        "ga.LabelledDataset(tokens=X, labels=PLUS_MINUS, loss=ga.LogisticLoss(), lam=0.1, rank=1, positions=P, "
        "spectra=SPECTRA, penalty=None)"
    ),
    "LinearLabels": "ga.sample(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.1)), 8, 1.5)",
    "LogisticLabels": "ga.sample(ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature=0.5)), 8, 1.5)",
    "LogisticLoss": "ga.glm_model(ga.LogisticLoss())",
    "MessagePassing": (
        "ga.trajectory(PAPER, 1.5, method=ga.MessagePassing(damping=0.5, hold_after=1), n_iter=3, "
        "n_paths=128, n_replicas=2, seed=0)"
    ),
    "MultinomialLoss": "ga.glm_model(ga.MultinomialLoss(), rank=2)",
    "PhaseRetrievalLoss": "ga.glm_model(ga.PhaseRetrievalLoss())",
    "Ridge": "ga.paper_model(penalty=ga.Ridge(lam=0.1))",
    "SinglePass": (
        "ga.trajectory(PAPER, 1.5, method=ga.SinglePass(lr=0.1, batch=0.1), "
        "n_iter=3, n_paths=128, n_replicas=2, seed=0)"
    ),
    "SoftmaxTeacher": "ga.attention_model(teacher=ga.SoftmaxTeacher(omega=0.3, A=SQUARE))",
    "Survey": (
        "ga.trajectory(PAPER, 1.5, method=ga.Survey(parisi=10.0, damping=0.4), n_iter=3, n_paths=128, "
        "n_replicas=2, seed=0)"
    ),
    "SquaredLoss": "ga.glm_model(ga.SquaredLoss())",
    "MultiHeadAttention": (
        "ga.attention_model(rank=1, lam=0.1, student=ga.MultiHeadAttention("
        "heads=2, temperature=1.0, tied=True, causal=False))"
    ),
    "Model": "ga.Model(teacher=TEACHER, coordinates=LAW, penalty=0.1, rank=1, student=ga.DotProductAttention())",
    "Overlaps": f"ga.solve_state_evolution(PAPER, 1.5, init={START}, rtol=0.1, max_work=1e4, max_iter=5)",
    "attention_model": (
        "ga.attention_model(n_tokens=2, rank=1, teacher_rank=1, omega=0.3, sigma=0.5, lam=0.1, A=SQUARE, tau=TAU, "
        "student=None, teacher=None, coordinates=None, penalty=None, score_noise=0.1)"
    ),
    "bayes_thresholds": "ga.bayes_thresholds(SQUARED, n_points=64, n_replicas=2, seed=0)",
    "branches": ("ga.branches(SHARP, alpha=1.5, starts=('semantic',), rtol=0.1, stability=False, seed=0)"),
    "compare": ("ga.compare(SQUARED, d=10, alpha=1.5, seed=0, risk='asymptotic', rtol=0.1, gd_steps=3)"),
    "continue_branch": ("ga.continue_branch(SHARP, alpha=1.5, init='semantic', parameter='alpha', to=1.45)"),
    "coordinate_law": "ga.coordinate_law(spectra=0.25, tau=TAU, teacher=None, n_tokens=2, teacher_rank=1)",
    "denoise": (
        "ga.denoise(LOSS, params=PARAMS, omega=OMEGA, V=WIDE, start=OMEGA, hold=False, jacobian=True, max_starts=3, "
        "last_step=1e-10)"
    ),
    "follow_equations": (
        "ga.follow_equations(lambda x, average, p: {'m': 0.5 * x.m + p}, SOLUTION, rtol=0.01, p=(0.1, 0.2))"
    ),
    "gamp_step": (
        "ga.gamp_step(DATA, 'exact', STATE, damping=0.5, hold=False, V_hat=WIDE, max_starts=3, last_step=1e-10, "
        "exact_below=1.0)"
    ),
    "glm_model": (
        "ga.glm_model(ga.SquaredLoss(), labels=None, n_tokens=1, rank=1, teacher_rank=1, sigma=1.0, lam=0.1, tau=ONE, "
        "penalty=None)"
    ),
    "sequence_model": (
        "ga.sequence_model(lambda u, noise: u[0, 0] + noise[0], lambda z: z[0, 0], n_tokens=1, rank=1, teacher_rank=1, "
        "n_noise=1, sigma=1.0, lam=0.1, convex=True)"
    ),
    "value_model": (
        "ga.value_model(n_tokens=2, rank=1, teacher_rank=1, values=1, readout=None, heads=2, omega=0.3, sigma=0.5, "
        "lam=0.1, A=SQUARE, tau=TAU, student=None, score_noise=0.1)"
    ),
    "AttentionLoss": (
        "ga.denoise(ga.AttentionLoss(ga.DotProductAttention(), n_tokens=2, rank=1), params=PARAMS, omega=OMEGA, V=WIDE)"
    ),
    "GampState": "ga.gamp_step(DATA, 'exact', ga.GampState(Q=WEIGHTS, V=WIDE, D=OMEGA, z=OMEGA), damping=0.5)",
    "gradient": "ga.gradient(DATA, Q=WEIGHTS, risk='exact')",
    "Checkpoint": "ga.Checkpoint('run.npz', every=60.0)",
    "IterationOptions": (
        "ga.run_gamp(DATA, init=WEIGHTS, max_iter=5, iteration=ga.IterationOptions(V=WIDE, empirical_after=5, "
        "hold_after=20))"
    ),
    "initial_state": "ga.initial_state(DATA, Q=WEIGHTS, V=WIDE)",
    "hessian_spectrum": (
        "ga.hessian_spectrum(DATA, Q=WEIGHTS, risk='exact', n_eigenvalues=2, n_probes=2, n_steps=4, seed=0)"
    ),
    "law_of": "ga.law_of(LARGE_DATA, teacher=None, target=None, noise=0.1)",
    "law_from_samples": "ga.law_from_samples(gamma=SPECTRUM_ROWS, tau=SPECTRUM_ROWS, pi=WEIGHTS)",
    "limiting_spectrum": (
        "ga.limiting_spectrum(SHARP, alpha=1.5, fixed_point=FIXED_POINT, x=HALVES[:1], width=0.01, n_points=64, "
        "n_replicas=2, seed=0)"
    ),
    "linear_baseline": "ga.linear_baseline(PAPER, rtol=1e-3, max_points=10000, seed=0)",
    "local_pool": "ga.local_pool(workers=1).shutdown()",
    "minimize_risk": (
        "ga.minimize_risk(DATA, init=WEIGHTS, risk='exact', method='momentum', lr=0.15, momentum=0.9, "
        "max_iter=5, tol=1e-8, device='cpu', seed=0)"
    ),
    "mixture_model": (
        "ga.mixture_model(classes=SHARES, means=SQUARE, rank=1, omega=0.3, sigma=0.5, lam=0.1, "
        "A=SQUARE, tau=TAU, teacher_mean=ONE, student=None, penalty=None)"
    ),
    "paper_model": "ga.paper_model(omega=0.3, sigma=0.5, lam=0.1, A=SQUARE, penalty=None, score_noise=0.1)",
    "phase_boundaries": "ga.phase_boundaries(SHARP, omegas=[0.3], alphas=(1.2, 1.3), tol=0.1)",
    "power_law_spectrum": "ga.power_law_spectrum(exponent=1.0, n_classes=2, variance=0.25)",
    "leave_one_out": "ga.leave_one_out(DATA, FIT, form='hessian', refits=1)",
    "regularization_path": (
        "ga.regularization_path(DATA, lams=[0.1, 1.0], init='random', n_starts=1, form='cavity', "
        "tol=1e-3, max_iter=12, folds=2, seed=0, progress=False)"
    ),
    "run_bayes_amp": ("ga.run_bayes_amp(DATA, init=WEIGHTS, model=None, damping=0.7, tol=1e-5, max_iter=20, seed=0)"),
    "debias": "ga.debias(DATA, FIT).interval(level=0.9)",
    "run_gamp": (
        "ga.run_gamp(DATA, init=WEIGHTS, risk='exact', damping=0.3, tol=1e-8, max_iter=60, seed=0, "
        "iteration=ga.IterationOptions(V=WIDE, hold_after=20, empirical_after=5, accelerate=False, settling=True))"
    ),
    "train": (
        "ga.train(DATA, init=WEIGHTS, risk='exact', n_starts=2, survey=3.0, escape=True, tol=1e-8, "
        "max_iter=60, seed=0, iteration=ga.IterationOptions(V=WIDE, hold_after=20))"
    ),
    "prox": "ga.prox(ga.LogisticLoss(), PLUS_MINUS, 1.0, PLUS_MINUS, convex=False)",
    "run_gamp_with_norm": (
        "ga.run_gamp_with_norm(ROWS, NORM_LOSS, init='random', convex=True, tol=1e-6, max_iter=60, seed=0)"
    ),
    "sample": "ga.sample(PAPER, d=8, alpha=1.5, seed=0, dtype='float64')",
    "sampled_test_error": "ga.sampled_test_error(DATA, Q=WEIGHTS, n_samples=5, seed=0)",
    "solve_bayes_state_evolution": (
        "ga.solve_bayes_state_evolution(SQUARED, alpha=1.5, init='informed', n_points=64, n_replicas=2, seed=0)"
    ),
    "solve_with_norm": ("ga.solve_with_norm(SIGNS, alpha=1.5, loss=NORM_LOSS, init='semantic', convex=True, rtol=0.1)"),
    "solve_broken": "ga.solve_broken(PHASE, alpha=1.0, init='random', steps=1, parisi=ONE, rtol=0.1)",
    "solve_equations": (
        "ga.solve_equations(lambda x, average, p: {'m': 0.5 * x.m + p}, start={'m': 0.1}, rtol=0.1, max_iter=9, p=0.1)"
    ),
    "solve_pair": "ga.solve_pair(FIXED_POINT, FIXED_POINT, shared=1.0, rtol=0.1, seed=0)",
    "solve_state_evolution": (
        "ga.solve_state_evolution(SHARP, alpha=1.5, init='semantic', rtol=0.1, rule='auto', response='stein', "
        "max_iter=10, max_work=1e4, stability=False, seed=0)"
    ),
    "sparse_teacher": "ga.sparse_teacher(fraction=0.5, teacher_rank=1, variance=1.0)",
    "single_pass": (
        "ga.single_pass(PAPER, d=8, alpha=1.5, init=WEIGHTS, method=ga.SinglePass(lr=0.1, batch=0.5), n_iter=3, "
        "risk='exact', device='cpu', seed=0)"
    ),
    "sweep": (
        "ga.sweep(PAPER, FOLDER, alpha=1.5, omega=0.3, lam=0.1, sigma=0.5, d=10, seed=0, branch='random', "
        "method='GAMP', rtol=0.1, risk='exact', n_test=10, descent='gd', gd_steps=3, gamp_steps=20, tol=1e-8, "
        "warm=True)"
    ),
    "train_loss": "ga.train_loss(DATA, Q=WEIGHTS, risk='exact')",
    "trajectory": (
        "ga.trajectory(PAPER, alpha=1.5, init='semantic', method=ga.MessagePassing(), n_iter=3, n_paths=128, "
        "n_replicas=2, seed=0)"
    ),
}


# classes of results, and names that take neither a number nor an array
RESULTS = {
    "BayesAmpResult", "BayesStateEvolution", "BayesThresholds", "Boundary", "BranchPath", "Branches",
    "EquationsCurve", "EquationsSolution", "BrokenStateEvolutionResult", "Comparison", "OnlineResult", "PairResult",
    "ConvergenceError", "DataLaw", "DebiasedWeights", "Denoised", "Departure", "DescentResult", "FitResult",
    "GLMModel", "GampResult", "HessianSpectrum", "History", "LeaveOneOut", "LimitingSpectrum", "LinearBaseline",
    "MixtureModel", "PhaseBoundaries", "RegularizationPath", "SequenceModel", "Stability", "StartRecord",
    "StateEvolutionResult", "Status", "SurveyEnd", "SurveyRecord", "Sweep", "TrainResult", "Trajectory", "__version__",
}  # fmt: skip
TESTED_ELSEWHERE = {  # these have separate tests, as they draw, register classes, or need a cluster
    "load_result", "plot_comparison", "plot_phase_diagram",
    "register_attention", "register_loss", "register_penalty",
}  # fmt: skip


def build_names(folder: str) -> dict[str, Any]:
    """Return all names that the lines use; `folder` receives files that a line writes."""
    names: dict[str, Any] = {"ga": ga, "np": np, "RNG": np.random.default_rng(0), "FOLDER": folder, "scaled": scaled}
    for made in (MODELS, {name: text for name, text in ARRAYS.items() if name != "PARAMS"}, OBJECTS, ARRAYS):
        for name, text in made.items():
            if name not in names:
                names[name] = eval(text, names)
    return names


def scaled(size: float, values: Any) -> np.ndarray:
    """Return an array times a number, without a warning."""
    with np.errstate(all="ignore"):
        return size * np.asarray(values)


# arguments that set the amount of work, and values of theirs that legitimately take too long for a test
EFFORT = {
    "alpha", "d", "gamp_steps", "gd_steps", "instances", "max_iter", "max_points", "max_work", "n_paths", "n_points",
    "n_replicas", "n_starts", "n_test", "n_tokens", "rank", "rtol", "teacher_rank", "threads", "workers",
}  # fmt: skip
LONG = ("1e5", "10**5", "10**6")


class Argument(NamedTuple):
    """A keyword argument of a line that can be replaced."""

    number: int  # index among the keywords of the line
    name: str
    kind: str  # "number", "array", "flag", "word" or "other"
    text: str


@cache
def list_arguments(line: str) -> tuple[Argument, ...]:
    """Return the keyword arguments of all calls in a line."""
    arguments = []
    for number, keyword in enumerate(_keywords(ast.parse(line))):
        text = ast.unparse(keyword.value)
        arguments.append(Argument(number, str(keyword.arg), _kind(keyword.value), text))
    return tuple(arguments)


def _keywords(tree: ast.AST) -> list[ast.keyword]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]


def _kind(value: ast.expr) -> str:
    if isinstance(value, ast.Name):
        return "array" if value.id in ARRAYS else "other"
    if isinstance(value, ast.List | ast.Tuple) and {_kind(each) for each in value.elts} in ({"number"}, {"array"}):
        return "array"
    constant = value.value if isinstance(value, ast.Constant) else None
    kinds = {bool: "flag", int: "number", float: "number", str: "word"}
    return kinds.get(type(constant), "other")


def replace_argument(line: str, number: int, text: str) -> str:
    """Return the line with another text for one of its keyword arguments."""
    tree = ast.parse(line)
    _keywords(tree)[number].value = ast.parse(text, mode="eval").body
    return ast.unparse(tree)


def vary_argument(slot: Argument, line: str, sizes: tuple[str, ...]) -> Iterator[str]:
    """Yield the line with the argument replaced by each number, or with an array scaled by each number."""
    for size in sizes:
        long = (slot.name in EFFORT and size in LONG) or (slot.name == "max_work" and eval(size) > 1e4)
        if slot.kind == "number" and not long:
            yield replace_argument(line, slot.number, size)
        elif slot.kind == "array" and "**" not in size:
            yield replace_argument(line, slot.number, f"scaled({size}, {slot.text})")
