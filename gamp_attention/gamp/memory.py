"""Memory rules: the Onsager term D of the next iteration.

A rule is called with D of this iteration, V g and W g, all (n, L, r), and the step β; V is already averaged over
iterations.
"""

import numpy as np


def averaged_memory(D: np.ndarray, Vg: np.ndarray, Wg: np.ndarray, beta: float) -> np.ndarray:
    """Return (1−β) D + β W g, the exact Onsager term of the damped iteration.

    Eq. :eq:`memory`. For the undamped iteration this is the Onsager term of Rangan (2011).
    """
    return (1 - beta) * D + beta * Wg


def naive_memory(D: np.ndarray, Vg: np.ndarray, Wg: np.ndarray, beta: float) -> np.ndarray:
    """Return V g, the Onsager term of the undamped iteration; wrong with damping, and included to show its failure.

    Eq. :eq:`naive-memory`.
    """
    return Vg
