"""Extensions: capabilities that are built on the core, which works without them. Each only adds files.

An extension adds its public names to `NAMES`, and a named start to `FURTHER_STARTS`; the docstring of its folder lists
the other extensions that it uses.
"""

from typing import TYPE_CHECKING, Any

from gamp_attention._tools.choices import FURTHER_STARTS

if TYPE_CHECKING:
    from gamp_attention.extensions.bayes.amp import BayesAmpResult as BayesAmpResult, run_bayes_amp as run_bayes_amp
    from gamp_attention.extensions.bayes.state_evolution import (
        BayesStateEvolution as BayesStateEvolution,
        solve_bayes_state_evolution as solve_bayes_state_evolution,
    )
    from gamp_attention.extensions.bayes.thresholds import (
        BayesThresholds as BayesThresholds,
        bayes_thresholds as bayes_thresholds,
    )
    from gamp_attention.extensions.comparison.comparison import Comparison as Comparison, compare as compare
    from gamp_attention.extensions.comparison.figures import (
        plot_comparison as plot_comparison,
        plot_phase_diagram as plot_phase_diagram,
    )
    from gamp_attention.extensions.dynamics.message_passing import MessagePassing as MessagePassing
    from gamp_attention.extensions.dynamics.online_paths import (
        OnlineResult as OnlineResult,
        SinglePass as SinglePass,
        single_pass as single_pass,
    )
    from gamp_attention.extensions.dynamics.replicas import Trajectory as Trajectory
    from gamp_attention.extensions.dynamics.stored_times import GradientDescent as GradientDescent
    from gamp_attention.extensions.dynamics.survey_paths import Survey as Survey
    from gamp_attention.extensions.dynamics.trajectory import trajectory as trajectory
    from gamp_attention.extensions.equations.follow import (
        EquationsCurve as EquationsCurve,
        follow_equations as follow_equations,
    )
    from gamp_attention.extensions.equations.prox import prox as prox
    from gamp_attention.extensions.equations.solve import (
        EquationsSolution as EquationsSolution,
        solve_equations as solve_equations,
    )
    from gamp_attention.extensions.estimators.attention import GampAttention as GampAttention
    from gamp_attention.extensions.inference.debias import DebiasedWeights as DebiasedWeights, debias as debias
    from gamp_attention.extensions.inference.law_of import law_of as law_of
    from gamp_attention.extensions.inference.leave_one_out import (
        LeaveOneOut as LeaveOneOut,
        leave_one_out as leave_one_out,
    )
    from gamp_attention.extensions.inference.paths import (
        RegularizationPath as RegularizationPath,
        regularization_path as regularization_path,
    )
    from gamp_attention.extensions.pairs.solve import PairResult as PairResult, solve_pair as solve_pair
    from gamp_attention.extensions.phases.branches import (
        Branches as Branches,
        BranchPath as BranchPath,
        branches as branches,
        continue_branch as continue_branch,
    )
    from gamp_attention.extensions.phases.phase_boundaries import (
        PhaseBoundaries as PhaseBoundaries,
        phase_boundaries as phase_boundaries,
    )
    from gamp_attention.extensions.phases.scan import Boundary as Boundary
    from gamp_attention.extensions.rsb.broken import (
        BrokenStateEvolutionResult as BrokenStateEvolutionResult,
        solve_broken as solve_broken,
    )
    from gamp_attention.extensions.sequence.sequence import (
        SequenceModel as SequenceModel,
        sequence_model as sequence_model,
        value_model as value_model,
    )
    from gamp_attention.extensions.spectra.hessian_spectrum import (
        HessianSpectrum as HessianSpectrum,
        hessian_spectrum as hessian_spectrum,
    )
    from gamp_attention.extensions.spectra.limiting_spectra import (
        LimitingSpectrum as LimitingSpectrum,
        limiting_spectrum as limiting_spectrum,
    )
    from gamp_attention.extensions.sweeps.scheduler import local_pool as local_pool
    from gamp_attention.extensions.sweeps.sweep import Sweep as Sweep, sweep as sweep
    from gamp_attention.extensions.train.runs import StartRecord as StartRecord
    from gamp_attention.extensions.train.survey import SurveyEnd as SurveyEnd, SurveyRecord as SurveyRecord
    from gamp_attention.extensions.train.train import TrainResult as TrainResult, train as train
    from gamp_attention.extensions.train.user_arrays import FitResult as FitResult, load_result as load_result
    from gamp_attention.extensions.weight_norm.runs import run_gamp_with_norm as run_gamp_with_norm
    from gamp_attention.extensions.weight_norm.theory import solve_with_norm as solve_with_norm

