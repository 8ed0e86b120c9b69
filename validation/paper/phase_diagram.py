"""Figure 3 (centre, right): the phase diagram in (α, ω) by state evolution.

A grid of 25 × 25 cells, both branches to a relative accuracy of 1e-3, and boundaries with errors at 12 of its ω. Δε_t =
ε_t(positional) − ε_t(semantic) is above zero where the semantic minimum is the global one. ε_lin − ε_g is above zero
where the global minimum beats the linear baseline. Grey: a branch does not exist. Crosses: from both starts all weights
go to zero, as they do at finite d, where Q = 0 is then a minimum.

Criterion: every cell is solved, or is known not to exist. The sign of Δε_t, and which branches exist, agree with the
boundaries at every ω where both were computed. α_c <= α_l at every ω probed; a counterexample is printed and fails.
The boundaries have the accuracy asked for. At full size, computed afresh by two processes, the grid takes at most 600
s and the boundaries 300 s. α_c(.3) and α_l(.3) are printed beside the published ones, which carry a few per cent of
quadrature error; nothing is tuned to them.
"""

from validation.paper._phase_diagram import study


def main():
    study(__doc__, "paper")


if __name__ == "__main__":
    main()
