"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from typing import TYPE_CHECKING

# imported first, so that Ctrl-C works while the modules that take long to import are loaded
import gamp_attention._core.interrupts  # noqa: F401
from gamp_attention import (
    baselines,
    bayes,
    data,
    denoisers,
    experiments,
    gamp,
    losses,
    models,
    penalties,
    results,
    state_evolution,
)
from gamp_attention._version import __version__
from gamp_attention.baselines import *
from gamp_attention.bayes import *
from gamp_attention.data import *
from gamp_attention.denoisers import *
from gamp_attention.experiments import *
from gamp_attention.gamp import *
from gamp_attention.losses import *
from gamp_attention.models import *
from gamp_attention.penalties import *
from gamp_attention.results import *
from gamp_attention.state_evolution import *

__all__ = [
    "__version__", *baselines.__all__, *bayes.__all__, *data.__all__, *denoisers.__all__, *experiments.__all__,
    *gamp.__all__, *losses.__all__, *models.__all__, *penalties.__all__, *results.__all__, *state_evolution.__all__,
]  # fmt: skip

_SUBPACKAGES = (
    "baselines", "bayes", "data", "denoisers", "estimators", "experiments", "gamp", "losses", "models", "penalties",
    "results", "state_evolution",
)  # fmt: skip
_ESTIMATORS = ("GampAttention", "GampClassifier", "GampRegressor")  # not in `__all__`: scikit-learn is optional

# the common names, which `dir(gamp_attention)` lists together with the subpackages
_COMMON = (
    "ConvergenceError", "Dataset", "DotProductAttention", "ElasticNet", "GampState", "LabelledDataset",
    "LinearLabels", "LogisticLoss", "Overlaps", "Ridge", "SoftmaxTeacher", "SquaredLoss", "__version__",
    "attention_model", "bayes_thresholds", "branches", "compare", "debias", "gamp_step", "glm_model", "gradient",
    "initial_state", "law_of", "leave_one_out", "linear_baseline", "minimize_risk", "mixture_model", "paper_model",
    "phase_boundaries", "plot_comparison", "plot_phase_diagram", "plot_trajectory", "register_attention",
    "register_loss", "register_penalty", "regularization_path", "run_bayes_amp", "run_gamp", "sample",
    "solve_bayes_state_evolution", "solve_state_evolution", "sweep", "train_loss", "trajectory",
)  # fmt: skip


def __dir__() -> list[str]:
    return [*_COMMON, *_ESTIMATORS, *_SUBPACKAGES]


if TYPE_CHECKING:
    from gamp_attention.estimators import *
else:

    def __getattr__(name: str):
        """Import the estimators for scikit-learn at their first use, because scikit-learn is optional."""
        if name == "estimators" or name in _ESTIMATORS:
            from importlib import import_module

            estimators = import_module(f"{__name__}.estimators")
            return estimators if name == "estimators" else getattr(estimators, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