NAMES: dict[str, tuple[str, ...]] = {  # public names, by module
    "extensions.bayes.amp": ("BayesAmpResult", "run_bayes_amp"),
    "extensions.bayes.state_evolution": ("BayesStateEvolution", "solve_bayes_state_evolution"),
    "extensions.bayes.thresholds": ("BayesThresholds", "bayes_thresholds"),
    "extensions.comparison.comparison": ("Comparison", "compare"),
    "extensions.comparison.figures": ("plot_comparison", "plot_phase_diagram"),
    "extensions.dynamics.stored_times": ("GradientDescent",),
    "extensions.dynamics.message_passing": ("MessagePassing",),
    "extensions.dynamics.replicas": ("Trajectory",),
    "extensions.dynamics.online_paths": ("OnlineResult", "SinglePass", "single_pass"),
    "extensions.dynamics.survey_paths": ("Survey",),
    "extensions.dynamics.trajectory": ("trajectory",),
    "extensions.equations.follow": ("EquationsCurve", "follow_equations"),
    "extensions.equations.prox": ("prox",),
    "extensions.equations.solve": ("EquationsSolution", "solve_equations"),
    "extensions.estimators.attention": ("GampAttention",),
    "extensions.inference.debias": ("DebiasedWeights", "debias"),
    "extensions.inference.law_of": ("law_of",),
    "extensions.inference.leave_one_out": ("LeaveOneOut", "leave_one_out"),
    "extensions.inference.paths": ("RegularizationPath", "regularization_path"),
    "extensions.pairs.solve": ("PairResult", "solve_pair"),
    "extensions.phases.branches": ("BranchPath", "Branches", "branches", "continue_branch"),
    "extensions.phases.phase_boundaries": ("PhaseBoundaries", "phase_boundaries"),
    "extensions.phases.scan": ("Boundary",),
    "extensions.rsb.broken": ("BrokenStateEvolutionResult", "solve_broken"),
    "extensions.sequence.sequence": ("SequenceModel", "sequence_model", "value_model"),
    "extensions.spectra.hessian_spectrum": ("HessianSpectrum", "hessian_spectrum"),
    "extensions.spectra.limiting_spectra": ("LimitingSpectrum", "limiting_spectrum"),
    "extensions.sweeps.scheduler": ("local_pool",),
    "extensions.sweeps.sweep": ("Sweep", "sweep"),
    "extensions.train.user_arrays": ("FitResult", "load_result"),
    "extensions.train.runs": ("StartRecord",),
    "extensions.train.survey": ("SurveyEnd", "SurveyRecord"),
    "extensions.train.train": ("TrainResult", "train"),
    "extensions.weight_norm.runs": ("run_gamp_with_norm",),
    "extensions.weight_norm.theory": ("solve_with_norm",),
}  # fmt: skip
__all__ = [name for names in NAMES.values() for name in names if name != "GampAttention"]


def _spectral_starts(data: Any, risk: str, n_starts: int, random: Any) -> list[tuple[str, Any]]:
    from gamp_attention.extensions.train.spectral import spectral_starts

    return [(f"spectral {k + 1}", Q) for k, Q in enumerate(spectral_starts(data, risk, n_starts, random))]


FURTHER_STARTS["spectral"] = _spectral_starts
