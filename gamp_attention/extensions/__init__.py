"""Extensions: capabilities that are built on the core, which works without them. Each only adds files."""

from typing import Any

from gamp_attention._core.choices import FURTHER_STARTS


def _spectral_starts(data: Any, risk: str, n_starts: int, random: Any) -> list[tuple[str, Any]]:
    from gamp_attention.extensions.train.spectral import spectral_starts

    return [(f"spectral {k + 1}", Q) for k, Q in enumerate(spectral_starts(data, risk, n_starts, random))]


FURTHER_STARTS["spectral"] = _spectral_starts
