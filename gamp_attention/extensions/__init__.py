"""Extensions: capabilities that are built on the core, which works without them. Each only adds files."""

from typing import Any

from gamp_attention._core.choices import FURTHER_STARTS


def _spectral_starts(data: Any, risk: str, n_starts: int, random: Any) -> list[tuple[str, Any]]:
    from gamp_attention.extensions.train.spectral import spectral_starts

    return [(f"spectral {k + 1}", Q) for k, Q in enumerate(spectral_starts(data, risk, n_starts, random))]


def _posterior_starts(data: Any, risk: str, n_starts: int, random: Any) -> list[tuple[str, Any]]:
    from gamp_attention.extensions.train.spectral import require_posterior

    return [("posterior", require_posterior(data, "init").start(data, risk, random))]


FURTHER_STARTS.update(spectral=_spectral_starts, posterior=_posterior_starts)
