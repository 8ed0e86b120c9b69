"""The law of one's own tokens, from arrays, and how far they are from what it assumes."""

from gamp_attention.data.law.law_of import law_of

__all__ = ["law_of"]
