"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from typing import TYPE_CHECKING

from gamp_attention._core import interrupts  # noqa: F401 - first: before what takes long to import
from gamp_attention._version import __version__
from gamp_attention.baselines import (
    DescentResult,
    LinearBaseline,
    LinearFit,
    fit_linear_baseline,
    linear_baseline,
    minimize_risk,
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
from gamp_attention.gamp import GampResult, GampState, StartRecord, gamp_step, initial_state, run_gamp
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
    SoftmaxTeacher,
    attention_model,
    coordinate_law,
    glm_model,
    law_from_samples,
    mixture_model,
    paper_model,
    power_law_spectrum,
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

__all__ = [
    "AttentionLoss", "BayesAmpResult", "BayesStateEvolution", "BayesThresholds", "Boundary", "BranchPath", "Branches",
    "ClassLabels", "ClassLaw", "Comparison", "ConvergenceError", "CoordinateClasses", "CoordinateLaw", "DataLaw",
    "Dataset", "DebiasedWeights", "Denoised", "Departure", "DescentResult", "DistributedDataset",
    "DotProductAttention", "ElasticNet", "GLMModel", "GampResult", "GampState", "History", "IntensityLabels",
    "KinkWarning", "LabelledDataset", "LeaveOneOut", "LinearBaseline", "LinearFit", "LinearLabels", "LogisticLabels",
    "LogisticLoss", "MixtureModel", "Model", "MultinomialLoss", "Overlaps", "PhaseBoundaries", "PhaseRetrievalLoss",
    "RegularizationPath", "Ridge", "SampledLaw", "SoftmaxTeacher", "SpectralDirections", "SpectralOverlap",
    "SquaredLoss", "Stability", "StartRecord", "StateEvolutionResult", "Status", "Sweep", "Trajectory", "__version__",
    "attention_model", "bayes_fixed_points", "bayes_thresholds", "branches", "compare", "continue_branch",
    "coordinate_law", "debias", "denoise", "fit_linear_baseline", "gamp_step", "glm_model", "gradient",
    "initial_state", "law_from_samples", "law_of", "leave_one_out", "linear_baseline", "local_pool", "minimize_risk",
    "mixture_model", "paper_model", "phase_boundaries", "plot_comparison", "plot_phase_diagram", "plot_trajectory",
    "power_law_spectrum", "register_attention", "register_loss", "register_penalty", "regularization_path",
    "run_bayes_amp", "run_gamp", "sample", "sign_positions", "solve_bayes_state_evolution", "solve_state_evolution",
    "sparse_teacher", "spectral_directions", "spectral_overlap", "subset_positions", "sweep", "to_dataset",
    "train_loss", "trajectory",
]  # fmt: skip

_ESTIMATORS = ("GampAttention", "GampClassifier", "GampRegressor")  # not in __all__: they need scikit-learn

if TYPE_CHECKING:
    from gamp_attention.estimators import GampAttention, GampClassifier, GampRegressor  # noqa: F401
else:

    def __dir__():
        return [*globals(), *_ESTIMATORS]

    def __getattr__(name):
        """Estimators, imported when they are asked for; and names that had another one in earlier versions."""
        if name in _ESTIMATORS:
            from gamp_attention import estimators

            return getattr(estimators, name)
        if name == "Classes":
            import warnings

            warnings.warn("gamp_attention.Classes is now called CoordinateClasses", DeprecationWarning, stacklevel=2)
            return CoordinateClasses
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
