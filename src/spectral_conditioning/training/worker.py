"""Train saved configurations one after the other: `python -m spectral_conditioning.training.worker CONFIG.yaml…`.

One rank of a run, a worker of a local study or an element of a SLURM array; none of them parses overrides again.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from spectral_conditioning.errors import SpectralError
from spectral_conditioning.training.ranks import end_with_torchrun, launched
from spectral_conditioning.training.run import run
from spectral_conditioning.training.storage import read_config


def main(argv: list[str]) -> int:
    """Train one configuration after the other; return 1 when one of them failed, after the others have run."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    end_with_torchrun()
    failed = 0
    for path in argv:
        try:
            run(read_config(Path(path)))
        except SpectralError as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
            if launched():
                break  # The other ranks wait for this one in the same run.
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
