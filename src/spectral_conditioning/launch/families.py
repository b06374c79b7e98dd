"""`spectral families`: the attention families whose layout is known."""

from __future__ import annotations

import argparse

from spectral_conditioning.conditioning import families


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral families` (no arguments)."""


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print(families())
    return 0
