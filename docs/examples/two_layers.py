"""A sequence model: two layers of attention, written as a plain function of a sample."""

import numpy as np

import gamp_attention as ga


def softmax(scores):
    """Return weights that add up to one in each row."""
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None]


def layers(z):
    """Return the attention matrix of the second layer from the fields z (2, 2), one column for each layer."""
    first = np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))
    second = first @ z[:, 1]
    return softmax(np.outer(second, second))


def main() -> None:
    """Train both layers by GAMP and estimate the error on new samples from the training data."""
    model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=0.01)
    data = ga.sample(model, d=100, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data, init="semantic")
    new = ga.leave_one_out(data, gamp)
    print(f"GAMP {gamp.status.value}: training loss {gamp.train_loss:.4f}, error on new data {new.test_error:.4f}")


if __name__ == "__main__":
    main()
