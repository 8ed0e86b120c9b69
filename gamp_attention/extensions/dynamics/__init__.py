"""Trajectories for d → ∞ of message passing, gradient descent, single-pass descent and survey propagation.

- `trajectory` predicts overlaps and losses of every iteration. It takes a method object with its own equations:
  `MessagePassing`, `GradientDescent`, `SinglePass` or `Survey`.
- `single_pass` runs descent on new samples at finite d.

Uses: the core; `train` (averages of surveys).
"""
