"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from importlib import import_module
from typing import TYPE_CHECKING

# imported first, so that Ctrl-C works while the modules that take long to import are loaded
from gamp_attention._core import interrupts  # noqa: F401
from gamp_attention._version import __version__
from gamp_attention.baselines import (
    DescentResult,
    LinearBaseline,
    LinearFit,
    ReferenceErrors,
    ReferenceVerdict,
    fit_linear_baseline,
    linear_baseline,
    minimize_risk,
    reference_errors,
)
from gamp_attention.bayes import (
    BayesAmpResult,
    BayesStateEvolution,
    BayesThresholds,
    bayes_fixed_points,
    bayes_thresholds,
    run_bayes_amp,
    solve_bayes_state_evolution,
)
from gamp_attention.data import (
    Dataset,
    DistributedDataset,
    LabelledDataset,
    SpectralDirections,
    gradient,
    law_of,
    sample,
    spectral_directions,
    train_loss,
)
from gamp_attention.denoisers import Denoised, denoise
from gamp_attention.experiments import (
    Boundary,
    Comparison,
    DebiasedWeights,
    LeaveOneOut,
    PhaseBoundaries,
    RegularizationPath,
    Sweep,
    compare,
    debias,
    leave_one_out,
    local_pool,
    phase_boundaries,
    plot_comparison,
    plot_phase_diagram,
    plot_trajectory,
    regularization_path,
    sweep,
    to_dataset,
)
from gamp_attention.gamp import (
    Checkpoint,
    GampResult,
    GampState,
    IterationOptions,
    StartRecord,
    SurveyEnd,
    SurveyRecord,
    SurveyReport,
    SurveyState,
    gamp_step,
    initial_state,
    initial_survey,
    run_gamp,
    survey_step,
)
from gamp_attention.losses import (
    AttentionLoss,
    DotProductAttention,
    KinkWarning,
    LogisticLoss,
    MultinomialLoss,
    PhaseRetrievalLoss,
    SquaredLoss,
    register_attention,
    register_loss,
)
from gamp_attention.models import (
    ClassLabels,
    ClassLaw,
    CoordinateClasses,
    CoordinateLaw,
    DataLaw,
    Departure,
    GLMModel,
    IntensityLabels,
    LinearLabels,
    LogisticLabels,
    MixtureModel,
    Model,
    SampledLaw,
    SequenceModel,
    SoftmaxTeacher,
    attention_model,
    coordinate_law,
    glm_model,
    law_from_samples,
    mixture_model,
    paper_model,
    power_law_spectrum,
    sequence_model,
    sign_positions,
    sparse_teacher,
    subset_positions,
)
from gamp_attention.penalties import ElasticNet, Ridge, register_penalty
from gamp_attention.results import ConvergenceError, History, Overlaps, Status
from gamp_attention.state_evolution import (
    Branches,
    BranchPath,
    SpectralOverlap,
    Stability,
    StateEvolutionResult,
    Trajectory,
    branches,
    continue_branch,
    solve_state_evolution,
    spectral_overlap,
    trajectory,
)

# the common names, which `dir(gamp_attention)` lists together with the subpackages
__all__ = [
    "ConvergenceError", "Dataset", "DotProductAttention", "ElasticNet", "GampState", "LabelledDataset",
    "LinearLabels", "LogisticLoss", "Overlaps", "Ridge", "SoftmaxTeacher", "SquaredLoss", "__version__",
    "attention_model", "bayes_thresholds", "branches", "compare", "debias", "gamp_step", "glm_model", "gradient",
    "initial_state", "law_of", "leave_one_out", "linear_baseline", "minimize_risk", "mixture_model",
    "paper_model", "phase_boundaries", "plot_comparison", "plot_phase_diagram", "plot_trajectory",
    "register_attention", "register_loss", "register_penalty", "regularization_path", "run_bayes_amp", "run_gamp",
    "sample", "sequence_model", "solve_bayes_state_evolution", "solve_state_evolution", "sweep", "train_loss",
    "trajectory",
]  # fmt: skip
_COMMON = tuple(__all__)

__all__ += [
    "AttentionLoss", "BayesAmpResult", "BayesStateEvolution", "BayesThresholds", "Boundary", "BranchPath",
    "Branches", "Checkpoint", "ClassLabels", "ClassLaw", "Comparison", "CoordinateClasses", "CoordinateLaw",
    "DataLaw", "DebiasedWeights", "Denoised", "Departure", "DescentResult", "DistributedDataset", "GLMModel",
    "GampResult", "History", "IntensityLabels", "IterationOptions", "KinkWarning", "LeaveOneOut",
    "LinearBaseline", "LinearFit", "LogisticLabels", "MixtureModel", "Model", "MultinomialLoss",
    "PhaseBoundaries", "PhaseRetrievalLoss", "ReferenceErrors", "ReferenceVerdict", "RegularizationPath",
    "SampledLaw", "SequenceModel", "SpectralDirections", "SpectralOverlap", "Stability", "StartRecord",
    "StateEvolutionResult", "Status", "SurveyEnd", "SurveyRecord", "SurveyReport", "SurveyState", "Sweep", "Trajectory",
    "bayes_fixed_points", "continue_branch", "coordinate_law", "denoise",
    "fit_linear_baseline", "initial_survey", "law_from_samples", "local_pool", "power_law_spectrum", "reference_errors",
    "sign_positions", "sparse_teacher", "spectral_directions", "spectral_overlap", "subset_positions",
    "survey_step", "to_dataset",
]  # fmt: skip

_ESTIMATORS = ("GampAttention", "GampClassifier", "GampRegressor")
_SUBPACKAGES = (
    "baselines", "bayes", "data", "denoisers", "estimators", "experiments", "gamp", "losses", "models", "penalties",
    "results", "state_evolution",
)  # fmt: skip


def __dir__() -> list[str]:
    return [*_COMMON, *_ESTIMATORS, *_SUBPACKAGES]


if TYPE_CHECKING:
    from gamp_attention import estimators  # noqa: F401
    from gamp_attention.estimators import GampAttention, GampClassifier, GampRegressor  # noqa: F401
else:

    def __getattr__(name: str):
        """Import the estimators at first use, because scikit-learn is an optional dependency."""
        if name == "estimators" or name in _ESTIMATORS:
            estimators = import_module("gamp_attention.estimators")
            return estimators if name == "estimators" else getattr(estimators, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
