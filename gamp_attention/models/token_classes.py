"""Base of models whose tokens have classes, which determine their means and covariances.

A model with classes has S sources, one for each (token, class) pair. Each combination of classes is a component of the
model: a model without classes, whose averages are weighted with the probability of the combination.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.coordinates import CoordinateLaw, law_from_samples
from gamp_attention.models.model import Component, Model


class TokenClasses(Model):
    """Base of models whose tokens have classes; a subclass has the fields `classes` and `class_means`.

    `coordinates` is the distribution ν over sources: γ_s of Σ_s, τ_s = √d (p_l + μ_s), teacher weights. `class_means`
    (K, S) are √d μ_s in each class of coordinates, without spikes. They are needed because the teacher reads tokens
    without their positions.
    """

    def given(self, number: int) -> Model:
        """Return the model of samples with the classes of pattern `number`."""
        raise NotImplementedError

    def _check_classes(self) -> None:
        """Raise ValueError unless the distribution of coordinates, the classes and the class means agree."""
        if self.coordinates.gamma.shape[1] != self.classes.n_sources:
            got = f"{self.coordinates.gamma.shape[1]} sources"
            needs = f"a distribution of the {self.classes.n_sources} sources of `classes`"
            raise check.fail("coordinates", got, needs)
        means = check.array("class_means", self.class_means, self.coordinates.tau.shape)
        positions, classes = self.coordinates.tau - means, self.classes
        of_first_class = positions[:, classes.first][:, classes.token]
        if not np.allclose(positions, of_first_class, rtol=0, atol=1e-9 * (1 + np.abs(positions).max())):
            needs = "the same positions coordinates.tau - class_means in all classes of a token"
            raise check.fail("class_means", means, needs)

    def law_of_pattern(self, number: int) -> CoordinateLaw:
        """Return the distribution of coordinates of samples with the classes of pattern `number`, without spikes."""
        law, at = self.coordinates, self.classes.patterns[number]
        return CoordinateLaw(law.weight, law.gamma[:, at], law.tau[:, at], law.teacher_mean, law.teacher_cov)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One component for each pattern of classes."""
        patterns = zip(self.classes.probability, self.classes.patterns, strict=True)
        return tuple(Component(float(p), sources, self.given(k)) for k, (p, sources) in enumerate(patterns))

    def on_coordinates(self, gamma: np.ndarray, tau: np.ndarray, class_means: np.ndarray, pi: np.ndarray) -> Model:
        """Return this model with the distribution of given coordinates.

        The arguments are γ, √d (p + μ) and √d μ, each (d, S) and with spikes, and teacher rows (d, t).
        """
        S, spikes = tau.shape[1], self.coordinates.spikes
        if spikes is not None:
            tau, class_means = tau - pi @ spikes.T, class_means - pi @ spikes.T
        # the means are stacked below τ so that coordinates of one class have equal class means too
        both = law_from_samples(np.tile(gamma, 2), np.concatenate([tau, class_means], axis=1), pi)
        spreads = {"gamma_spread": both.gamma_spread[:S], "tau_spread": both.tau_spread[:S]}
        law = replace(both, gamma=both.gamma[:, :S], tau=both.tau[:, :S], spikes=spikes, **spreads)
        return replace(self, coordinates=law, class_means=both.tau[:, S:])  # type: ignore[call-arg]
