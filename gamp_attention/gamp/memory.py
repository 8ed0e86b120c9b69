"""The memory rule: what the Onsager term D of the next iteration is.

A rule takes D of this iteration, V g and W g, all (n, L, r), and the step β; V is already averaged over iterations.
"""

import numpy as np


def averaged_memory(D: np.ndarray, Vg: np.ndarray, Wg: np.ndarray, beta: float) -> np.ndarray:
    """D ← (1−β) D + β W g, the exact Onsager term of the damped iteration.

    Eq. :eq:`memory`.
    """
    return (1 - beta) * D + beta * Wg


def naive_memory(D: np.ndarray, Vg: np.ndarray, Wg: np.ndarray, beta: float) -> np.ndarray:
    """D = V g, what damping is often taken to be. Kept to show that it fails.

    Eq. :eq:`naive-memory`.
    """
    return Vg
