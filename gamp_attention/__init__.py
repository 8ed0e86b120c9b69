"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from typing import TYPE_CHECKING

from gamp_attention._core import interrupts  # noqa: F401 - first: before what takes long to import
from gamp_attention._version import __version__
from gamp_attention.baselines import linear_baseline, minimize_risk
from gamp_attention.bayes import bayes_thresholds, run_bayes_amp, solve_bayes_state_evolution
from gamp_attention.data import Dataset, LabelledDataset, gradient, law_of, sample, train_loss
from gamp_attention.experiments import (
    compare,
    debias,
    leave_one_out,
    phase_boundaries,
    plot_comparison,
    plot_phase_diagram,
    plot_trajectory,
    regularization_path,
    sweep,
)
from gamp_attention.gamp import GampState, gamp_step, initial_state, run_gamp
from gamp_attention.losses import DotProductAttention, LogisticLoss, SquaredLoss, register_attention, register_loss
from gamp_attention.models import LinearLabels, SoftmaxTeacher, attention_model, glm_model, mixture_model, paper_model
from gamp_attention.penalties import ElasticNet, Ridge, register_penalty
from gamp_attention.results import ConvergenceError, Overlaps
from gamp_attention.state_evolution import branches, solve_state_evolution, trajectory

# what most need; `gamp_attention.models` and the other rooms have the rest, which this module answers to as well
__all__ = [
    "ConvergenceError", "Dataset", "DotProductAttention", "ElasticNet", "GampState", "LabelledDataset", "LinearLabels",
    "LogisticLoss", "Overlaps", "Ridge", "SoftmaxTeacher", "SquaredLoss", "__version__", "attention_model",
    "bayes_thresholds", "branches", "compare", "debias", "gamp_step", "glm_model", "gradient", "initial_state",
    "law_of", "leave_one_out", "linear_baseline", "minimize_risk", "mixture_model", "paper_model", "phase_boundaries",
    "plot_comparison", "plot_phase_diagram", "plot_trajectory", "register_attention", "register_loss",
    "register_penalty", "regularization_path", "run_bayes_amp", "run_gamp", "sample", "solve_bayes_state_evolution",
    "solve_state_evolution", "sweep", "train_loss", "trajectory",
]  # fmt: skip

_ESTIMATORS = ("GampAttention", "GampClassifier", "GampRegressor")  # not in __all__: they need scikit-learn
_ROOMS = (
    "baselines", "bayes", "data", "denoisers", "estimators", "experiments", "gamp", "losses", "models", "penalties",
    "results", "state_evolution",
)  # fmt: skip

if TYPE_CHECKING:
    from gamp_attention import estimators  # noqa: F401
    from gamp_attention.baselines import *  # noqa: F403
    from gamp_attention.bayes import *  # noqa: F403
    from gamp_attention.data import *  # noqa: F403
    from gamp_attention.denoisers import *  # noqa: F403
    from gamp_attention.estimators import *  # noqa: F403
    from gamp_attention.experiments import *  # noqa: F403
    from gamp_attention.gamp import *  # noqa: F403
    from gamp_attention.losses import *  # noqa: F403
    from gamp_attention.models import *  # noqa: F403
    from gamp_attention.penalties import *  # noqa: F403
    from gamp_attention.results import *  # noqa: F403
    from gamp_attention.state_evolution import *  # noqa: F403
else:

    def __dir__():
        return [*__all__, *_ESTIMATORS, *_ROOMS]

    def __getattr__(name):
        """Names of the rooms, estimators when they are asked for, names of earlier versions, and what may be meant."""
        from importlib import import_module

        if name == "estimators" or name in _ESTIMATORS:
            room = import_module("gamp_attention.estimators")
            return room if name == "estimators" else getattr(room, name)
        rooms = {room: import_module(f"gamp_attention.{room}") for room in _ROOMS if room != "estimators"}
        for room in rooms.values():
            if name in room.__all__:
                return getattr(room, name)
        if name == "Classes":
            import warnings

            warnings.warn("gamp_attention.Classes is now called CoordinateClasses", DeprecationWarning, stacklevel=2)
            return rooms["models"].CoordinateClasses
        from difflib import get_close_matches

        known = [*__all__, *_ESTIMATORS, *(each for room in rooms.values() for each in room.__all__)]
        near = [] if name.startswith("_") else get_close_matches(name, known, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
