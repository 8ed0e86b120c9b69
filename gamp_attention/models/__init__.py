"""Models: teacher, student, penalty and token distribution of a problem, independent of its size."""

from gamp_attention.models.attention import attention_model, paper_model
from gamp_attention.models.coordinate_classes import (
    CoordinateClasses,
    coordinate_law,
    power_law_spectrum,
    sign_positions,
    sparse_teacher,
    subset_positions,
)
from gamp_attention.models.coordinates import CoordinateLaw, SampledLaw, law_from_samples
from gamp_attention.models.data_law import DataLaw, Departure
from gamp_attention.models.glm import GLMModel, glm_model
from gamp_attention.models.labels import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels, ShiftedLabels
from gamp_attention.models.mixtures import MixtureModel, mixture_model
from gamp_attention.models.model import Model, with_parameter
from gamp_attention.models.named_starts import POSITIONAL_SIZE
from gamp_attention.models.sequence import SequenceModel, sequence_model
from gamp_attention.models.sources import ClassLaw, Group, Sources
from gamp_attention.models.teachers import DecorrelatedTeacher, SoftmaxTeacher
from gamp_attention.models.value_layers import value_model

__all__ = [
    "ClassLabels", "ClassLaw", "CoordinateClasses", "CoordinateLaw", "DataLaw", "Departure", "GLMModel",
    "IntensityLabels", "LinearLabels", "LogisticLabels", "MixtureModel", "Model", "SampledLaw", "SequenceModel",
    "SoftmaxTeacher", "attention_model", "coordinate_law", "glm_model", "law_from_samples", "mixture_model",
    "paper_model", "power_law_spectrum", "sequence_model", "sign_positions", "sparse_teacher", "subset_positions",
    "value_model",
]  # fmt: skip
