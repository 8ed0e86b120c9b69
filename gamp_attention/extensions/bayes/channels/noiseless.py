"""Channels of attention matrices without noise.

The targets of a sample determine its attention matrix, and this matrix determines the fields up to an orthogonal matrix
O (t, t), which does not change the scores u uᵀ: u = y O with known y (`fields_of_targets`). The posterior of O for the
prior N(ω_l, V_l) of the fields has the density

    p(O) ∝ exp(Σ_l (u_lᵀ V_l⁻¹ ω_l − ½ u_lᵀ V_l⁻¹ u_l)),   u = y O.

For one column O is a sign, and averages are sums of two terms (`SignChannel`). For two columns O is a rotation by an
angle θ, or such a rotation after a reflection, and averages are integrals over θ (`PlaneChannel`):

- All V_l are multiples of the identity, as in state evolution: the second term does not depend on θ, and the integrals
  are ratios of Bessel functions (`_average_by_bessel_functions`).
- Other V_l: sums over equally spaced angles (`PlaneChannel._average`). If the fields are so well known that this takes
  thousands of angles, only angles around the most likely angle are used (`Angles.around_peak`).
- Two tokens and two columns: a softmax does not determine the mean of the fields of both tokens in the direction
  orthogonal to their difference. This component, called the shift, is Gaussian given θ and integrated exactly
  (`PlaneChannel._average_with_shift` for V_l that are multiples of the identity).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import i0e, i1e

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.bayes.channels.channel import Channel, Posterior, log_normal, softmax_sum
from gamp_attention.extensions.bayes.channels.integrals import IntegralRule, average_up_to_sign
from gamp_attention.theory.models.teachers import SoftmaxTeacher


def hidden_fields(teacher: Any, n_tokens: int, teacher_rank: int) -> int:
    """Return the number of columns in which the matrix does not determine a common shift of the fields of all tokens.

    Raises ValueError if, apart from this shift, the teacher's matrices do not determine the fields up to a rotation.
    """
    is_softmax = isinstance(teacher, SoftmaxTeacher) and teacher.omega < 1
    if not is_softmax or not teacher.attention.tied or teacher.attention.causal:
        needs = "score_noise > 0, or a softmax or linear attention without a mask and with tied weights, and omega < 1"
        raise check.fail_words("teacher", type(teacher).__name__, needs)
    n_determined = n_tokens - 1 if teacher.attention.softmax else n_tokens
    hidden = max(teacher_rank - n_determined, 0)
    if n_determined < 1 or (hidden and not teacher.attention.softmax):
        needs = "at least two tokens" if n_determined < 1 else f"at most {n_tokens} columns for linear attention"
        raise check.fail("teacher_rank, n_tokens", (teacher_rank, n_tokens), needs)
    return hidden


def fields_of_targets(teacher: SoftmaxTeacher, targets: np.ndarray, teacher_rank: int) -> np.ndarray:
    """Return the fields (N, L, t') of attention matrices (N, L, L), up to a common rotation of their columns.

    t' is t, or L − 1 if t > L − 1, as a softmax determines no more. Eq. :eq:`bayes-inversion`.
    """
    hidden = hidden_fields(teacher, targets.shape[1], teacher_rank)
    rank = teacher_rank - hidden
    weights = (targets - teacher.omega * teacher.A) / (1 - teacher.omega)
    if not teacher.attention.softmax:
        gram = teacher.attention.temperature * weights
        return _factors(symmetrize(gram), rank)
    if not (weights > 0).all():
        raise check.fail("targets", float(weights.min()), "positive attention weights, as the model's teacher produces")
    scores = teacher.attention.temperature * np.log(weights)  # u uᵀ up to a constant in each row
    centered = scores - scores.mean(axis=2, keepdims=True)  # u (u − ū)ᵀ
    square = centered - centered.mean(axis=1, keepdims=True)  # (u − ū)(u − ū)ᵀ
    F = _factors(symmetrize(square), rank)
    return centered @ F @ np.linalg.inv(F.transpose(0, 2, 1) @ F)


def _factors(gram: np.ndarray, rank: int) -> np.ndarray:
    """Return F (N, L, rank) with F Fᵀ = gram, a positive semi-definite matrix (N, L, L) of this rank."""
    spectrum, vectors = np.linalg.eigh(gram)
    size = np.sqrt(np.maximum(spectrum[:, -rank:], np.finfo(float).tiny))
    return vectors[:, :, -rank:] * size[:, None, :]


@dataclass(frozen=True)
class Angles:
    """Settings of averages over n equally spaced angles: for weights exp(a cos θ) the error falls like exp(−n²/2a)."""

    smallest: int = 32  # minimum number of angles
    per_width: float = 9.0  # number of angles in units of √a
    most: int = 1 << 8  # if more are needed, angles around the peak are used instead
    most_with_shift: int = 1 << 11  # maximum with an undetermined shift, for which there may be two peaks
    n_zooms: int = 4  # number of searches of the most likely angle, each in a narrower interval
    zoom: float = 0.08  # ratio of the widths of successive intervals
    peak_widths: float = 20.0  # width of the angles around the peak, in units of the width of the peak
    block_size: int = 1 << 18  # maximum number of angles times samples in memory

    def around_peak(self, exponent: Callable[[np.ndarray], np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return angles (n, J) around the most likely angle, and their spacing (n, 1) as a fraction of the circle."""
        line, rows, width = np.arange(self.most) / self.most - 0.5, np.arange(n), 2 * np.pi
        center = np.zeros((n, 1))
        for _ in range(self.n_zooms):
            angle = center + width * line
            best = exponent(angle).argmax(axis=1)
            center, width = angle[rows, best][:, None], width * self.zoom
            line = np.arange(-self.smallest // 2, self.smallest // 2 + 1) / self.smallest
        step = width / self.zoom
        at = exponent(center + step * np.array([-1.0, 0.0, 1.0]))
        curvature = np.maximum((2 * at[:, 1] - at[:, 0] - at[:, 2]) / step**2, 1.0)[:, None]
        reach = 0.5 * self.peak_widths / np.sqrt(curvature)
        local = np.linspace(-reach[:, 0], reach[:, 0], self.smallest * 2, axis=1)
        return center + local, 2 * reach / (2 * np.pi * (2 * self.smallest - 1))


@dataclass(frozen=True)
class KnownFields(Channel):
    """Base class of channels without noise; the observations y are the fields (N, L, t') of `fields_of_targets`."""

    teacher: SoftmaxTeacher
    shape: tuple[int, int]  # L, t
    hidden: int  # number of columns with an undetermined common shift, see `hidden_fields`
    even = True
    noise = 0.0

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return the fields of the targets."""
        return fields_of_targets(self.teacher, observed, self.shape[1])

    def with_noise(self, noise: float) -> Channel:
        """Raise ValueError: these channels have no noise."""
        raise ValueError("learn: 'noise' needs a model with score_noise > 0")


@dataclass(frozen=True)
class SignChannel(KnownFields):
    """Channel of fields of one column, which are known up to their common sign."""

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the fields."""
        return u

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior over the sign: E u = y tanh(Σ_l y_l ω_l/V_l)."""
        field = np.einsum("nl,nl,l->n", y[:, :, 0], omega[:, :, 0], 1 / V[:, 0, 0])
        sign_mean = np.tanh(field)
        sign_variance = 1 / np.cosh(np.clip(field, -300, 300)) ** 2
        flat = y[:, :, 0]
        log_cosh = np.logaddexp(field, -field) - np.log(2)
        base = log_normal(y, V) + log_normal(omega, V) - log_normal(np.zeros_like(y[:1]), V)
        cov = sign_variance[:, None, None] * flat[:, :, None] * flat[:, None, :]
        return Posterior(sign_mean[:, None, None] * y, cov, base + log_cosh)

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float]:
        """Return E[g gᵀ] (L, 1, 1) and E[log Z]."""
        squares, log_z = average_up_to_sign(known[:, 0, 0], V[:, 0, 0], rule)
        return squares[:, None, None], log_z


@dataclass(frozen=True)
class PlaneChannel(KnownFields):
    """Channel of fields of two columns, which are known up to a rotation and a reflection.

    The fields of two tokens, of which a softmax determines the difference only, are known up to a common shift as well.
    """

    angles: Angles = Angles()

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the fields; with an undetermined shift, their components along the difference of the two tokens."""
        if not self.hidden:
            return u
        direction = u[:, 1] - u[:, 0]
        direction = direction / np.linalg.norm(direction, axis=1, keepdims=True)
        return np.einsum("nla,na->nl", u, direction)[:, :, None]

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior over the angles.

        The number of angles of a sample, a power of two, follows from a bound on the a of its weights exp(a cos θ). It
        is 0 if that exceeds the maximum: then only angles around the peak are used.
        """
        inverse = np.linalg.inv(V)
        variances = 0.5 * np.trace(V, axis1=1, axis2=2)
        isotropic = bool(np.abs(V - variances[:, None, None] * np.eye(2)).max() <= 1e-12 * variances.max())
        if isotropic and not self.hidden:
            return _average_by_bessel_functions(y, omega, variances)
        count = self._count_angles(y, omega, inverse)
        N, L, _ = omega.shape
        mean, cov, log_z = np.empty((N, L, 2)), np.empty((N, 2 * L, 2 * L)), np.empty(N)
        for n in np.unique(count):
            rows = np.nonzero(count == n)[0]
            step = max(1, self.angles.block_size // int(n or self.angles.smallest))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                sample = y[part], omega[part]
                if isotropic:
                    mean[part], cov[part], log_z[part] = self._average_with_shift(*sample, variances, int(n))
                else:
                    mean[part], cov[part], log_z[part] = self._average(*sample, inverse, int(n))
        log_z += log_normal(omega, V)
        return Posterior(mean, cov, log_z)

    def _count_angles(self, y: np.ndarray, omega: np.ndarray, P: np.ndarray) -> np.ndarray:
        """Return the number of equally spaced angles of each sample (N,), or 0 for angles around the peak."""
        size = np.linalg.norm(y, axis=2)
        spectrum = np.linalg.eigvalsh(P)
        bound = np.einsum("nl,nl->n", size, np.linalg.norm(np.einsum("lab,nlb->nla", P, omega), axis=2))
        bound = bound + 4 * size**2 @ (spectrum[:, 1] - spectrum[:, 0])
        if self.hidden:
            bound = 4 * (bound + np.sum(omega**2, axis=2) @ spectrum[:, 1])
        needed = np.maximum(self.angles.per_width * np.sqrt(bound), self.angles.smallest)
        most = self.angles.most_with_shift if self.hidden else self.angles.most
        return np.where(needed > most, 0, 2 ** np.ceil(np.log2(needed))).astype(int)

    def _average(
        self, y: np.ndarray, omega: np.ndarray, P: np.ndarray, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, covariance and log Z, averaged over angles without and with a reflection.

        There are n equally spaced angles, or for n = 0 angles around the most likely angle. P (L, 2, 2) is V⁻¹.
        """
        logs, fields, shift_covs = [], [], []
        for sign in (1.0,) if self.hidden else (1.0, -1.0):
            if n:
                angle = np.broadcast_to(2 * np.pi * np.arange(n) / n, (len(y), n))
                width = np.full((len(y), 1), 1 / n)
            else:

                def exponent(at: np.ndarray, sign: float = sign) -> np.ndarray:
                    return self._exponent(y, omega, P, at, sign)[0]

                angle, width = self.angles.around_peak(exponent, len(y))
            weight, u, second = self._exponent(y, omega, P, angle, sign)
            logs.append(weight + np.log(width))
            fields.append(u.reshape(*u.shape[:2], -1))
            shift_covs.append(second)
        weights, log_z = softmax_sum(np.concatenate(logs, axis=1))
        flat = np.concatenate(fields, axis=1)
        mean = np.einsum("nj,njk->nk", weights, flat)
        deviations = flat - mean[:, None]
        cov = (weights[:, :, None] * deviations).transpose(0, 2, 1) @ deviations
        if self.hidden:
            L = y.shape[1]
            cov += np.tile(np.einsum("nj,njab->nab", weights, shift_covs[0]), (1, L, L))
        return mean.reshape(len(y), -1, 2), cov, log_z - np.log(len(logs))

    def _exponent(
        self, y: np.ndarray, omega: np.ndarray, P: np.ndarray, angle: np.ndarray, sign: float
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return log-weights (n, J) of angles (n, J), mean fields (n, J, L, 2), and covariances of the shift."""
        first = np.stack([np.cos(angle), np.sin(angle)], axis=2)
        second = sign * np.stack([-first[:, :, 1], first[:, :, 0]], axis=2)
        u = y[:, None, :, :1] * first[:, :, None]
        if not self.hidden:
            u = u + y[:, None, :, 1:] * second[:, :, None]
        P_omega = np.einsum("lab,nlb->nla", P, omega)
        P_u = np.einsum("lab,njlb->njla", P, u)
        logs = np.einsum("njla,nla->nj", u, P_omega) - 0.5 * np.einsum("njla,njla->nj", u, P_u)
        if not self.hidden:
            return logs, u, None
        stiff = np.einsum("nja,ab,njb->nj", second, P.sum(axis=0), second)
        pull = np.einsum("nja,nja->nj", second, P_omega.sum(axis=1)[:, None] - P_u.sum(axis=2))
        logs = logs + 0.5 * pull**2 / stiff - 0.5 * np.log(stiff / (2 * np.pi))
        u = u + (pull / stiff)[:, :, None, None] * second[:, :, None]
        return logs, u, second[:, :, :, None] * second[:, :, None, :] / stiff[:, :, None, None]

    def _average_with_shift(
        self, y: np.ndarray, omega: np.ndarray, V: np.ndarray, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, covariance and log Z of the fields u_l = y_l (c, s) + σ (−s, c), for isotropic V_l (L,).

        (c, s) are the cosine and sine of the angle θ, and σ is the undetermined shift, which is common to both tokens.
        Given θ, σ is Gaussian with the mean w·(−s, c), w = Σ_l V_l⁻¹ ω_l/Σ_l V_l⁻¹, and the variance 1/Σ_l V_l⁻¹. The
        mean of u_l given θ is therefore linear in the cosines and sines of θ and 2θ, and its products contain waves up
        to 4θ. There are n equally spaced angles, or for n = 0 angles around the most likely angle.
        """
        N, L, _ = omega.shape
        precision = float(np.sum(1 / V))
        w = np.einsum("nla,l->na", omega, 1 / V) / precision
        first = np.einsum("nl,nla,l->na", y[:, :, 0], omega, 1 / V)
        # coefficients of cos 2θ and sin 2θ in the exponent precision (w·(−s, c))²/2
        second = 0.25 * precision * np.stack([w[:, 1] ** 2 - w[:, 0] ** 2, -2 * w[:, 0] * w[:, 1]], axis=1)
        (c1, s1, c2, s2, c3, s3, c4, s4), log_z, spacing = self._average_waves(
            np.concatenate([first, second], axis=1), n
        )
        one = np.ones(N)
        # means and products of the functions (cos θ, sin θ, cos 2θ, sin 2θ)
        f = np.stack([c1, s1, c2, s2], axis=1)
        products = 0.5 * np.array(
            [
                [one + c2, s2, c3 + c1, s3 + s1],
                [s2, one - c2, s3 - s1, c1 - c3],
                [c3 + c1, s3 - s1, one + c4, s4],
                [s3 + s1, c1 - c3, s4, one - c4],
            ]
        ).transpose(2, 0, 1)
        spread = products - f[:, :, None] * f[:, None, :]
        # coefficients F of the mean of u given θ, which is F·(cos θ, sin θ, cos 2θ, sin 2θ) + w/2
        F = np.zeros((N, L, 2, 4))
        F[:, :, 0, 0] = F[:, :, 1, 1] = y[:, :, 0]
        F[:, :, 0, 2], F[:, :, 0, 3] = -0.5 * w[:, None, 0], -0.5 * w[:, None, 1]
        F[:, :, 1, 2], F[:, :, 1, 3] = 0.5 * w[:, None, 1], -0.5 * w[:, None, 0]
        mean = np.einsum("nlaf,nf->nla", F, f) + 0.5 * w[:, None]
        flat = F.reshape(N, 2 * L, 4)
        cov = flat @ spread @ flat.transpose(0, 2, 1)
        of_shift = 0.5 / precision * np.array([[one - c2, -s2], [-s2, one + c2]]).transpose(2, 0, 1)
        cov += np.tile(of_shift, (1, L, L))
        log_z += 0.25 * precision * np.sum(w**2, axis=1) - 0.5 * np.sum(y[:, :, 0] ** 2 / V, axis=1) + np.log(spacing)
        return mean, cov, log_z - 0.5 * np.log(precision / (2 * np.pi))

    def _average_waves(self, factors: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return the means (8, N) of cos kθ and sin kθ for k = 1 to 4, in pairs, over angles θ.

        The weights are exp of the sum of `factors` (N, 4) times the first four waves. There are n equally spaced
        angles, or for n = 0 angles around the most likely angle. Also returns the logarithms (N,) of the sums of the
        weights, and the spacing of the angles as a fraction of the circle.
        """

        def waves(angle: np.ndarray) -> np.ndarray:
            return np.stack([wave(k * angle) for k in (1, 2, 3, 4) for wave in (np.cos, np.sin)])

        if n:
            on_grid = waves(2 * np.pi * np.arange(n) / n)
            weights, log_z = softmax_sum(factors @ on_grid[:4])
            return (weights @ on_grid.T).T, log_z, 1 / n

        def exponent(angle: np.ndarray) -> np.ndarray:
            c, s = np.cos(angle), np.sin(angle)
            a, b, p, q = (factors[:, k, None] for k in range(4))
            return np.asarray(a * c + b * s + p * (2 * c * c - 1) + q * 2 * c * s)

        angle, spacing = self.angles.around_peak(exponent, len(factors))
        weights, log_z = softmax_sum(exponent(angle))
        return np.stack([np.einsum("nj,nj->n", weights, wave) for wave in waves(angle)]), log_z, spacing[:, 0]


def _average_by_bessel_functions(y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
    """Return the posterior of fields known as y (N, L, 2) up to a rotation or reflection; V_l (L,) are isotropic.

    A field y_l R has R of rows (c, s) and ±(−s, c), and a weight exp(κ cos(θ − φ)) for each of the two signs.
    """
    N, L, _ = y.shape
    M = np.einsum("nla,nlb,l->nab", y, omega, 1 / V)
    parts = []
    for sign in (1.0, -1.0):
        along = np.stack([M[:, 0, 0] + sign * M[:, 1, 1], M[:, 0, 1] - sign * M[:, 1, 0]], axis=1)
        kappa = np.linalg.norm(along, axis=1)
        small = np.maximum(kappa, 1e-9)
        direction = np.where(kappa[:, None] > 1e-9, along / small[:, None], [1.0, 0.0])
        scaled = i0e(kappa)
        length = i1e(kappa) / scaled  # length of the mean of (c, s)
        across = np.where(kappa > 1e-6, length / small, 0.5)  # variance of the angle's component across its direction
        spread = np.maximum(1 - across - length**2, 0.0)
        # u = (c, s)·F with F (N, 2, 2L) and its columns in the order of the fields
        y0, y1 = y[:, :, 0], sign * y[:, :, 1]
        F = np.stack([np.stack([y0, -y1], axis=1), np.stack([y1, y0], axis=1)], axis=3).reshape(N, 2, 2 * L)
        other = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
        rays = [np.einsum("nc,nck->nk", axis, F) for axis in (direction, other)]
        parts.append((kappa + np.log(scaled), length[:, None] * rays[0], spread, across, rays))
    weights, log_z = softmax_sum(np.stack([part[0] for part in parts], axis=1))
    mean = sum(weights[:, k, None] * part[1] for k, part in enumerate(parts))
    cov = np.zeros((N, 2 * L, 2 * L))
    for k, (_, center, spread, across, rays) in enumerate(parts):
        columns = [np.sqrt(spread)[:, None] * rays[0], np.sqrt(across)[:, None] * rays[1], center - mean]
        for column in columns:
            cov += weights[:, k, None, None] * column[:, :, None] * column[:, None, :]
    sizes = np.sum((y**2 + omega**2).sum(axis=2) / V + 2 * np.log(2 * np.pi * V), axis=1)
    return Posterior(mean.reshape(N, L, 2), cov, log_z - np.log(2) - 0.5 * sizes)
