"""Fig. 12, 14: queries and keys with weights of their own, r = 1 + 1, over the (α, ω) plane.

Criterion: those of all architectures, and those of transitions. All: 95 % of the descents leave a gradient norm of at
most 1e-6; the deepest minimum is semantic at the largest α and smallest ω, positional at the other corner; at ω = .3,
where replica symmetry is consistent and three instances in four stay on the branch, losses and order parameters are
within 3 standard errors plus value/√d of state evolution. Transitions: α_c is within 3 standard errors plus α_c/√d of
state evolution, and at ω = .3 later than with tied weights by more than 3 errors, as the paper reports.
"""

from validation.paper._architectures.checks import judge_lines, judge_shift
from validation.paper._architectures.study import main


def own_checks(verdict, study):
    judge_lines(verdict, study)
    judge_shift(verdict, study, later=True)


if __name__ == "__main__":
    main(__doc__, "untied_weights", "untied", own_checks)
