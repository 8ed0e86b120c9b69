"""Message passing, state evolution and gradient descent on one instance."""
