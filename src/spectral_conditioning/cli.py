"""The `spectral` command: parsing and dispatch, nothing else. Heavy packages are imported by the subcommand that needs them."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from spectral_conditioning.errors import SpectralError, closest
from spectral_conditioning.files import silence_stdout

# Subcommands with an argument parser of their own: name → (module with add_arguments and run, one line of help).
COMMANDS: dict[str, tuple[str, str]] = {
    "compare": ("spectral_conditioning.results.compare", "paired tables, λ curves and plots from run folders"),
    "glue": ("spectral_conditioning.results.glue", "GLUE's averages over fine-tuning runs, one column an arm"),
    "demo": ("spectral_conditioning.launch.demo", "baseline against conditioned on digits, in about five minutes"),
    "submit": ("spectral_conditioning.launch.submit", "send a study to SLURM: one array, only what is missing"),
    "status": ("spectral_conditioning.launch.status", "where every run of a submitted study stands"),
    "bench": ("spectral_conditioning.launch.bench", "what conditioning costs: time ratios and exact counts"),
    "export": ("spectral_conditioning.launch.export", "folded plain weights of a run, with a model card"),
    "families": ("spectral_conditioning.launch.families", "the attention families whose layout is known"),
    "probe": ("spectral_conditioning.probe_command", "singular values, κ(W), κ(J) and saturation of a model or run"),
}
# Data sets that `spectral prepare NAME` verifies, converts or generates: name → (module, one line of help).
DATA_SETS: dict[str, tuple[str, str]] = {
    "listops": ("spectral_conditioning.tasks.lra.prepare", "generate ListOps, or convert the official TSV files"),
    "text": ("spectral_conditioning.tasks.lra.prepare", "IMDB reviews as bytes"),
    "retrieval": ("spectral_conditioning.tasks.lra.prepare", "pairs of documents as bytes (AAN)"),
    "image": ("spectral_conditioning.tasks.lra.prepare", "CIFAR-10 as sequences of grey levels"),
    "pathfinder": ("spectral_conditioning.tasks.lra.prepare", "Pathfinder32, released or generated"),
    "imagenet": ("spectral_conditioning.tasks.imagenet.prepare", "verify ImageNet-1k, or any set of labelled images"),
    "coco": ("spectral_conditioning.tasks.coco.prepare", "verify COCO 2017, or any set in its format"),
    "pile": ("spectral_conditioning.tasks.cramming.prepare", "filter, tokenise and pack text for pretraining"),
}
TRAIN_HELP = "train one configuration, or a sweep with -m (Hydra)"
PREPARE_HELP = "verify, convert or generate a data set"


def usage() -> str:
    """Return the help of the command as a whole."""
    rows = {"train": TRAIN_HELP, "prepare": PREPARE_HELP, **{name: text for name, (_, text) in COMMANDS.items()}}
    lines = [f"  {name:10}{text}" for name, text in rows.items()]
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
    if name == "prepare":
        return prepare(rest)
    module_name, text = entry("command", name, COMMANDS, others=("train", "prepare"))
    return run_module(module_name, f"spectral {name}", text, rest)


def prepare(argv: Sequence[str]) -> int:
    """Run `spectral prepare NAME …`."""
    if not argv or argv[0] in ("-h", "--help"):
        rows = "\n".join(f"  {name:12}{text}" for name, (_, text) in DATA_SETS.items())
        print(f"usage: spectral prepare NAME [arguments]\n\n{PREPARE_HELP.capitalize()}.\n\n{rows}")
        return 0 if argv else 2
    module_name, text = entry("data set", argv[0], DATA_SETS)
    return run_module(module_name, f"spectral prepare {argv[0]}", text, list(argv[1:]), name=argv[0])


def entry(kind: str, name: str, table: dict[str, tuple[str, str]], others: Sequence[str] = ()) -> tuple[str, str]:
    """Return a row of a table, or raise SpectralError with the nearest name."""
    if name not in table:
        allowed = [*others, *table]
        near = closest(name, allowed)
        hint = f"; closest {near!r}" if near else ""
        raise SpectralError(f"unknown {kind} {name!r}; allowed: {', '.join(allowed)}{hint}")
    return table[name]


def run_module(module_name: str, prog: str, text: str, argv: list[str], **extra: str) -> int:
    """Import a subcommand's module, parse its arguments and run it; `extra` is added to what was parsed."""
    module = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=prog, description=text[0].upper() + text[1:] + ".")
    module.add_arguments(parser)
    parsed = parser.parse_intermixed_args(argv)
    vars(parsed).update(extra)
    return int(module.run(parsed))


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
    except BrokenPipeError:
        silence_stdout()  # the reader (head, less) has left; nothing is wrong
        sys.exit(0)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
