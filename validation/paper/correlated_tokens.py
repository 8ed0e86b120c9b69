"""Figures 10 and 14: correlated tokens, E[x_1 x_2ᵀ] = c σ² I with c = 0.3, over the (α, ω) plane.

Method: the paper does not state how its inputs are correlated. Descents run on the tied softmax layer itself. State
evolution and GAMP run on the same problem in rotated tokens, which are independent: see `_architectures/instances.py`.

Criterion: the criterion of all architectures, see `untied_weights`. At the end of every descent, the training loss of
the layer equals the loss of the rotated problem, to 1e-10. α_c is within 3 standard errors plus α_c/√d of state
evolution, and at ω = 0.3 it is larger than with independent tokens by more than 3 errors, as the paper reports.
"""

from validation.paper._architectures.study import check_lines, check_shift, main

SAME = 1e-10  # relative difference of losses, at most


def own_checks(verdict, study):
    gap = max(row[name]["loss_gap"] for row in study.rows for name in study.starts)
    verdict.check(gap <= SAME, f"losses of the layer and the decorrelated problem differ by {gap:.1e} of them at most")
    check_lines(verdict, study)
    check_shift(verdict, study, later=True)


if __name__ == "__main__":
    main(__doc__, "correlated_tokens", "correlated", own_checks)
