"""Figure 9: the phase diagram of a target whose A is not symmetric, by state evolution.

Method: every second α and ω of `phase_diagram`, as without that symmetry averages take four times as long; A = [[0.3,
0.7], [0.8, 0.2]].

Criterion: the criterion of `phase_diagram`.
"""

from validation.paper.phase_diagram import run_study


def main():
    run_study(__doc__, "other")


if __name__ == "__main__":
    main()
