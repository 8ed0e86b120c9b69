"""Channels of attention matrices without noise.

Such a matrix determines the fields up to the rotations that leave it unchanged: up to a sign for one column, up to a
rotation and reflection for two columns. `fields_of_targets` inverts the matrices; the posterior averages over the
remaining sign or angle (`SignChannel`, `PlaneChannel`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import i0e, i1e

from gamp_attention._core import check
from gamp_attention.models.channels.channel import Channel, Posterior, log_normal, softmax_sum
from gamp_attention.models.teachers import SoftmaxTeacher


def hidden_fields(teacher: Any, n_tokens: int, teacher_rank: int) -> int:
    """Return the number of columns in which the matrix does not determine a common shift of the fields of all tokens.

    Raises ValueError if, apart from this shift, the teacher's matrices do not determine the fields up to a rotation.
    """
    is_softmax = isinstance(teacher, SoftmaxTeacher) and teacher.omega < 1
    if not is_softmax or not teacher.attention.tied or teacher.attention.causal:
        needs = "score_noise > 0, or a softmax or linear attention without a mask and with tied weights, and omega < 1"
        raise check.fail("teacher", type(teacher).__name__, needs)
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
        return _factors(0.5 * (gram + gram.transpose(0, 2, 1)), rank)
    if not (weights > 0).all():
        raise check.fail("targets", float(weights.min()), "positive attention weights, as the model's teacher produces")
    scores = teacher.attention.temperature * np.log(weights)  # u uᵀ up to a constant in each row
    centred = scores - scores.mean(axis=2, keepdims=True)  # u (u − ū)ᵀ
    square = centred - centred.mean(axis=1, keepdims=True)  # (u − ū)(u − ū)ᵀ
    F = _factors(0.5 * (square + square.transpose(0, 2, 1)), rank)
    return centred @ F @ np.linalg.inv(F.transpose(0, 2, 1) @ F)


def _factors(gram: np.ndarray, rank: int) -> np.ndarray:
    """Return F (N, L, rank) with F Fᵀ = gram, a positive semi-definite matrix (N, L, L) of this rank."""
    spectrum, vectors = np.linalg.eigh(gram)
    size = np.sqrt(np.maximum(spectrum[:, -rank:], np.finfo(float).tiny))
    return vectors[:, :, -rank:] * size[:, None, :]


# Averages over angles use n equally spaced angles: for weights exp(a cos θ) the error falls like exp(−n²/2a).
MIN_ANGLES = 32
ANGLES_PER_WIDTH = 9.0  # number of angles n in units of √a
MAX_ANGLES = 1 << 8  # if more are needed, angles around the peak are used instead
MAX_ANGLES_SHIFT = 1 << 11  # maximum with an undetermined shift, for which there may be two peaks
N_ZOOMS = 4  # number of searches of the most likely angle, each in a narrower interval
ZOOM = 0.08  # ratio of the widths of successive intervals
PEAK_WIDTHS = 20.0  # width of the angles around the peak, in units of the width of the peak
BLOCK_SIZE = 1 << 18  # maximum number of angles times samples in memory


@dataclass(frozen=True)
class KnownFields:
    """Base class of channels without noise; the observations y are the fields (N, L, t') of `fields_of_targets`."""

    teacher: SoftmaxTeacher
    rank: int
    hidden: int  # number of columns with an undetermined common shift, see `hidden_fields`
    even = True
    jumps = False
    noise = 0.0
    n_noise = n_seen = 0

    def seen(self, observed: np.ndarray) -> np.ndarray:
        """Return the fields of the targets."""
        return fields_of_targets(self.teacher, observed, self.rank)

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


@dataclass(frozen=True)
class PlaneChannel(KnownFields):
    """Channel of fields of two columns, which are known up to a rotation and a reflection.

    The fields of two tokens, of which a softmax determines the difference only, are known up to a common shift as well.

    If every V_l is a multiple of the identity, averages over angles are ratios of Bessel functions, or for two tokens
    sums of a few cosines. Otherwise they are sums over equally spaced angles, with an error of the order of rounding.
    If fields are so well known that this takes thousands of angles, only angles around the peak are used. The shift is
    Gaussian given the angle and integrated exactly.
    """

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the fields; with an undetermined shift, their components along the difference of the two tokens."""
        if not self.hidden:
            return u
        direction = u[:, 1] - u[:, 0]
        direction = direction / np.linalg.norm(direction, axis=1, keepdims=True)
        return np.einsum("nla,na->nl", u, direction)[:, :, None]

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior over the angles.

        The number of angles of a sample, a power of two, follows from a bound `steep` on the a of its weights exp(a cos
        θ). It is 0 if that exceeds the maximum: then only angles around the peak are used.
        """
        inverse = np.linalg.inv(V)
        variances = 0.5 * np.trace(V, axis1=1, axis2=2)
        isotropic = bool(np.abs(V - variances[:, None, None] * np.eye(2)).max() <= 1e-12 * variances.max())
        if isotropic and not self.hidden:
            return _by_bessel_functions(y, omega, variances)
        size = np.linalg.norm(y, axis=2)
        spectrum = np.linalg.eigvalsh(inverse)
        steep = np.einsum("nl,nl->n", size, np.linalg.norm(np.einsum("lab,nlb->nla", inverse, omega), axis=2))
        steep = steep + 4 * size**2 @ (spectrum[:, 1] - spectrum[:, 0])
        if self.hidden:
            steep = 4 * (steep + np.sum(omega**2, axis=2) @ spectrum[:, 1])
        needed = np.maximum(ANGLES_PER_WIDTH * np.sqrt(steep), MIN_ANGLES)
        most = MAX_ANGLES_SHIFT if self.hidden else MAX_ANGLES
        count = np.where(needed > most, 0, 2 ** np.ceil(np.log2(needed))).astype(int)
        N, L, _ = omega.shape
        mean, cov, log_z = np.empty((N, L, 2)), np.empty((N, 2 * L, 2 * L)), np.empty(N)
        for n in np.unique(count):
            rows = np.nonzero(count == n)[0]
            step = max(1, BLOCK_SIZE // int(n or MIN_ANGLES))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                sample = y[part], omega[part]
                if isotropic:
                    mean[part], cov[part], log_z[part] = _shifted_average(*sample, variances, int(n))
                else:
                    mean[part], cov[part], log_z[part] = self._average(*sample, inverse, int(n))
        log_z += log_normal(omega, V)
        return Posterior(mean, cov, log_z)

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

                angle, width = _around_peak(exponent, len(y))
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


def _around_peak(exponent: Callable[[np.ndarray], np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return angles (n, J) around the most likely angle, and their spacing (n, 1) as a fraction of the circle."""
    line, rows, width = np.arange(MAX_ANGLES) / MAX_ANGLES - 0.5, np.arange(n), 2 * np.pi
    centre = np.zeros((n, 1))
    for _ in range(N_ZOOMS):
        angle = centre + width * line
        best = exponent(angle).argmax(axis=1)
        centre, width = angle[rows, best][:, None], width * ZOOM
        line = np.arange(-MIN_ANGLES // 2, MIN_ANGLES // 2 + 1) / MIN_ANGLES
    step = width / ZOOM
    at = exponent(centre + step * np.array([-1.0, 0.0, 1.0]))
    curvature = np.maximum((2 * at[:, 1] - at[:, 0] - at[:, 2]) / step**2, 1.0)[:, None]
    reach = 0.5 * PEAK_WIDTHS / np.sqrt(curvature)
    local = np.linspace(-reach[:, 0], reach[:, 0], MIN_ANGLES * 2, axis=1)
    return centre + local, 2 * reach / (2 * np.pi * (2 * MIN_ANGLES - 1))


def _by_bessel_functions(y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
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
    for k, (_, centre, spread, across, rays) in enumerate(parts):
        columns = [np.sqrt(spread)[:, None] * rays[0], np.sqrt(across)[:, None] * rays[1], centre - mean]
        for column in columns:
            cov += weights[:, k, None, None] * column[:, :, None] * column[:, None, :]
    sizes = np.sum((y**2 + omega**2).sum(axis=2) / V + 2 * np.log(2 * np.pi * V), axis=1)
    return Posterior(mean.reshape(N, L, 2), cov, log_z - np.log(2) - 0.5 * sizes)


def _shifted_average(
    y: np.ndarray, omega: np.ndarray, V: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return averages over angles of fields y_l (c, s) + shift (−s, c), for isotropic V_l (L,).

    The average is over n angles, or for n = 0 over angles around the most likely angle. Given the angle, the shift is
    Gaussian with mean w·(−s, c) and variance 1/Σ_l V_l⁻¹. So mean fields are linear in the cosines and sines of θ and
    2θ, and covariances in the cosines and sines of up to 4θ.
    """
    N, L, _ = omega.shape
    stiff = float(np.sum(1 / V))
    w = np.einsum("nla,l->na", omega, 1 / V) / stiff
    first = np.einsum("nl,nla,l->na", y[:, :, 0], omega, 1 / V)
    # coefficients of cos 2θ and sin 2θ in the exponent stiff (w·(−s, c))²/2
    second = 0.25 * stiff * np.stack([w[:, 1] ** 2 - w[:, 0] ** 2, -2 * w[:, 0] * w[:, 1]], axis=1)
    factors = np.concatenate([first, second], axis=1)
    if n:
        angle = 2 * np.pi * np.arange(n) / n
        waves = np.stack([wave(k * angle) for k in (1, 2, 3, 4) for wave in (np.cos, np.sin)])  # (8, n)
        weights, log_z = softmax_sum(factors @ waves[:4])
        moments, width = (weights @ waves.T).T, np.log(1 / n)
    else:

        def exponent(angle: np.ndarray) -> np.ndarray:
            c, s = np.cos(angle), np.sin(angle)
            a, b, p, q = (factors[:, k, None] for k in range(4))
            return np.asarray(a * c + b * s + p * (2 * c * c - 1) + q * 2 * c * s)

        angle, spacing = _around_peak(exponent, N)
        weights, log_z = softmax_sum(exponent(angle))
        moments = np.stack(
            [np.einsum("nj,nj->n", weights, wave(k * angle)) for k in (1, 2, 3, 4) for wave in (np.cos, np.sin)]
        )
        width = np.log(spacing[:, 0])
    c1, s1, c2, s2, c3, s3, c4, s4 = moments
    one = np.ones(N)
    products = 0.5 * np.array(
        [
            [one + c2, s2, c3 + c1, s3 + s1],
            [s2, one - c2, s3 - s1, c1 - c3],
            [c3 + c1, s3 - s1, one + c4, s4],
            [s3 + s1, c1 - c3, s4, one - c4],
        ]
    ).transpose(2, 0, 1)
    f = np.stack([c1, s1, c2, s2], axis=1)
    spread = products - f[:, :, None] * f[:, None, :]
    F = np.zeros((N, L, 2, 4))
    F[:, :, 0, 0] = F[:, :, 1, 1] = y[:, :, 0]
    F[:, :, 0, 2], F[:, :, 0, 3] = -0.5 * w[:, None, 0], -0.5 * w[:, None, 1]
    F[:, :, 1, 2], F[:, :, 1, 3] = 0.5 * w[:, None, 1], -0.5 * w[:, None, 0]
    mean = np.einsum("nlaf,nf->nla", F, f) + 0.5 * w[:, None]
    flat = F.reshape(N, 2 * L, 4)
    cov = flat @ spread @ flat.transpose(0, 2, 1)
    across = 0.5 / stiff * np.array([[one - c2, -s2], [-s2, one + c2]]).transpose(2, 0, 1)
    cov += np.tile(across, (1, L, L))
    log_z += 0.25 * stiff * np.sum(w**2, axis=1) - 0.5 * np.sum(y[:, :, 0] ** 2 / V, axis=1) + width
    return mean, cov, log_z - 0.5 * np.log(stiff / (2 * np.pi))
