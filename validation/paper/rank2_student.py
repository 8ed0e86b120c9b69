"""Figures 11 and 14: a student of rank 2 for a teacher of rank 1 over the (α, ω) plane, from three kinds of start.

Method: both columns start semantically, both positionally, or one each way, with noise of 0.1. Without the noise two
equal columns stay equal: this is a rotated student of rank 1. Its minima are critical points of rank 2, too, which a
descent leaves only by rounding. Starts with and without noise are shown. State evolution is computed for the minimum of
both kinds, to which the mixed start leads.

Criterion: the criterion of all architectures, see `untied_weights`, in which the kind is the larger order parameter. In
90 % of all instances the mixed start ends within 1 % of the deepest of all minima, as the paper reports. In 95 % the
deepest minimum is not above both minima of the student of rank 1 on the same samples. At ω = 0.3 and the largest α, in
three of four instances: all starts with noise end at one minimum, losses within 1e-6, and starts with equal columns end
at critical points of rank 1, to 1e-6, with higher losses.
"""

import numpy as np

from validation.paper._architectures.instances import EQUAL, ORDERS, SLICE
from validation.paper._architectures.study import MIN_FRACTION, group_by_alpha, main

NEAR, SAME = 1.01, 1e-6


def own_checks(verdict, study):
    lowest = [min(row[name]["train_loss"] for name in study.starts) for row in study.rows]
    near = np.mean([row["mixed"]["train_loss"] <= NEAR * low for row, low in zip(study.rows, lowest, strict=True)])
    verdict.check(near >= 0.9, f"the mixed start ends within 1 % of the deepest minimum in {near:.1%} of {len(lowest)}")
    plain = [min(row[name]["train_loss"] for name in ORDERS) for row in study.paper]
    below = np.mean([low <= (1 + SAME) * rank1 for low, rank1 in zip(lowest, plain, strict=True)])
    verdict.check(below >= 0.95, f"no higher than the minima of rank 1 in {below:.1%}")
    alpha = study.size["alphas"][-1]
    last = group_by_alpha(study.rows, SLICE)[alpha]
    noisy = [[row[name]["train_loss"] for name in (*ORDERS, "mixed")] for row in last]
    same = np.mean([max(ends) <= (1 + SAME) * min(ends) for ends in noisy])
    verdict.check(same >= MIN_FRACTION, f"α={alpha:g}: starts with noise end at one minimum in {same:.0%}")
    equal = np.mean([
        all(row[name]["singular"][1] <= SAME and row[name]["train_loss"] > min(ends) for name in EQUAL)
        for row, ends in zip(last, noisy, strict=True)
    ])  # fmt: skip
    verdict.check(equal >= MIN_FRACTION, f"equal columns end at higher critical points of rank 1 in {equal:.0%}")


if __name__ == "__main__":
    main(__doc__, "rank2_student", "rank2", own_checks)
