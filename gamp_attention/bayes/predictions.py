"""What the posterior mean says of a fresh sample, and how far off it is."""

import numpy as np

from gamp_attention._core.gaussian import gaussian_points, psd_root
from gamp_attention.bayes.averages import FINE, IntegralRule, class_probabilities
from gamp_attention.models.labels import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels
from gamp_attention.models.model import Model


class FreshSamples:
    """Pairs of fresh samples that the data do not tell apart, for the error of their mean."""

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator, rule: IntegralRule = FINE) -> None:
        self.model, self.rho, self.rule = model, model.coordinates.rho, rule
        self._white = np.empty(0)
        if model.attention:
            size = self.rho[:, :, 0].size
            white = gaussian_points(n_points, 3 * size, rng)
            self._white = white.reshape(-1, 3, *self.rho.shape[:2])

    def test_error(self, V: np.ndarray, known: np.ndarray) -> float:
        """Return half of the mean square distance between two outputs drawn from the same posterior.

        For labels it has a closed form or is an integral; for attention it is an average over samples.
        Eq. :eq:`bayes-test-error`.

        Parameters
        ----------
        V, known : (L, t, t) posterior covariances of the fields, and covariances of their posterior means.
        """
        if not self.model.attention:
            return self._label_error(V, known)
        omega = np.einsum("lab,nlb->nla", psd_root(known), self._white[:, 0])
        root = psd_root(V)
        one, other = (omega + np.einsum("lab,nlb->nla", root, self._white[:, k]) for k in (1, 2))
        trace = self.model.coordinates.trace
        apart = (self.model.teacher(one) - self.model.teacher(other)) ** 2
        noise = self.model.score_noise**2 * float(trace.sum())
        return float(0.5 * np.mean(np.sum(apart, axis=1) @ trace) / len(trace) + noise)

    def _label_error(self, V: np.ndarray, known: np.ndarray) -> float:
        """Return the mean square error of the posterior mean of a label."""
        labels = self.model.teacher
        if isinstance(labels, LinearLabels):
            return float(np.trace(V, axis1=1, axis2=2).sum() + labels.noise**2 * V.shape[0] * V.shape[1])
        if isinstance(labels, ClassLabels):
            return float("nan")
        unknown, seen = float(V.sum(axis=0)[0, 0]), float(known.sum(axis=0)[0, 0])
        if isinstance(labels, IntensityLabels):
            return 4 * seen * unknown + 2 * unknown**2 + labels.noise**2
        assert isinstance(labels, LogisticLabels)
        if not labels.temperature:  # four times half the probability that two signs differ
            return 4 / np.pi * float(np.arcsin(np.sqrt(0.5 * unknown / (unknown + seen))))
        weight, likely, unlikely, _ = class_probabilities(seen, unknown, labels.temperature, self.rule)
        return 4 * float(weight @ (likely * unlikely))
