"""State evolution: the law of message passing in the limit d → ∞."""
