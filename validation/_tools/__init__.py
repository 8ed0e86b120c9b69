"""What scripts of several groups share, and what runs them."""
