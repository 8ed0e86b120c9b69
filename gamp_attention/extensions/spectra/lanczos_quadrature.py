"""Gauss rules for spectra, by the Lanczos method."""

import numpy as np

from gamp_attention._tools.eigenpairs import Product, is_invariant, krylov_spaces


def lanczos_quadrature(product: Product, start: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (k,) and weights (k,), k ≤ n_steps, of the Gauss rule for the spectrum seen by a vector (n,).

    For the normalized vector v and a polynomial f of degree below 2 k, vᵀf(A)v is the sum of the weights times f at the
    nodes. k is smaller than `n_steps` if the Krylov space of v is invariant; the rule is then exact for all f.
    """
    for basis, matrix, size in krylov_spaces(product, start):
        if len(basis) == min(n_steps, len(start)) or is_invariant(np.diag(matrix), size):
            break
    nodes, vectors = np.linalg.eigh(matrix)
    return nodes, vectors[0] ** 2
