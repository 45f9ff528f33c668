"""Error of every layer: float vs quantized vs simulator, worst first."""

from __future__ import annotations

import argparse

NAME = "compare"
HELP = "per-layer error: float vs quantized vs simulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""


def execute(args: argparse.Namespace) -> None:
    """TODO"""
