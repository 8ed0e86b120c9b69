"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer.

A subpackage is imported when the subpackage or one of its names is first used, so that `import gamp_attention` takes
little time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# imported first, so that Ctrl-C works while the modules that take long to import are loaded
from gamp_attention import extensions  # noqa: F401
from gamp_attention._core import interrupts  # noqa: F401
from gamp_attention._version import __version__

if TYPE_CHECKING:  # type checkers read the names from the `__all__` of the subpackages
    from gamp_attention.baselines import *
    from gamp_attention.bayes import *
    from gamp_attention.data import *
    from gamp_attention.denoisers import *
    from gamp_attention.estimators import *
    from gamp_attention.experiments import *
    from gamp_attention.extensions.train import *
    from gamp_attention.gamp import *
    from gamp_attention.losses import *
    from gamp_attention.models import *
    from gamp_attention.penalties import *
    from gamp_attention.results import *
    from gamp_attention.state_evolution import *

# the public names of each subpackage
_NAMES: dict[str, tuple[str, ...]] = {
    "baselines": (
        "DescentResult", "LinearBaseline", "LinearFit", "OnlineResult", "ReferenceErrors", "ReferenceVerdict",
        "fit_linear_baseline", "linear_baseline", "minimize_risk", "reference_errors",
    ),
    "bayes": (
        "BayesAmpResult", "BayesStateEvolution", "BayesThresholds", "RecoveryStage", "StagedThresholds",
        "bayes_fixed_points", "bayes_thresholds", "run_bayes_amp", "solve_bayes_state_evolution",
    ),
    "data": (
        "Dataset", "DistributedDataset", "HessianSpectrum", "LabelledDataset", "fix_columns",
        "gradient", "hessian_spectrum", "law_of", "sample", "sampled_test_error", "train_loss",
    ),
    "denoisers": ("Denoised", "denoise"),
    "estimators": ("GampAttention",),
    "experiments": (
        "Boundary", "Comparison", "DebiasedWeights", "LeaveOneOut", "PhaseBoundaries", "RegularizationPath",
        "Sweep", "compare", "debias", "leave_one_out", "local_pool", "phase_boundaries", "plot_comparison",
        "plot_phase_diagram", "plot_trajectory", "regularization_path", "sweep", "to_dataset",
    ),
    "extensions.train": (
        "Checkpoint", "FitResult", "StartRecord", "SurveyEnd", "SurveyRecord", "SurveyReport", "SurveyState",
        "SpectralDirections", "TrainResult", "initial_survey", "load_result", "spectral_directions", "survey_step",
        "train",
    ),
    "gamp": ("GampResult", "GampState", "IterationOptions", "gamp_step", "initial_state", "run_gamp"),
    "losses": (
        "AttentionLoss", "DotProductAttention", "KinkWarning", "LogisticLoss", "MultiHeadAttention",
        "MultinomialLoss", "PhaseRetrievalLoss", "SquaredLoss", "register_attention", "register_loss",
    ),
    "models": (
        "ClassLabels", "ClassLaw", "CoordinateClasses", "CoordinateLaw", "DataLaw", "Departure", "GLMModel",
        "IntensityLabels", "LinearLabels", "LogisticLabels", "MixtureModel", "Model", "SampledLaw",
        "SequenceModel", "SoftmaxTeacher", "attention_model", "coordinate_law", "glm_model", "law_from_samples",
        "mixture_model", "paper_model", "power_law_spectrum", "sequence_model", "sign_positions", "sparse_teacher",
        "subset_positions",
    ),
    "penalties": ("ColumnRidge", "ElasticNet", "Ridge", "register_penalty"),
    "results": ("ConvergenceError", "History", "Overlaps", "Status"),
    "state_evolution": (
        "BranchPath", "Branches", "BrokenStateEvolutionResult", "LimitingSpectrum", "PopulationLoss", "PopulationMap",
        "PopulationMinimum", "SpectralOverlap", "Stability", "StateEvolutionResult", "Trajectory", "branches",
        "continue_branch", "limiting_spectrum", "population_loss", "population_map", "solve_state_evolution",
        "spectral_overlap", "trajectory",
    ),
}  # fmt: skip
_SUBPACKAGES = tuple(_NAMES)
_ESTIMATORS = _NAMES["estimators"]  # not in `__all__`, because scikit-learn is an optional dependency
_HOME = {name: subpackage for subpackage, names in _NAMES.items() for name in names}

__all__ = ["__version__", *(name for name in _HOME if name not in _ESTIMATORS)]

# the common names, which `dir(gamp_attention)` lists together with the subpackages
_COMMON = (
    "ConvergenceError", "Dataset", "DotProductAttention", "ElasticNet", "GampState", "LabelledDataset",
    "LinearLabels", "LogisticLoss", "Overlaps", "Ridge", "SoftmaxTeacher", "SquaredLoss", "__version__",
    "attention_model", "bayes_thresholds", "branches", "compare", "debias", "gamp_step", "glm_model", "gradient",
    "initial_state", "law_of", "leave_one_out", "linear_baseline", "load_result", "minimize_risk", "mixture_model",
    "paper_model", "phase_boundaries", "plot_comparison", "plot_phase_diagram", "plot_trajectory",
    "register_attention", "register_loss", "register_penalty", "regularization_path", "run_bayes_amp", "run_gamp",
    "sample", "solve_bayes_state_evolution", "solve_state_evolution", "sweep", "train", "train_loss", "trajectory",
)  # fmt: skip


def __dir__() -> list[str]:
    return [*_COMMON, *_ESTIMATORS, *_SUBPACKAGES]


if not TYPE_CHECKING:  # for type checkers, a name that does not exist stays an error

    def __getattr__(name: str):
        """Import a subpackage, or a public name from its subpackage, at its first use."""
        if name in _NAMES:
            return import_module(f"{__name__}.{name}")
        if name in _HOME:
            value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
            globals()[name] = value  # later uses do not call this function
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
