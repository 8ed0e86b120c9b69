"""What the posterior mean says of a fresh sample, and how far off it is."""

import numpy as np

from gamp_attention._core.gaussian import gaussian_points, psd_root
from gamp_attention.models.labels import ClassLabels
from gamp_attention.models.model import Model


class FreshSamples:
    """Pairs of fresh samples that the data do not tell apart, for the error of their mean."""

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator) -> None:
        self.model, self.rho = model, model.coordinates.rho
        size = self.rho[:, :, 0].size
        n_noise = 0 if model.attention else model.task.n_noise
        white = gaussian_points(n_points, 3 * size + 2 * n_noise, rng)
        shape = -1, *self.rho.shape[:2]
        self._known, *self._unknown = (white[:, k * size : (k + 1) * size].reshape(shape) for k in range(3))
        self._noise = np.split(white[:, 3 * size :], 2, axis=1)

    def test_error(self, V: np.ndarray) -> float:
        """Half of the mean square distance of two outputs that the same posterior has.

        Eq. :eq:`bayes-test-error`.
        """
        if isinstance(self.model.teacher, ClassLabels):
            return float("nan")
        omega = np.einsum("lab,nlb->nla", psd_root(self.rho - V), self._known)
        one, other = (omega + np.einsum("lab,nlb->nla", psd_root(V), white) for white in self._unknown)
        if not self.model.attention:
            labels = [self.model.teacher(u, noise) for u, noise in zip((one, other), self._noise, strict=True)]
            return float(0.5 * np.mean(np.sum((labels[0] - labels[1]) ** 2, axis=1)))
        trace = self.model.coordinates.trace
        apart = (self.model.teacher(one) - self.model.teacher(other)) ** 2
        noise = self.model.score_noise**2 * float(trace.sum())
        return float(0.5 * np.mean(np.sum(apart, axis=1) @ trace) / len(trace) + noise)
