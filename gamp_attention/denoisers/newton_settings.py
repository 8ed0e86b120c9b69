"""Settings of the local minimisation of a proximal objective, and how it ends."""

from typing import NamedTuple


class NewtonEnd(NamedTuple):
    """How a minimisation ended."""

    failed: int = 0
    solved: int = 1
    merged: int = 2  # on its way to a minimum that is known
    unfinished: int = 3  # left to the general form


class NewtonSettings(NamedTuple):
    """Settings of the local minimisation."""

    max_iter: int = 200
    loiter: int = 30  # once in so many steps, a point where the Hessian is not definite is left as a saddle is
    least: float = 1e-14  # gradient that counts as none, in units of the largest stiffness and the fields
    shift: float = 0.05  # first one of a Hessian that is not definite, in units of the least stiffness
    max_shift: float = 1e300  # of the Hessian: more than any finite one asks for
    enough: float = 1e-4  # decrease of the objective, in units of that of its tangent
    last_step: float = 1e-10  # relative step after which a further one, quadratically smaller, is not worth its cost
    short: float = 1e-6  # of a Newton step; two in a row that are shorter are stuck, as on a kink
    merge: float = 0.3  # a step that lands this much nearer to a known minimum belongs to it
    max_minima: int = 16  # that a global search remembers
    columnwise: int = 12  # size of a matrix up to which its Cholesky factor is formed by columns
    quick: int = 25  # evaluations in numbers, for two tokens
    quick_share: float = 1e-3  # of a step there


END, NEWTON = NewtonEnd(), NewtonSettings()
