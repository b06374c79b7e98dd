"""What a job of a submission runs on each task: `python -m spectral_conditioning.launch.element`.

Listens for the stop signals from the start, refuses code that changed since the submission, and trains its configurations.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from spectral_conditioning.training.signals import listen


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments that the batch scripts pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", required=True, metavar="HASH", help="hash of the sources at submission")
    parser.add_argument("--changed-code", choices=("refuse", "warn"), default="refuse")
    parser.add_argument("--list", type=Path, metavar="FILE", help="lines of an index and its configurations")
    parser.add_argument("--index", type=int, help="which line")
    parser.add_argument("configs", nargs="*", type=Path)
    return parser.parse_args(argv)


def listed(path: Path, index: int) -> list[str]:
    """Return the configurations on the line of a list that starts with `index`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        number, *configs = line.split()
        if int(number) == index:
            return configs
    from spectral_conditioning.errors import RecordError

    raise RecordError(f"{path} has no line for element {index}; submit the study again")


def main(argv: list[str]) -> int:
    """Train one element of an array, or the configurations given; return 1 when one of them failed."""
    listen()
    arguments = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # Heavy imports come after the handlers.
    from spectral_conditioning.errors import SpectralError
    from spectral_conditioning.training import worker
    from spectral_conditioning.training.record import source_digest

    found = source_digest()
    if found != arguments.sources:
        message = f"the code has changed since the submission (sources {arguments.sources}, now {found})"
        if arguments.changed_code == "refuse":
            print(
                f"error: {message}; submit again (only what is missing runs), or submit with --changed-code=warn",
                file=sys.stderr,
            )
            return 1
        logging.warning("%s", message)
    try:
        configs = listed(arguments.list, arguments.index) if arguments.list else list(map(str, arguments.configs))
    except SpectralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return worker.main(configs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
