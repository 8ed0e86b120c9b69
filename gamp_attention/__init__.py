"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer.

The module of a public name is imported when the name is first used, so that `import gamp_attention` takes little time.
Without the folder `extensions`, the package has the names of the core only.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gamp_attention._version import __version__

try:
    from gamp_attention.extensions import NAMES as _EXTENSIONS
except ModuleNotFoundError:  # the core works without extensions
    _EXTENSIONS = {}

if TYPE_CHECKING:
    from gamp_attention._tools.checkpoints import Checkpoint as Checkpoint
    from gamp_attention.descent.minimize import minimize_risk as minimize_risk
    from gamp_attention.descent.torch_risk import DescentResult as DescentResult
    from gamp_attention.extensions import *
    from gamp_attention.gamp.options import IterationOptions as IterationOptions
    from gamp_attention.gamp.result import GampResult as GampResult
    from gamp_attention.gamp.run import run_gamp as run_gamp
    from gamp_attention.gamp.step import GampState as GampState, gamp_step as gamp_step, initial_state as initial_state
    from gamp_attention.problem.dataset import Dataset as Dataset, LabelledDataset as LabelledDataset
    from gamp_attention.problem.denoisers.output import Denoised as Denoised, denoise as denoise
    from gamp_attention.problem.losses.attention import (
        AttentionLoss as AttentionLoss,
        DotProductAttention as DotProductAttention,
    )
    from gamp_attention.problem.losses.glm import (
        LogisticLoss as LogisticLoss,
        MultinomialLoss as MultinomialLoss,
        PhaseRetrievalLoss as PhaseRetrievalLoss,
        SquaredLoss as SquaredLoss,
    )
    from gamp_attention.problem.losses.heads import MultiHeadAttention as MultiHeadAttention
    from gamp_attention.problem.losses.registration import (
        register_attention as register_attention,
        register_loss as register_loss,
    )
    from gamp_attention.problem.penalties.base import register_penalty as register_penalty
    from gamp_attention.problem.penalties.standard import (
        ColumnRidge as ColumnRidge,
        ElasticNet as ElasticNet,
        Ridge as Ridge,
    )
    from gamp_attention.problem.risk import gradient as gradient, train_loss as train_loss
    from gamp_attention.problem.sources import ClassLaw as ClassLaw
    from gamp_attention.results import (
        ConvergenceError as ConvergenceError,
        History as History,
        Overlaps as Overlaps,
        Status as Status,
    )
    from gamp_attention.sampling.draw import sample as sample, sampled_test_error as sampled_test_error
    from gamp_attention.theory.fixed_points.observables import Stability as Stability
    from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult as StateEvolutionResult
    from gamp_attention.theory.fixed_points.solve import solve_state_evolution as solve_state_evolution
    from gamp_attention.theory.linear import LinearBaseline as LinearBaseline, linear_baseline as linear_baseline
    from gamp_attention.theory.models.attention import attention_model as attention_model, paper_model as paper_model
    from gamp_attention.theory.models.coordinate_classes import (
        CoordinateClasses as CoordinateClasses,
        coordinate_law as coordinate_law,
        power_law_spectrum as power_law_spectrum,
        sparse_teacher as sparse_teacher,
    )
    from gamp_attention.theory.models.coordinates import (
        CoordinateLaw as CoordinateLaw,
        law_from_samples as law_from_samples,
    )
    from gamp_attention.theory.models.data_law import DataLaw as DataLaw, Departure as Departure
    from gamp_attention.theory.models.glm import GLMModel as GLMModel, glm_model as glm_model
    from gamp_attention.theory.models.labels import (
        ClassLabels as ClassLabels,
        IntensityLabels as IntensityLabels,
        LinearLabels as LinearLabels,
        LogisticLabels as LogisticLabels,
    )
    from gamp_attention.theory.models.mixtures import MixtureModel as MixtureModel, mixture_model as mixture_model
    from gamp_attention.theory.models.model import Model as Model
    from gamp_attention.theory.models.teachers import SoftmaxTeacher as SoftmaxTeacher

_CORE: dict[str, tuple[str, ...]] = {  # public names of the core, by module
    "_tools.checkpoints": ("Checkpoint",),
    "descent.minimize": ("minimize_risk",),
    "descent.torch_risk": ("DescentResult",),
    "gamp.options": ("IterationOptions",),
    "gamp.result": ("GampResult",),
    "gamp.run": ("run_gamp",),
    "gamp.step": ("GampState", "gamp_step", "initial_state"),
    "problem.dataset": ("Dataset", "LabelledDataset"),
    "problem.denoisers.output": ("Denoised", "denoise"),
    "problem.losses.attention": ("AttentionLoss", "DotProductAttention"),
    "problem.losses.heads": ("MultiHeadAttention",),
    "problem.losses.glm": ("LogisticLoss", "MultinomialLoss", "PhaseRetrievalLoss", "SquaredLoss"),
    "problem.losses.registration": ("register_attention", "register_loss"),
    "problem.penalties.base": ("register_penalty",),
    "problem.penalties.standard": ("ColumnRidge", "ElasticNet", "Ridge"),
    "problem.risk": ("gradient", "train_loss"),
    "problem.sources": ("ClassLaw",),
    "results": ("ConvergenceError", "History", "Overlaps", "Status"),
    "sampling.draw": ("sample", "sampled_test_error"),
    "theory.fixed_points.observables": ("Stability",),
    "theory.fixed_points.refinement": ("StateEvolutionResult",),
    "theory.fixed_points.solve": ("solve_state_evolution",),
    "theory.linear": ("LinearBaseline", "linear_baseline"),
    "theory.models.attention": ("attention_model", "paper_model"),
    "theory.models.coordinate_classes": (
        "CoordinateClasses", "coordinate_law", "power_law_spectrum", "sparse_teacher",
    ),
    "theory.models.coordinates": ("CoordinateLaw", "law_from_samples"),
    "theory.models.data_law": ("DataLaw", "Departure"),
    "theory.models.glm": ("GLMModel", "glm_model"),
    "theory.models.labels": ("ClassLabels", "IntensityLabels", "LinearLabels", "LogisticLabels"),
    "theory.models.mixtures": ("MixtureModel", "mixture_model"),
    "theory.models.model": ("Model",),
    "theory.models.teachers": ("SoftmaxTeacher",),
}  # fmt: skip
_HOME = {name: module for table in (_CORE, _EXTENSIONS) for module, names in table.items() for name in names}
_SUBPACKAGES = ("descent", "extensions", "gamp", "problem", "results", "sampling", "theory")
_ESTIMATORS = ("GampAttention",)  # not in `__all__`, because scikit-learn is an optional dependency

__all__ = ["__version__", *(name for name in _HOME if name not in _ESTIMATORS)]


def __dir__() -> list[str]:
    return [*_HOME, *_SUBPACKAGES, "__version__"]


if not TYPE_CHECKING:  # for type checkers, a name that does not exist stays an error

    def __getattr__(name: str):
        """Import a subpackage, or a public name from its module, at its first use."""
        if name in _SUBPACKAGES:
            return import_module(f"{__name__}.{name}")
        if name in _HOME:
            value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
            globals()[name] = value  # later uses do not call this function
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
