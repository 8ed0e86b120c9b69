"""Channels without noise: fields known up to a sign, or up to a rotation and reflection of two columns.

What attention matrices without noise say of the fields: all, but for the rotations that leave them as they are.
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
    """Columns of the fields that the matrix does not tell: a vector common to all tokens in so many dimensions.

    Raises ValueError for a teacher whose matrices do not tell the rest up to a rotation.
    """
    known = isinstance(teacher, SoftmaxTeacher) and teacher.omega < 1
    if not known or not teacher.attention.tied or teacher.attention.causal:
        needs = "score_noise > 0, or a softmax or linear attention without a mask and with tied weights, and omega < 1"
        raise check.fail("teacher", type(teacher).__name__, needs)
    told = n_tokens - 1 if teacher.attention.softmax else n_tokens
    hidden = max(teacher_rank - told, 0)
    if told < 1 or (hidden and not teacher.attention.softmax):
        needs = "two tokens at least" if told < 1 else f"at most {n_tokens} columns for linear attention"
        raise check.fail("teacher_rank, n_tokens", (teacher_rank, n_tokens), needs)
    return hidden


def fields_of_targets(teacher: SoftmaxTeacher, targets: np.ndarray, teacher_rank: int) -> np.ndarray:
    """Fields (N, L, t'), up to a common rotation of their columns, of attention matrices (N, L, L).

    Eq. :eq:`bayes-inversion`. t' is t, or L − 1 where the softmax tells no more.
    """
    hidden = hidden_fields(teacher, targets.shape[1], teacher_rank)
    rank = teacher_rank - hidden
    weights = (targets - teacher.omega * teacher.A) / (1 - teacher.omega)
    if not teacher.attention.softmax:
        gram = teacher.attention.temperature * weights
        return _factors(0.5 * (gram + gram.transpose(0, 2, 1)), rank)
    if not (weights > 0).all():
        raise check.fail("targets", float(weights.min()), "positive attention weights, as of the model's teacher")
    scores = teacher.attention.temperature * np.log(weights)  # u uᵀ but for a constant in every row
    centred = scores - scores.mean(axis=2, keepdims=True)  # u (u − ū)ᵀ
    square = centred - centred.mean(axis=1, keepdims=True)  # (u − ū)(u − ū)ᵀ
    F = _factors(0.5 * (square + square.transpose(0, 2, 1)), rank)
    return centred @ F @ np.linalg.inv(F.transpose(0, 2, 1) @ F)


def _factors(gram: np.ndarray, rank: int) -> np.ndarray:
    """F (N, L, rank) with F Fᵀ = gram, of that rank."""
    spectrum, vectors = np.linalg.eigh(gram)
    size = np.sqrt(np.maximum(spectrum[:, -rank:], np.finfo(float).tiny))
    return vectors[:, :, -rank:] * size[:, None, :]


@dataclass(frozen=True)
class AngleSettings:
    """The trapezoidal rule over angles: errors fall like exp(−n²/2a) for weights exp(a cos θ)."""

    fewest: int = 32
    per_width: float = 9.0  # angles, in units of √a
    most: int = 1 << 8
    most_hidden: int = 1 << 11  # with a shift, where there may be two peaks
    zooms: int = 4  # to the most likely angle, where there should be more than `most`
    closer: float = 0.08  # of the width that is looked at
    local: float = 20.0  # width of what is averaged over then, in units of that of the peak
    together: int = 1 << 18  # angles times samples held at a time


ANGLES = AngleSettings()


@dataclass(frozen=True)
class KnownFields:
    """What channels of exact attention matrices share; y are fields (N, L, t')."""

    teacher: SoftmaxTeacher
    rank: int
    hidden: int  # columns that are not told
    even = True
    jumps = False
    noise = 0.0
    n_noise = n_seen = 0

    def seen(self, observed: np.ndarray) -> np.ndarray:
        """Fields from the targets."""
        return fields_of_targets(self.teacher, observed, self.rank)

    def with_noise(self, noise: float) -> Channel:
        """There is none."""
        raise ValueError("learn: needs a model with score_noise > 0 for 'noise'")


@dataclass(frozen=True)
class SignChannel(KnownFields):
    """One column: fields are known up to their common sign."""

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """The fields."""
        return u

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """E u = y tanh(Σ_l y_l ω_l/V_l)."""
        field = np.einsum("nl,nl,l->n", y[:, :, 0], omega[:, :, 0], 1 / V[:, 0, 0])
        sure = np.tanh(field)
        unsure = 1 / np.cosh(np.clip(field, -300, 300)) ** 2
        flat = y[:, :, 0]
        log_cosh = np.logaddexp(field, -field) - np.log(2)
        base = log_normal(y, V) + log_normal(omega, V) - log_normal(np.zeros_like(y[:1]), V)
        cov = unsure[:, None, None] * flat[:, :, None] * flat[:, None, :]
        return Posterior(sure[:, None, None] * y, cov, base + log_cosh)


@dataclass(frozen=True)
class PlaneChannel(KnownFields):
    """Two columns: fields are known up to a rotation and a reflection; for two tokens up to a common shift, too.

    If every V_l is a multiple of the identity, averages over angles are ratios of Bessel functions, or for two tokens
    sums of a few cosines. Otherwise they are sums over equally spaced angles, with an error of the order of rounding.
    If fields are so well known that this takes thousands of angles, only angles around the peak are used. The shift is
    Gaussian given the angle and integrated exactly.
    """

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """The fields; where the shift is not told, their components along the difference of the two."""
        if not self.hidden:
            return u
        along = u[:, 1] - u[:, 0]
        along = along / np.linalg.norm(along, axis=1, keepdims=True)
        return np.einsum("nla,na->nl", u, along)[:, :, None]

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Averages over the angles, as many as the widest exponents need."""
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
        wanted = np.maximum(ANGLES.per_width * np.sqrt(steep), ANGLES.fewest)
        most = ANGLES.most_hidden if self.hidden else ANGLES.most
        count = np.where(wanted > most, 0, 2 ** np.ceil(np.log2(wanted))).astype(int)
        N, L, _ = omega.shape
        mean, cov, log_z = np.empty((N, L, 2)), np.empty((N, 2 * L, 2 * L)), np.empty(N)
        for n in np.unique(count):
            rows = np.nonzero(count == n)[0]
            step = max(1, ANGLES.together // int(n or ANGLES.fewest))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                given = y[part], omega[part]
                if isotropic:
                    mean[part], cov[part], log_z[part] = _shifted_average(*given, variances, int(n))
                else:
                    mean[part], cov[part], log_z[part] = self._average(*given, inverse, int(n))
        log_z += log_normal(omega, V)
        return Posterior(mean, cov, log_z)

    def _average(
        self, y: np.ndarray, omega: np.ndarray, P: np.ndarray, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Over n angles, or for n = 0 over angles around the most likely one, without and with a reflection."""
        logs, fields, more = [], [], []
        for sign in (1.0,) if self.hidden else (1.0, -1.0):
            if n:
                angle = np.broadcast_to(2 * np.pi * np.arange(n) / n, (len(y), n))
                width = np.full((len(y), 1), 1 / n)
            else:

                def exponent(at: np.ndarray, sign: float = sign) -> np.ndarray:
                    return self._exponent(y, omega, P, at, sign)[0]

                angle, spacing = _around_peak(exponent, len(y))
                width = spacing
            weight, u, second = self._exponent(y, omega, P, angle, sign)
            logs.append(weight + np.log(width))
            fields.append(u.reshape(*u.shape[:2], -1))
            more.append(second)
        weights, log_z = softmax_sum(np.concatenate(logs, axis=1))
        flat = np.concatenate(fields, axis=1)
        mean = np.einsum("nj,njk->nk", weights, flat)
        away = flat - mean[:, None]
        cov = (weights[:, :, None] * away).transpose(0, 2, 1) @ away
        if self.hidden:
            L = y.shape[1]
            cov += np.tile(np.einsum("nj,njab->nab", weights, more[0]), (1, L, L))
        return mean.reshape(len(y), -1, 2), cov, log_z - np.log(len(logs))

    def _exponent(
        self, y: np.ndarray, omega: np.ndarray, P: np.ndarray, angle: np.ndarray, sign: float
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Logarithms (n, J) of weights of angles (n, J), mean fields (n, J, L, 2), and the shift's covariances."""
        first = np.stack([np.cos(angle), np.sin(angle)], axis=2)
        second = sign * np.stack([-first[:, :, 1], first[:, :, 0]], axis=2)
        u = y[:, None, :, :1] * first[:, :, None]
        if not self.hidden:
            u = u + y[:, None, :, 1:] * second[:, :, None]
        turned = np.einsum("lab,nlb->nla", P, omega)
        stretched = np.einsum("lab,njlb->njla", P, u)
        logs = np.einsum("njla,nla->nj", u, turned) - 0.5 * np.einsum("njla,njla->nj", u, stretched)
        if not self.hidden:
            return logs, u, None
        stiff = np.einsum("nja,ab,njb->nj", second, P.sum(axis=0), second)
        pull = np.einsum("nja,nja->nj", second, turned.sum(axis=1)[:, None] - stretched.sum(axis=2))
        logs = logs + 0.5 * pull**2 / stiff - 0.5 * np.log(stiff / (2 * np.pi))
        u = u + (pull / stiff)[:, :, None, None] * second[:, :, None]
        return logs, u, second[:, :, :, None] * second[:, :, None, :] / stiff[:, :, None, None]


def _around_peak(exponent: Callable[[np.ndarray], np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return angles (n, J) around the most likely angle, and their spacing (n, 1) as a fraction of the circle."""
    line, rows, width = np.arange(ANGLES.most) / ANGLES.most - 0.5, np.arange(n), 2 * np.pi
    centre = np.zeros((n, 1))
    for _ in range(ANGLES.zooms):
        angle = centre + width * line
        best = exponent(angle).argmax(axis=1)
        centre, width = angle[rows, best][:, None], width * ANGLES.closer
        line = np.arange(-ANGLES.fewest // 2, ANGLES.fewest // 2 + 1) / ANGLES.fewest
    step = width / ANGLES.closer
    at = exponent(centre + step * np.array([-1.0, 0.0, 1.0]))
    curvature = np.maximum((2 * at[:, 1] - at[:, 0] - at[:, 2]) / step**2, 1.0)[:, None]
    reach = 0.5 * ANGLES.local / np.sqrt(curvature)
    local = np.linspace(-reach[:, 0], reach[:, 0], ANGLES.fewest * 2, axis=1)
    return centre + local, 2 * reach / (2 * np.pi * (2 * ANGLES.fewest - 1))


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
        length = i1e(kappa) / scaled  # of the mean of (c, s)
        across = np.where(kappa > 1e-6, length / small, 0.5)  # variance of the angle's component across its direction
        spread = np.maximum(1 - across - length**2, 0.0)
        # u = (c, s)·F with F (N, 2, 2L) and its columns in the order of the fields
        y0, y1 = y[:, :, 0], sign * y[:, :, 1]
        F = np.stack([np.stack([y0, -y1], axis=1), np.stack([y1, y0], axis=1)], axis=3).reshape(N, 2, 2 * L)
        other = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
        rays = [np.einsum("nc,nck->nk", each, F) for each in (direction, other)]
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
    # the exponent: the square of w·(−s, c) times stiff/2, less its constant
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
