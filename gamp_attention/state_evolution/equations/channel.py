"""Output channel of state evolution: Gaussian averages over fields and teacher fields, equations (7) to (9).

For every token, (ω̃_l, y_l) is a centred Gaussian with covariance [[q, θ], [θᵀ, ρ]] and ω_l = m_l + ω̃_l; then
z = prox(ω; T[y], V), g_l = V_l⁻¹(z_l − ω_l), and the conjugate overlaps ("hats") are averages of g.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gamp_attention._core.gaussian import psd_root
from gamp_attention.denoisers.output import Denoised, denoise
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.folding import folded, folds, turned_away
from gamp_attention.state_evolution.equations.moments import (
    Moments,
    average,
    corrected,
    exchanged_mean,
    isotropic_mean,
    reversed_mean,
)
from gamp_attention.state_evolution.equations.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class Hats:
    """Conjugate overlaps, computed by the output channel from the overlaps.

    Attributes
    ----------
    m, q, theta, V : (L, r), (L, r, r), (L, r, t), (L, r, r): m̂, q̂, θ̂ and V̂ in Stein's form.
    V_derivative : (L, r, r) V̂ as the average of the almost-everywhere derivative, which omits the jumps of the prox.
    square : (L, L, r², r²) α E[(∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)].
    moreau, loss : α E[Moreau envelope + constant] and α E[ℓ(z) + constant].
    """

    m: np.ndarray
    q: np.ndarray
    theta: np.ndarray
    V: np.ndarray
    V_derivative: np.ndarray
    square: np.ndarray
    moreau: float
    loss: float

    @property
    def jump_mass(self) -> np.ndarray:
        """Contribution of the jumps of the proximal map to V̂, V̂_Stein − V̂_derivative. Eq. :eq:`jump-mass`.

        No eigenvalue is positive, because g jumps along the direction in which ω moves.
        """
        return self.V - self.V_derivative

    def response(self, form: str) -> np.ndarray:
        """Return V̂ in the form "stein" or "derivative"."""
        return self.V if form == "stein" else self.V_derivative


def teacher_size(model: Model) -> int:
    """Return the number of white coordinates of the teacher: its L t fields and the noise of its labels."""
    return model.n_tokens * model.teacher_rank + model.task.n_noise


def n_white(model: Model) -> int:
    """Return the number of white coordinates of the channel: L (r + t) and the noise of the labels."""
    return model.n_tokens * model.rank + teacher_size(model)


def fields_and_terms(model: Model, white: np.ndarray) -> tuple[np.ndarray, RiskTerms]:
    """Return teacher fields y (N, L, t) for white noise (N, teacher_size), and the loss parameters they imply."""
    split = model.n_tokens * model.teacher_rank
    noise = white[:, :split].reshape(len(white), model.n_tokens, model.teacher_rank)
    y = np.einsum("lst,nlt->nls", psd_root(model.coordinates.rho), noise)
    return y, model.task.terms(y, white[:, split:])


def student_noise_law(model: Model, overlaps: Overlaps) -> tuple[np.ndarray, np.ndarray]:
    """Return the distribution of the fields given the teacher's, ω̃ = slope·y + root·(white noise).

    slope is (L, r, t) and root is (L, r, r).

    Eq. :eq:`channel`.
    """
    slope = overlaps.theta @ np.linalg.pinv(model.coordinates.rho, hermitian=True)
    return slope, psd_root(overlaps.q - slope @ np.swapaxes(overlaps.theta, 1, 2))


class Channel:
    """The channel at given overlaps as a function of white noise, the only interface that quadrature rules use.

    The white coordinates are first the teacher's (see `fields_and_terms`), then the L r of the student.

    Attributes
    ----------
    shape : (L, r, t).
    n_teacher, n_white : number of white coordinates of the teacher, and of all.
    overlaps : overlaps of the tokens.
    loss : loss of one sample.
    slope, root : distribution of the student's fields given the teacher's, see `student_noise_law`.
    """

    def __init__(self, model: Model, overlaps: Overlaps) -> None:
        self._model, self.overlaps, self.loss = model, overlaps, model.loss
        self.shape = model.n_tokens, model.rank, model.teacher_rank
        self.n_teacher, self.n_white = teacher_size(model), n_white(model)
        self.slope, self.root = student_noise_law(model, overlaps)

    @cached_property
    def symmetry(self) -> Symmetry:
        """Transformations that leave the channel unchanged."""
        return Symmetry.of(self._model, self.overlaps)

    @property
    def folds(self) -> bool:
        """True if averages can be restricted to a fundamental domain of the channel's symmetries."""
        return folds(self.symmetry)

    @property
    def n_folded(self) -> int:
        """Number of coordinates of a point in the fundamental domain; fewer than n_white with rotational symmetry."""
        L, _, t = self.shape
        return self.n_white - (turned_away(L, t) if self.symmetry.isotropic else 0)

    def folded(self, cube: np.ndarray) -> np.ndarray:
        """Return white noise (N, n_white) in the fundamental domain for points of the unit cube (N, n_folded)."""
        size = np.sqrt(self._model.coordinates.rho[:, 0, 0] * self.overlaps.q[:, 0, 0])
        cosines = self.overlaps.theta[:, 0, 0] / np.where(size > 0, size, np.inf)
        return folded(cube, self.symmetry, self.shape[1], cosines)

    def completed(self, moments: Moments) -> Moments:
        """Return averages over the whole channel, given averages over the fundamental domain."""
        if self.symmetry.isotropic:
            moments = isotropic_mean(moments)
        if self.symmetry.reversal:
            moments = reversed_mean(moments)
        return exchanged_mean(moments) if self.symmetry.exchange else moments

    def teacher(self, white: np.ndarray) -> tuple[np.ndarray, RiskTerms]:
        """Return teacher fields y (N, L, t) and loss parameters for white noise (N, n_teacher)."""
        return fields_and_terms(self._model, white)

    def fields(self, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return fields ω̃ (N, L, r) given teacher fields y (N, L, t), for white noise (N, L, r)."""
        return np.einsum("lrt,nlt->nlr", self.slope, y) + np.einsum("lab,nlb->nla", self.root, noise)

    def moments(self, white: np.ndarray, squares: bool, searched: int = 1) -> Moments:
        """Return averages over points of white noise (N, n_white).

        Products of derivatives are averaged only if `squares` is True. The global minimum of the proximal problem is
        computed at N/`searched` points; the others use the local minimum nearest to the fields. The difference between
        global and local minima at the searched points corrects the averages (control variate).
        """
        y, terms, fields = self._at(white)

        def solved(n: int, hold: bool) -> Denoised:
            centres = fields[:n] + self.overlaps.m
            return denoise(self.loss, terms.params[:n], centres, self.overlaps.V, hold=hold, jacobian=squares)

        def averaged(out: Denoised) -> Moments:
            n = len(out.moreau)
            some = replace(terms, params=terms.params[:n], constant=terms.constant[:n])
            return average(y[:n], fields[:n], some, out, self.overlaps.V)

        n, few = len(white), max(len(white) // searched, 1)
        if searched == 1:
            return averaged(solved(n, hold=False))
        near = solved(n, hold=True)
        return corrected(
            averaged(near), averaged(solved(few, hold=False)), averaged(Denoised(*(v[:few] for v in near)))
        )

    def errors(self, white: np.ndarray) -> np.ndarray:
        """Return test errors (N,) at points of white noise (N, n_white)."""
        y, terms, fields = self._at(white)
        return self._model.task.errors(fields + self.overlaps.m, y, terms)

    def _at(self, white: np.ndarray) -> tuple[np.ndarray, RiskTerms, np.ndarray]:
        y, terms = self.teacher(white[:, : self.n_teacher])
        return y, terms, self.fields(y, white[:, self.n_teacher :].reshape(len(white), *self.shape[:2]))


def conjugates(model: Model, alpha: float, overlaps: Overlaps, moments: Moments, jumps: bool = True) -> Hats:
    """Return the conjugate overlaps, from averages over the channel.

    Eq. :eq:`conjugates`.

    They follow from Stein's identity α E[g (ω̃, y)ᵀ] = (−V̂, θ̂) cov(ω̃, y) (Stein, Annals of Statistics 9, 1981).
    Entries that vanish by symmetry are exactly zero. If `jumps` is False, V̂ is the average of the almost-everywhere
    derivative; it equals the Stein form if the proximal map is continuous and has a lower Monte Carlo variance.
    """
    r, rho, theta = overlaps.q.shape[1], model.coordinates.rho, overlaps.theta
    symmetry = Symmetry.of(model, overlaps)
    with_noise = alpha * moments.with_noise
    with_teacher = np.zeros_like(theta) if symmetry.theta_zero else alpha * moments.with_teacher
    derivative = alpha * moments.response
    inverse_rho = np.linalg.pinv(rho, hermitian=True)
    # for a continuous proximal map the derivative is exact, and if ω̃ is a function of y, Stein's form cannot separate
    # V̂ from θ̂
    V_hat, theta_hat = derivative, (with_teacher + derivative @ theta) @ inverse_rho
    rest = overlaps.q - theta @ inverse_rho @ np.swapaxes(theta, 1, 2)
    # for tokens whose q is fully explained by the teacher, Stein's form is 0/0
    known = np.linalg.eigvalsh(rest).min(axis=1) > 1e-9 * np.linalg.eigvalsh(overlaps.q).max(axis=1)
    if jumps and model.task.jumps and known.any():
        covariance = np.block([[overlaps.q, theta], [np.swapaxes(theta, 1, 2), rho]])
        both = np.concatenate([with_noise, with_teacher], axis=2) @ np.linalg.pinv(covariance, hermitian=True)
        V_hat = np.where(known[:, None, None], -both[:, :, :r], V_hat)
        theta_hat = np.where(known[:, None, None], both[:, :, r:], theta_hat)
    return Hats(
        m=np.zeros_like(overlaps.m) if symmetry.m_zero else alpha * moments.g,
        q=alpha * moments.gg,
        theta=theta_hat,
        V=0.5 * (V_hat + V_hat.transpose(0, 2, 1)),
        V_derivative=0.5 * (derivative + derivative.transpose(0, 2, 1)),
        square=alpha * moments.square,
        moreau=alpha * moments.moreau,
        loss=alpha * moments.loss,
    )
