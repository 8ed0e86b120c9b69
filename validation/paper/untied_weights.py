"""Figures 12 and 14: separate weights for queries and keys, r = 1 + 1, over the (α, ω) plane.

Criterion of all architectures: 95 % of the descents leave a gradient norm of at most 1e-6. The deepest minimum is
semantic at the largest α and smallest ω, positional at the opposite corner. At ω = 0.3, if replica symmetry is
consistent and three of four instances stay on the branch, losses and order parameters are within 3 standard errors plus
value/√d of state evolution.

Criterion of this script: α_c is within 3 standard errors plus α_c/√d of state evolution, and at ω = 0.3 it is larger
than with tied weights by more than 3 errors, as the paper reports.
"""

from validation.paper._architectures.study import check_lines, check_shift, main


def own_checks(verdict, study):
    check_lines(verdict, study)
    check_shift(verdict, study, later=True)


if __name__ == "__main__":
    main(__doc__, "untied_weights", "untied", own_checks)
