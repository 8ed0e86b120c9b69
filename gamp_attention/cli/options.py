"""Options that several commands have."""

import argparse
from typing import Any

from gamp_attention.penalties.standard import ElasticNet


def add_l1(command: argparse.ArgumentParser) -> None:
    """Add --l1, beside a --lam."""
    command.add_argument("--l1", type=float, default=0.0, help="l1 penalty besides (default 0)")


def chosen_penalty(options: argparse.Namespace) -> Any:
    """The elastic net where --l1 is given, else None for the ridge."""
    l1 = getattr(options, "l1", 0.0)
    return ElasticNet(options.lam, l1) if l1 else None
