"""Bayes-optimal estimation: what can be learned from data if the teacher's map, its prior and the noise are known.

`run_bayes_amp` computes posterior mean and variance of the teacher's weights from data by message passing.
`solve_bayes_state_evolution` predicts its overlap with the teacher for d → ∞, with errors. `bayes_thresholds` has the
sample complexities of weak recovery, of full recovery and of hard phases.

Teachers are attention layers, labels of generalized linear models, or functions of the fields (`sequence_model`).

Uses: the core; `sequence` (targets that are functions) and `train` (eigenvectors of spectral starts).
"""
