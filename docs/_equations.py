"""Table of equations and functions: a docstring cites the label of each equation that its function computes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import gamp_attention as ga
from validation._tools.names import EVERY

HERE = Path(__file__).parent
PACKAGE = Path(ga.__file__).parent
CITATION = re.compile(r":eq:`([\w-]+)`")
# label: (number in the paper, subject)
SUBJECTS = {
    "teacher": ("(1), (16)", "Teacher"),
    "student": ("(2), (15)", "Student"),
    "risk": ("(3)", "Risk, and its gradient"),
    "fields": ("(2)", "Local fields"),
    "glm": ("(3)", "Loss of a sample as a function of its fields"),
    "asymptotic-risk": ("(41)", "Asymptotic risk"),
    "prox": ("(8)", "Output denoiser (proximal problem of a sample)"),
    "force": ("(8)", "Force on the fields and its mean response"),
    "input-denoiser": ("", "Input denoiser"),
    "variances": ("", "Mean response of the weights"),
    "column-strengths": ("", "Strengths of columns, and columns of fixed norm"),
    "averages": ("", "Damped weights and variances"),
    "memory": ("", "Averaged Onsager term"),
    "naive-memory": ("", "Onsager term without the average"),
    "critical": ("", "Fixed points are critical points"),
    "jacobian": ("", "Derivative of the proximal map"),
    "overlaps": ("(6), (7)", "Overlaps"),
    "channel": ("(8)", "Distribution of the fields"),
    "conjugates": ("(9)", "Conjugate overlaps"),
    "weights": ("(7)", "Overlaps from the weights"),
    "drift": ("(7)", "Distribution of the weights"),
    "training-loss": ("(14)", "Training loss"),
    "test-error": ("(4), (10)", "Test error"),
    "free-energy": ("", "Free energy"),
    "baseline": ("(17) to (20)", "Linear baseline"),
    "iterates": ("", "Iterates of the weights"),
    "path-law": ("", "Fields at several times"),
    "jump-mass": ("", "Jump mass"),
    "replicon": ("", "Replicon eigenvalue"),
    "jump-shift": ("", "Change of V if jumps are omitted"),
    "growth": ("", "Stability of fixed points"),
    "boundaries": ("", "Phase boundaries α_c and α_l"),
    "mixture": ("Result C.2", "Mixture distributions of tokens"),
    "mixture-conjugates": ("Result C.2", "Conjugate overlaps of mixtures"),
    "errors": ("", "Propagation of quadrature errors to the fixed point"),
    "weights-stein": ("", "Overlap of weights and teacher for any penalty"),
    "descent-fields": ("", "Fields of gradient descent"),
    "descent-weights": ("", "Weights of gradient descent"),
    "stored-times": ("", "Descent with histories at stored times"),
    "online": ("", "Descent on new samples"),
    "spectral": ("", "Matrix whose eigenvectors are spectral starts"),
    "fitted-weights": ("", "Weight matrices of the samples"),
    "posterior-moments": ("", "Posterior second moments of the teacher's fields"),
    "posterior-weights": ("", "Weight matrices if the teacher's map is known"),
    "spectral-law": ("", "Spectrum of this matrix for d → ∞"),
    "survey-fields": ("", "Averages over the fields of a cluster of minima"),
    "survey-weights": ("", "Averages over the weights of a cluster of minima"),
    "survey-step": ("", "Iteration of survey propagation"),
    "current-minima": ("", "GAMP whose samples keep their current minima"),
    "hessian-density": ("", "Density of the Hessian's spectrum"),
    "hessian-outliers": ("", "Eigenvalues of the Hessian outside the bulk"),
    "lower-edge": ("", "Lower edge of the Hessian's spectrum"),
    "leave-one-out": ("", "Fields of a sample under weights trained without it"),
    "cavity-field": ("", "The same fields, by message passing"),
    "remainder": ("", "Exact refits of single samples, and the change of curvature"),
    "refit-correction": ("", "Correction of the other samples by refits"),
    "loo-variance": ("", "Variance of the mean leave-one-out error"),
    "selection": ("", "Effect of the selection of a minimum on the mean leave-one-out error"),
    "skewed-interval": ("", "Interval of the mean of skewed errors"),
    "error-bound": ("", "Bound on the error of a new sample"),
    "interpolated-errors": ("", "Errors of samples between two values of λ"),
    "group-variance": ("", "Variance of the mean error of samples in groups"),
    "debiased": ("", "Weights without the bias of the penalty"),
    "debiased-noise": ("", "Noise of these weights"),
    "debiased-orthogonal": ("", "Weights and noise for correlated columns"),
    "resolvents": ("", "Resolvent of a covariance from few samples"),
    "bayes-output": ("", "Posterior of a sample's fields"),
    "bayes-inversion": ("", "Fields from attention matrices"),
    "bayes-input": ("", "Posterior of the weights"),
    "bayes-amp": ("", "Bayes-optimal message passing"),
    "bayes-bethe": ("", "Bethe free entropy"),
    "bayes-overlaps": ("", "Bayes-optimal state evolution"),
    "bayes-entropy": ("", "Free entropy of the Bayes-optimal state evolution"),
    "bayes-test-error": ("", "Test error of the posterior mean"),
    "bayes-weak": ("", "Weak-recovery threshold"),
}


def find_labels(page: Path) -> list[str]:
    """Return the labels of the equations of a page, in order."""
    return re.findall(r"^ *\$\$ \(([\w-]+)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def order_pages(index: Path = HERE / "index.md") -> list[Path]:
    """Return the pages of the manual, in the order of its table of contents."""
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", index.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    return [HERE / f"{name}.md" for name in names if (HERE / f"{name}.md").exists()]


def iterate_docstrings() -> Iterator[tuple[str, str]]:
    """Yield (dotted name, docstring) of all functions and classes of the package."""

    def iterate_inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}"
                yield name, ast.get_docstring(child) or ""
                yield from iterate_inside(child, name)

    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        yield from iterate_inside(ast.parse(path.read_text(encoding="utf-8")), module)


def list_citations() -> dict[str, list[str]]:
    """Return {label: dotted names of the functions whose docstrings cite the equation}, public names first."""
    cited: dict[str, list[str]] = {}
    for name, text in iterate_docstrings():
        for label in CITATION.findall(text):
            cited.setdefault(label, []).append(name)
    return {
        label: sorted(dict.fromkeys(names), key=lambda name: not _is_public(name)) for label, names in cited.items()
    }


def _is_public(name: str) -> bool:
    return _find_public(name) is not None


def _find_public(name: str) -> str | None:
    """Return the name without its module if it is a public function or class, or a member of a public class."""
    owner, _, last = name.rpartition(".")
    owner = owner.rpartition(".")[2]
    if owner[:1].isupper():
        return f"{owner}.{last}" if owner in EVERY else None
    return last if last in EVERY else None


def format_name(name: str, internal: str) -> str:
    """Return a link to the documentation of a function; its name as code if it has none.

    Parameters
    ----------
    name : dotted name, with the package.
    internal : text of the page that lists documented functions that are not public.
    """
    target = _find_public(name)
    if target is None:
        target = name.partition(".")[2]
        documented = (target, target.rpartition(".")[0])  # the function or, of a method, its class
        if not any(re.search(rf"^   {re.escape(each)}$", internal, re.MULTILINE) for each in documented):
            return f"`{target}`"
    owner, _, last = target.rpartition(".")
    if last[0].isupper():
        return f"{{class}}`{target}`"
    return f"{{obj}}`{target}`" if owner.rpartition(".")[2][:1].isupper() else f"{{func}}`{target}`"


def build_table() -> str:
    """Return a row for each equation that functions compute: number, number in the paper, subject and functions."""
    internal, cited = (HERE / "internals.md").read_text(encoding="utf-8"), list_citations()
    rows = ["| equation | paper | subject | computed by |", "|---|---|---|---|"]
    for label in (label for page in order_pages() for label in find_labels(page) if label in cited):
        paper, subject = SUBJECTS.get(label, ("", label.replace("-", " ").capitalize()))
        names = ", ".join(format_name(name, internal) for name in cited[label])
        rows.append(f"| {{eq}}`{label}` | {paper} | {subject} | {names} |")
    return "\n".join(rows) + "\n"
