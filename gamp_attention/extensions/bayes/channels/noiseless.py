"""Channels of attention matrices without noise.

The targets of a sample determine its attention matrix, and this matrix determines the fields up to an orthogonal matrix
O (t, t), which does not change the scores u uᵀ: u = y O with known y (`fields_of_targets`). The posterior of O for the
prior N(ω_l, V_l) of the fields has the density

    p(O) ∝ exp(Σ_l (u_lᵀ V_l⁻¹ ω_l − ½ u_lᵀ V_l⁻¹ u_l)),   u = y O.

For one column O is a sign, and averages are sums of two terms (`SignChannel`). For two columns O is a rotation by an
angle θ, or such a rotation after a reflection, and averages are integrals over θ (`PlaneChannel`):

- They are sums over equally spaced angles (`PlaneChannel._average`). If the fields are so well known that this takes
  thousands of angles, only angles around the most likely angle are used (`Angles.around_peak`).
- Two tokens and two columns: a softmax does not determine the mean of the fields of both tokens in the direction
  orthogonal to their difference. This component, called the shift, is Gaussian given θ and integrated exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.bayes.channels.channel import Posterior, PosteriorChannel, log_normal, softmax_sum
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
class KnownFields(PosteriorChannel):
    """Base class of channels without noise; the observations y are the fields (N, L, t') of `fields_of_targets`."""

    teacher: SoftmaxTeacher
    shape: tuple[int, int]  # L, t
    hidden: int  # number of columns with an undetermined common shift, see `hidden_fields`
    even = True
    noise = 0.0

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return the fields of the targets."""
        return fields_of_targets(self.teacher, observed, self.shape[1])

    def with_noise(self, noise: float) -> PosteriorChannel:
        """Raise ValueError: these channels have no noise."""
        raise ValueError("learn: 'noise' needs a model with score_noise > 0")


def posterior_of_sign(y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
    """Return the posterior of fields that are known as y (N, L, 1) up to a sign: E u = y tanh(Σ_l y_l ω_l/V_l)."""
    field = np.einsum("nl,nl,l->n", y[:, :, 0], omega[:, :, 0], 1 / V[:, 0, 0])
    variance = 1 / np.cosh(np.clip(field, -300, 300)) ** 2
    cov = variance[:, None, None] * y * y[:, None, :, 0]
    log_z = log_normal(y, V) + log_normal(omega, V) - log_normal(np.zeros_like(y[:1]), V)
    return Posterior(np.tanh(field)[:, None, None] * y, cov, log_z + np.logaddexp(field, -field) - np.log(2))


@dataclass(frozen=True)
class SignChannel(KnownFields):
    """Channel of fields of one column, which are known up to their common sign."""

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the fields."""
        return u

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior over the sign."""
        return posterior_of_sign(y, omega, V)

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
        count = self._count_angles(y, omega, inverse)
        N, L, _ = omega.shape
        mean, cov, log_z = np.empty((N, L, 2)), np.empty((N, 2 * L, 2 * L)), np.empty(N)
        for n in np.unique(count):
            rows = np.nonzero(count == n)[0]
            step = max(1, self.angles.block_size // int(n or self.angles.smallest))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                mean[part], cov[part], log_z[part] = self._average(y[part], omega[part], inverse, int(n))
        return Posterior(mean, cov, log_z + log_normal(omega, V))

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
        signs, logs, parts = (1.0,) if self.hidden else (1.0, -1.0), [], []
        for sign in signs:
            at = _AngleWeights(y, omega, P, sign, bool(self.hidden))
            angle, width = 2 * np.pi * np.arange(n)[None] / max(n, 1), np.full((1, 1), 1 / max(n, 1))
            if not n:
                angle, width = self.angles.around_peak(at.logs, len(y))
            logs.append(at.logs(angle) + np.log(width))
            parts.append((at, angle))
        weights, log_z = softmax_sum(np.concatenate(logs, axis=1))
        moments = [
            at.moments(angle, part)
            for (at, angle), part in zip(parts, np.split(weights, len(signs), axis=1), strict=True)
        ]
        mean, second = (np.sum(part, axis=0) for part in zip(*moments, strict=True))
        cov = second - mean[:, :, None] * mean[:, None]
        return mean.reshape(omega.shape), cov, log_z - np.log(len(signs))


TURN = np.array([[0.0, -1.0], [1.0, 0.0]])  # rotation by a right angle


class _AngleWeights:
    """Weights of angles θ of N samples, and moments of the fields.

    With e = (cos θ, sin θ) and e' = (−sin θ, cos θ), the fields are u_l = y_l1 e ± y_l2 e', or, with an undetermined
    shift σ, u_l = y_l e + σ e'. Given θ, σ is Gaussian with mean m = pull/stiff and variance 1/stiff. Log-weights, pull
    and stiff are linear in the entries of e and their products.
    """

    def __init__(self, y: np.ndarray, omega: np.ndarray, P: np.ndarray, sign: float, with_shift: bool) -> None:
        N, L, _ = omega.shape
        turned = np.zeros((N, L)) if with_shift else sign * y[:, :, 1]
        M = np.array([[y[:, :, 0], -turned], [turned, y[:, :, 0]]]).transpose(2, 3, 0, 1)  # u_l = M_l e + σ e'
        P_omega, P_M = np.einsum("lab,nlb->nla", P, omega), P @ M
        linear, quadratic = np.einsum("nlab,nla->nb", M, P_omega), np.einsum("nlab,nlac->nbc", M, P_M)
        self._factors, self._logs = M.reshape(N, 2 * L, 2), _coefficients(linear, -0.5 * quadratic)
        self._with_shift = with_shift
        self._pull = _coefficients(P_omega.sum(axis=1) @ TURN, -TURN.T @ P_M.sum(axis=1))
        self._stiff = _coefficients(np.zeros((1, 2)), TURN.T @ P.sum(axis=0)[None] @ TURN)

    def logs(self, angle: np.ndarray) -> np.ndarray:
        """Return log-weights (N, J) of angles (N, J), or (1, J) if all samples have the same."""
        waves = _waves(angle)
        logs = _combine(self._logs, waves)
        if self._with_shift:
            pull, stiff = _combine(self._pull, waves), _combine(self._stiff, waves)
            logs += 0.5 * pull**2 / stiff - 0.5 * np.log(stiff / (2 * np.pi))
        return logs

    def moments(self, angle: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of fields (N, 2 L) and of their products (N, 2 L, 2 L), times weights (N, J) of the angles."""
        waves, F = _waves(angle), self._factors
        e, products = _sums(weights, waves)
        mean, second = (F @ e)[:, :, 0], F @ products @ F.swapaxes(1, 2)
        if self._with_shift:
            m, stiff = _combine(self._pull, waves), _combine(self._stiff, waves)
            m /= stiff
            across, with_e = _sums(weights * m, waves)
            square = TURN @ _sums(weights * (m * m + 1 / stiff), waves)[1] @ TURN.T
            copies = np.tile(np.eye(2), (F.shape[1] // 2, 1))
            mean += (copies @ TURN @ across)[:, :, 0]
            crossed = F @ with_e @ TURN.T @ copies.T
            second += crossed + crossed.swapaxes(1, 2) + copies @ square @ copies.T
        return mean, second


def _waves(angle: np.ndarray) -> np.ndarray:
    """Return cos θ, sin θ, cos² θ, cos θ sin θ and sin² θ (5, …) of angles."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c, s, c * c, c * s, s * s])


def _coefficients(linear: np.ndarray, quadratic: np.ndarray) -> np.ndarray:
    """Return the coefficients (N, 5) of linear·e + e·quadratic e in the functions of `_waves`."""
    (a, b), (c, d) = np.moveaxis(quadratic, 0, 2)
    return np.stack([*linear.T, a, b + c, d], axis=1)


def _combine(coefficients: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """Return linear combinations (N, J) of waves (5, N, J), or (5, 1, J) if all samples have the same angles."""
    return coefficients @ waves[:, 0] if waves.shape[1] == 1 else np.einsum("nk,knj->nj", coefficients, waves)


def _sums(weights: np.ndarray, waves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_j w_j e (N, 2, 1) and Σ_j w_j e eᵀ (N, 2, 2) for weights (N, J)."""
    sums = weights @ waves[:, 0].T if waves.shape[1] == 1 else np.einsum("nj,knj->nk", weights, waves)
    return sums[:, :2, None], sums[:, [[2, 3], [3, 4]]]
