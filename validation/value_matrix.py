"""Fig. 13, 14: a layer with a trainable value matrix 1 + U Wᵀ of low rank over the (α, ω) plane.

The paper does not say how its value matrix enters; `validation._value_descent` says why one of low rank alone cannot,
and why state evolution is that of the paper's model. Descents are in torch, on the layer itself, in all weights.

Criterion: those of all architectures, see `validation.untied_weights`; α_c is within 3 standard errors plus α_c/√d of
state evolution and, at ω = .3, of that without a value matrix on the same samples.
"""

import numpy as np

from validation._architecture_checks import judge_lines, judge_shift
from validation._architecture_study import main


def own_checks(verdict, study):
    pairs = [(row["semantic"], plain["semantic"]) for row, plain in zip(study.rows, study.paper, strict=True)]
    gains = [study.size["d"] * (plain["train_loss"] - end["train_loss"]) for end, plain in pairs]
    spikes = [end["spike"] for end, _ in pairs]
    print(f"semantic starts: median gain of risk {np.median(gains):.3g}, of norms of UWᵀ {np.median(spikes):.3g}")
    judge_lines(verdict, study)
    judge_shift(verdict, study, later=False)


if __name__ == "__main__":
    main(__doc__, "value_matrix", "value", own_checks)
