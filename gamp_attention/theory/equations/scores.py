"""Derivatives of averages over the channel in the overlaps q, m and θ, from averages of products with scores.

For every token, x_l = (ω̃_l, y_l) is a centered Gaussian with covariance C_l = [[q, θ], [θᵀ, ρ]], and ω_l = m_l + ω̃_l.
At fixed fields, only the density depends on these overlaps, so that the derivative of E[h] is E[h s] with the score

    s = ½ x_lᵀ C_l⁻¹ dC_l C_l⁻¹ x_l − ½ tr(C_l⁻¹ dC_l) + (dm_l, 0)ᵀ C_l⁻¹ x_l

(a score-function derivative). One average thus has the derivatives in all directions, including directions that break a
symmetry, and no differences of averages with different panels enter.

V changes the proximal map itself, and so has no score. With a single field, ∂g/∂V = ½ ∂(g²)/∂ω, which holds with the
jumps of g: their positions move with velocity −½ (g₋ + g₊), so that E[g²] changes with V by
(⅔ E[g³ e] − ⅙ Σ_jumps φ(e) (Δg)³)/u on a line ω = c + u e, and the other averages follow from averages of g² e^j.
"""

from typing import Any

import numpy as np

from gamp_attention.theory.equations.channel import OF_TOKENS, Channel, Moments
from gamp_attention.theory.equations.expansions import ChannelExpansion, Entries, complete_slopes


class Scores:
    """Scores of a channel for all entries of q, m and θ."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        L, r, t = channel.shape
        overlaps, self.includes_V = channel.overlaps, L * r == 1
        covariance = np.block(
            [[overlaps.q, overlaps.theta], [np.swapaxes(overlaps.theta, 1, 2), channel.model.coordinates.rho]]
        )
        inverse = np.linalg.inv(covariance)
        entries = Entries.of(channel.shape, ("q", "m", "theta", "V")[: 3 + self.includes_V])
        self._families, kept = entries.families, entries.families != "V"
        K = int(kept.sum())
        dC = np.zeros((K, L, r + t, r + t))
        dC[..., :r, :r], dC[..., :r, r:], self._dm = entries.q[kept], entries.theta[kept], entries.m[kept]
        dC[..., r:, :r] = np.swapaxes(dC[..., :r, r:], 2, 3)
        self._form = inverse @ dC @ inverse  # (K, L, r + t, r + t)
        self._linear = np.einsum("lab,klb->kla", inverse[:, :, :r], self._dm)
        self._constant = -0.5 * np.einsum("lab,klba->k", inverse, dC)
        self._shapes = [(len(self._families), L, *shape) for shape in ((r,), (r, r), (r, t), (r, r), (r, r))]
        self.n_products = sum(int(np.prod(shape)) for shape in self._shapes)  # number of entries of a row of `products`

    def values(self, noise: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the scores (n, K) at fields ω̃ = noise (n, L, r) and teacher fields y (n, L, t)."""
        here, K = np.concatenate([noise, y], axis=2), len(self._form)
        pairs = (here[..., :, None] * here[..., None, :]).reshape(len(y), -1)
        linear = here.reshape(len(y), -1) @ self._linear.reshape(K, -1).T
        return self._constant + linear + 0.5 * pairs @ self._form.reshape(K, -1).T

    def products(self, lines: Any) -> np.ndarray:
        """Return the averages OF_TOKENS of products with scores along lines (`LineValues`), as one row for each line.

        The averages are those of g times powers of e from 0 to 3, and of g gᵀ and the derivative from 0 to 2.
        """
        y, noise, direction = lines.y, lines.noise, lines.direction
        g, gg, response = lines.out.g, lines.out.gg, lines.out.response
        n, K = len(y), len(self._form)
        here = np.concatenate([noise, y], axis=2)
        along = np.concatenate([direction, np.zeros(y.shape[1:])], axis=1)
        on_along = np.einsum("klab,lb->kla", self._form, along)
        score = (  # coefficients of the powers of e
            self.values(noise, y),
            here.reshape(n, -1) @ on_along.reshape(K, -1).T + np.einsum("la,kla->k", along, self._linear),
            0.5 * np.einsum("la,kla->k", along, on_along)[None],
        )
        columns = g[..., None]
        with_noise = columns[:, :-1] * noise[:, None, :, None] + columns[:, 1:] * direction[None, None, :, None]
        values = []
        for powers in (g, with_noise, columns * y[:, None, :, None], gg, response):
            rows = powers.reshape(n, powers.shape[1], 1, -1)
            values.append(sum(s[:, :, None] * rows[:, j] for j, s in enumerate(score)))
        if self.includes_V:
            u, (gg_0, gg_e, gg_ee) = direction[0, 0], gg[..., 0, 0, 0].T
            in_V = 0.5 * gg_e / u, 0.5 * (gg_ee - gg_0) / u
            squares = (2 * lines.cubes[0] - 0.5 * lines.cubes[1]) / (3 * u)
            slopes = in_V[0], in_V[0] * noise[:, 0, 0] + in_V[1] * u, in_V[0] * y[:, 0].T, squares, -in_V[1] / u
            pairs_of_rows = zip(values, slopes, strict=True)
            values = [np.concatenate([rows, slope.T.reshape(n, 1, -1)], axis=1) for rows, slope in pairs_of_rows]
        return np.hstack([rows.reshape(n, -1) for rows in values])

    def complete(self, moments: Moments, products: np.ndarray, jumps: bool) -> ChannelExpansion:
        """Return averages and derivatives, given averages of the rows of `products` over a fundamental domain."""
        symmetry = self._channel.symmetry
        parts = np.split(products, np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1])
        slopes = {name: part.reshape(shape) for name, part, shape in zip(OF_TOKENS, parts, self._shapes, strict=True)}
        complete_slopes(slopes, self._families, symmetry)
        if not symmetry.m_zero:  # ω̃ = ω − m; E[g] is zero if m is, and its average over the domain is not used
            slopes["with_noise"][: len(self._dm)] -= np.einsum("la,klb->klab", moments.g, self._dm)
        return ChannelExpansion(self._channel.overlaps, moments, slopes, self.includes_V, jumps, [moments])
