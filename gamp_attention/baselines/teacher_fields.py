"""Teacher fields of a sample as functions of independent standard Gaussian coordinates, to be averaged over."""

import numpy as np

from gamp_attention.models.teachers import Teacher


class TeacherFields:
    """Teacher fields y as affine functions of as few white coordinates ξ as have variance."""

    def __init__(self, teacher: Teacher, rho: np.ndarray, shift: np.ndarray) -> None:
        """Covariances rho (L, t, t) and means (L, t) of the fields of each token."""
        self.teacher, self.shape, self.shift = teacher, rho.shape[:2], shift
        self.even = teacher.even and not shift.any()
        spectrum, vectors = np.linalg.eigh(rho)
        kept = spectrum > 1e-14 * spectrum.max()
        self.token = np.nonzero(kept)[0]  # of each coordinate
        self.dim = len(self.token)
        self.variance = spectrum[kept]
        self.direction = vectors.transpose(0, 2, 1)[kept]  # (dim, t)
        self._map = np.zeros((self.dim, *self.shape))
        self._map[np.arange(self.dim), self.token] = np.sqrt(self.variance)[:, None] * self.direction

    def targets(self, white: np.ndarray) -> np.ndarray:
        """T[y] at points (N, dim), of shape (N, L, L)."""
        fields = white[:, : self.dim] @ self._map.reshape(self.dim, self.shape[0] * self.shape[1])
        return self.teacher(fields.reshape(-1, *self.shape) + self.shift)
