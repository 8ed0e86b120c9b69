"""What message passing is compared with: gradient descent, and the linear layer."""
