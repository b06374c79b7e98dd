"""Train saved configurations one after the other: `python -m spectral_conditioning.training.worker CONFIG.yaml…`.

One rank of a run, a worker of a local study or an element of a SLURM array; none of them parses overrides again.
"""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path

from spectral_conditioning.errors import SpectralError, message_of
from spectral_conditioning.files import write_atomically
from spectral_conditioning.training.identity import run_folder, run_label
from spectral_conditioning.training.ranks import end_with_torchrun, launched
from spectral_conditioning.training.run import run
from spectral_conditioning.training.storage import error_file, read_config


def main(argv: list[str]) -> int:
    """Train one configuration after the other; return 1 when one of them failed, after the others have run.

    Why a run failed is printed under its name and, where this process is not one of several ranks, kept beside its configuration.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    end_with_torchrun()
    failed = 0
    for path in map(Path, argv):
        label = str(path)
        if not launched():
            error_file(path).unlink(missing_ok=True)
        try:
            config = read_config(path)
            # Runs of several workers are told apart by their folders where only a setting differs; ranks share one run.
            label = run_label(config, last=None if launched() else run_folder(config).name)
            run(config, label)
        except Exception as error:
            failed += 1
            _tell(label, error)
            if launched():
                break  # The other ranks wait for this one in the same run.
            write_atomically(error_file(path), f"{message_of(error)}\n".encode())
    return 1 if failed else 0


def _tell(label: str, error: Exception) -> None:
    """Print the error; one that nobody foresaw with its traceback."""
    if not isinstance(error, SpectralError):
        traceback.print_exception(error)
    print(f"error: {label}: {message_of(error)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
