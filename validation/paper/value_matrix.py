"""Figures 13 and 14: a layer with a trainable value matrix 1 + U Wᵀ of low rank over the (α, ω) plane.

Method: the paper does not state how its value matrix enters. A value matrix of low rank could not fit targets in R^d,
so it is added to the identity, and the prediction is state evolution of the paper's model:
`_architectures/instances.py` has the argument. Descents are in torch, on the layer itself, in all weights.

Criterion: the criterion of all architectures, see `untied_weights`. α_c is within 3 standard errors plus α_c/√d of
state evolution and, at ω = 0.3, of α_c without a value matrix on the same samples.
"""

from validation.paper._architectures.study import check_lines, check_shift, main


def own_checks(verdict, study):
    check_lines(verdict, study)
    check_shift(verdict, study, later=False)


if __name__ == "__main__":
    main(__doc__, "value_matrix", "value", own_checks)
