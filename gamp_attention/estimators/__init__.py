"""Estimator for scikit-learn: an attention layer."""

try:
    from sklearn.utils.validation import validate_data  # since scikit-learn 1.6
except ImportError as error:
    raise ImportError("estimators need scikit-learn 1.6 or later: pip install 'gamp-attention[sklearn]'") from error

from gamp_attention.estimators.attention import GampAttention

__all__ = ["GampAttention"]
