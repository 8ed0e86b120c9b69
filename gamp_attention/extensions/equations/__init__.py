"""Fixed points of equations that the user writes: saddle-point equations of any model, with errors.

- `solve_equations` solves x = F(x) for named order parameters, and `follow_equations` follows the solution in a
  parameter, around folds.
- `average` in these equations is an average over standard normals to a given accuracy, and `prox` the proximal map of
  a loss.

Uses: the core; `phases` (continuation); `sequence` (tracing of functions).
"""
