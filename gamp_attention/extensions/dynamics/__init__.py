"""Trajectories for d → ∞ of message passing, gradient descent, single-pass descent and survey propagation.

- `trajectory` predicts overlaps and losses of every iteration. It takes a method object with its own equations:
  `MessagePassing`, `GradientDescent`, `SinglePass` or `Survey`.
- `single_pass` runs descent on new samples at finite d.
- `population_loss` and `population_map` evaluate the mean loss of a new sample as a function of overlaps.

Uses: the core; `spectra` (distributions of spectral starts) and `train` (averages of surveys).
"""
