"""`GampAttention`, an estimator of scikit-learn.

Uses: the core; `inference`, `sequence` and `train`.
"""
