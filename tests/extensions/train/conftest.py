"""A call of `train` with one start, to which tests add one feature at a time."""

from functools import partial

import gamp_attention as ga

train_one = partial(ga.train, n_starts=1, survey=False, escape=False)
