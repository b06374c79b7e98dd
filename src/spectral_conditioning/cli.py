"""The `spectral` command: parsing and dispatch, nothing else. Heavy packages are imported by the subcommand that needs them."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from spectral_conditioning.errors import SpectralError, closest

# Subcommands with an argument parser of their own: name → (module with add_arguments and run, one line of help).
COMMANDS: dict[str, tuple[str, str]] = {
    "compare": ("spectral_conditioning.results.compare", "paired tables, λ curves and plots from run folders"),
    "demo": ("spectral_conditioning.launch.demo", "baseline against conditioned on digits, in about five minutes"),
    "submit": ("spectral_conditioning.launch.submit", "send a study to SLURM: one array, only what is missing"),
    "status": ("spectral_conditioning.launch.status", "where every run of a submitted study stands"),
    "probe": ("spectral_conditioning.probe_command", "singular values, κ(W), κ(J) and saturation of a model or run"),
}
TRAIN_HELP = "train one configuration, or a sweep with -m (Hydra)"


def usage() -> str:
    """Return the help of the command as a whole."""
    lines = [f"  {'train':10}{TRAIN_HELP}"] + [f"  {name:10}{text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: spectral COMMAND [arguments]\n\n"
        "Train transformers with plain and spectrally conditioned attention, and compare them.\n\n"
        + "\n".join(lines)
        + "\n\n`spectral COMMAND --help` says more."
    )


def dispatch(argv: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    name, rest = argv[0], list(argv[1:])
    if name == "train":
        from spectral_conditioning.training.hydra_entry import train

        return train(rest)
    if name not in COMMANDS:
        near = closest(name, ["train", *COMMANDS])
        hint = f"; closest {near!r}" if near else ""
        raise SpectralError(f"unknown command {name!r}; allowed: train, {', '.join(COMMANDS)}{hint}")
    module_name, text = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"spectral {name}", description=text[0].upper() + text[1:] + ".")
    module.add_arguments(parser)
    return int(module.run(parser.parse_intermixed_args(rest)))


def main() -> None:
    """Entry point: exit status 0 on success, 1 after a one-message error, 2 for unusable arguments."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        sys.exit(dispatch(sys.argv[1:]))
    except SpectralError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "spectral_conditioning":
            raise
        print(
            f"error: this command needs the package {error.name!r}: pip install 'spectral-conditioning[all]'",
            file=sys.stderr,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
