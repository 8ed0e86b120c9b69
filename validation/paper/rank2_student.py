"""Fig. 11, 14: a student of rank 2 for a teacher of rank 1 over the (α, ω) plane, from three kinds of start.

Both columns start semantically, both positionally, or one each way, with noise of .1. Without it two equal columns stay
equal: a student of rank 1 turned, whose minima are critical points of rank 2 as well, and which only rounding makes a
descent leave. Both are shown. State evolution is that of the minimum of both kinds, which the mixed start leads to.

Criterion: those of all architectures, see `validation.untied_weights`, where the kind is the larger order parameter.
In 90 % of all instances the mixed start ends within 1 % of the deepest of all minima, as the paper reports; in
95 % that is no higher than both minima of the student of rank 1 on the same samples. At ω = .3 and the largest α all
starts with noise end at one minimum in three instances of four, losses within 1e-6, and those of equal columns at
critical points of rank 1, to 1e-6, with higher losses.
"""

import numpy as np

from validation.paper._architectures.checks import MOST
from validation.paper._architectures.instances import EQUAL, ORDERS, SLICE
from validation.paper._architectures.study import main
from validation.paper._architectures.tables import by_alpha

NEAR, SAME = 1.01, 1e-6


def own_checks(verdict, study):
    lowest = [min(row[name]["train_loss"] for name in study.starts) for row in study.rows]
    near = np.mean([row["mixed"]["train_loss"] <= NEAR * low for row, low in zip(study.rows, lowest, strict=True)])
    verdict.check(near >= 0.9, f"the mixed start ends within 1 % of the deepest minimum in {near:.1%} of {len(lowest)}")
    plain = [min(row[name]["train_loss"] for name in ORDERS) for row in study.paper]
    below = np.mean([low <= (1 + SAME) * rank1 for low, rank1 in zip(lowest, plain, strict=True)])
    verdict.check(below >= 0.95, f"no higher than the minima of rank 1 in {below:.1%}")
    last = by_alpha(study.rows, SLICE)[study.size["alphas"][-1]]
    noisy = [[row[name]["train_loss"] for name in (*ORDERS, "mixed")] for row in last]
    same = np.mean([max(ends) <= (1 + SAME) * min(ends) for ends in noisy])
    verdict.check(same >= MOST, f"α={study.size['alphas'][-1]:g}: starts with noise end at one minimum in {same:.0%}")
    equal = np.mean([
        all(row[name]["singular"][1] <= SAME and row[name]["train_loss"] > min(ends) for name in EQUAL)
        for row, ends in zip(last, noisy, strict=True)
    ])  # fmt: skip
    verdict.check(equal >= MOST, f"equal columns end at higher critical points of rank 1 in {equal:.0%}")


if __name__ == "__main__":
    main(__doc__, "rank2_student", "rank2", own_checks)
