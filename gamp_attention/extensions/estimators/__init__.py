"""`GampAttention`, an estimator of scikit-learn.

Uses: the core; `inference`, `sequence` and `train`.
"""

try:
    from sklearn.utils.validation import validate_data
except ImportError as error:
    raise ImportError("estimators need scikit-learn 1.6 or later: pip install 'gamp-attention[sklearn]'") from error
