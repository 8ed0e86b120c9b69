"""The command `gamp-attention law`: compare arrays with the assumptions of the theory, and predict errors."""

import argparse

from gamp_attention._tools import check
from gamp_attention._tools.display import format_text, format_to_error
from gamp_attention.extensions.cli.output import report, select
from gamp_attention.extensions.inference.law.law_of import law_of
from gamp_attention.extensions.train.loading import load_arrays, load_weights
from gamp_attention.extensions.train.standard_units import build_dataset
from gamp_attention.theory.fixed_points.solve import solve_state_evolution


def run_law(options: argparse.Namespace) -> int:
    """Run the command `law` and return its exit status."""
    alphas = [check.real("--alphas", alpha, low=0, strict=True) for alpha in options.alphas or []]
    stored = load_arrays(options.data)
    weights = None if options.teacher is None else load_weights("--teacher", options.teacher)
    data, _ = build_dataset(stored.tokens, stored.outputs, stored.positions, options.standardize, lam=options.lam)
    law = law_of(data, weights, **select(options, "classes", "noise", "seed"))
    solved = [solve_state_evolution(law.model, alpha, rtol=1e-2, stability=False) for alpha in alphas]
    lines, numbers = [str(law)], law.to_dict()
    if law.outside:
        lines.append(
            "No attention layer can produce the part of the outputs outside of the span of the tokens. Its mean square "
            f"{law.outside:.3g} adds to the test error ε_g on data like these, and is not included in predictions."
        )
    if solved:
        teacher = "random weights" if options.teacher is None else f"the weights of {options.teacher}"
        rows = [["  α", "ε_t", "ε_g", "state evolution"]]
        for alpha, point in zip(alphas, solved, strict=True):
            losses = (point.train_loss, point.train_loss_error), (point.test_error, point.test_error_error)
            rows.append([f"  {alpha:g}", *(format_to_error(*pair) for pair in losses), point.status.value])
        about = f"Predicted for a teacher with {teacher}, score noise {law.noise:.3g} and λ = {options.lam:g}:"
        lines += [about, format_text([*rows])]
        numbers["predicted"] = [point.to_dict() | {"alpha": alpha} for alpha, point in zip(alphas, solved, strict=True)]
    finished = all(point.converged for point in solved)
    report(options, "\n".join(lines), numbers, finished)
    return 0 if finished else 1
