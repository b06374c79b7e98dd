"""`spectral train`: Hydra runs the jobs; every one of them is composed and checked before the first starts."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from spectral_conditioning.errors import ConfigError, SpectralError, message_of
from spectral_conditioning.training.compose import ROOT, check_jobs, check_launcher, config_directory, expand_sweep
from spectral_conditioning.training.config import typed
from spectral_conditioning.training.run import run

log = logging.getLogger(__name__)
FAILURES: list[str] = []


def job(tree: DictConfig) -> None:
    """Run one job. A failure is told at once and remembered, so that it neither ends a sweep nor hides the next one."""
    hydra_config = HydraConfig.get()
    try:
        run(typed(tree))
    except Exception as error:
        if not hydra_config.launcher._target_.endswith("BasicLauncher"):
            raise  # In another process the launcher's own bookkeeping has to see it.
        if not isinstance(error, SpectralError):
            if hydra_config.mode != RunMode.MULTIRUN:
                raise
            traceback.print_exception(error)
        print(f"error: {message_of(error)}", file=sys.stderr)
        FAILURES.append(message_of(error))


def flags_first(argv: Sequence[str]) -> list[str]:
    """Return the words with the overrides last: Hydra's parser cannot take overrides on both sides of a flag."""
    overrides = [word for word in argv if not word.startswith("-") and ("=" in word or word.startswith("~"))]
    return [word for word in argv if word not in overrides] + overrides


def train(argv: Sequence[str]) -> int:
    """Run `spectral train`; returns 1 when a job failed, after the others have run."""
    argv = flags_first(argv)
    parser = get_args_parser()
    parser.prog = "spectral train"
    arguments = parser.parse_args(argv)
    for flag, given in (("--config-name", arguments.config_name), ("--config-path", arguments.config_path)):
        if given:
            raise ConfigError(
                f"{flag}={given}: spectral train composes its own train.yaml; use experiment=NAME, and --config-dir=FOLDER for "
                f"experiments and groups of your own"
            )
    FAILURES.clear()
    if not (arguments.help or arguments.hydra_help or arguments.cfg or arguments.info):
        jobs = expand_sweep(arguments.overrides) if arguments.multirun else [arguments.overrides]
        # Hydra adds the user's own folder to the search path by itself; the check has to be told.
        folder = arguments.config_dir
        if folder and not Path(folder).is_dir():
            raise ConfigError(
                f"--config-dir={folder} is not a folder; give one with group folders such as conditioning/"
            )
        extra = [f"hydra.searchpath=['file://{Path(folder).absolute()}']"] if folder else []
        check_jobs([[*job, *extra] for job in jobs])
        check_launcher(jobs)
    entry = hydra.main(config_path=str(config_directory()), config_name=ROOT, version_base="1.3")(job)
    saved, sys.argv = sys.argv, ["spectral train", *argv]
    try:
        entry()
    finally:
        sys.argv = saved
    if FAILURES and arguments.multirun:
        print(f"{len(FAILURES)} jobs failed; the same command runs only what is missing", file=sys.stderr)
    return 1 if FAILURES else 0
