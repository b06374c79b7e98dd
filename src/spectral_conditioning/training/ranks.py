"""Several processes for one run: who starts them, how each knows its configuration, and that all of them agree on it.

Under SLURM or torchrun the ranks exist already. Elsewhere the first process writes config.yaml and starts all ranks with
torchrun on that file, so a rank can never rerun a sweep or see another job's overrides.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.record import source_digest
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.signals import STOP_SIGNALS, Stopped
from spectral_conditioning.training.storage import plain_values

PR_SET_PDEATHSIG = 1
SHOWN_DIFFERENCES = 5


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in environment


def started_by_srun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several tasks of an srun step.

    A batch script or an salloc shell also has SLURM_NTASKS; only srun sets the step's variables, and only its tasks exist.
    """
    return "SLURM_STEP_ID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS") or 1) > 1


def launched() -> bool:
    """Whether this process is one of several ranks that somebody started."""
    return started_by_torchrun() or started_by_srun()


def global_rank() -> int:
    """Return this process's rank over all nodes, 0 when it is alone."""
    if started_by_torchrun():
        return int(os.environ["RANK"])
    return int(os.environ["SLURM_PROCID"]) if started_by_srun() else 0


def cluster_environment() -> ClusterEnvironment:
    """Return where Lightning finds its ranks, chosen here rather than guessed, and never requeueing by itself."""
    if started_by_torchrun():
        return TorchElasticEnvironment()
    return SLURMEnvironment(auto_requeue=False) if started_by_srun() else LightningEnvironment()


def must_start_ranks(config: RunConfig) -> bool:
    """Whether this run wants more ranks than this process; raises ConfigError when what was started does not fit."""
    machine = config.trainer
    wanted = machine.devices * machine.nodes
    if launched():
        found = int(os.environ["WORLD_SIZE"] if started_by_torchrun() else os.environ["SLURM_STEP_NUM_TASKS"])
        if found != wanted:
            raise ConfigError(
                f"{found} processes were started, but trainer.devices × trainer.nodes is {machine.devices} × "
                f"{machine.nodes}; start one process per device (srun --nodes={machine.nodes} "
                f"--ntasks-per-node={machine.devices}) or set trainer.devices and trainer.nodes"
            )
        if started_by_srun() and not started_by_torchrun() and "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise ConfigError(
                f"srun was given a number of tasks alone, which may spread them unevenly over nodes; "
                f"use --ntasks-per-node={machine.devices}"
            )
        return False
    if machine.nodes > 1:
        raise ConfigError(
            f"trainer.nodes is {machine.nodes}, but this process was not started by srun or torchrun on each node"
        )
    return wanted > 1


def start_ranks(config: RunConfig, saved: Path) -> int:
    """Run `config`, saved at `saved`, on trainer.devices local ranks; return the exit status.

    A stop signal is passed on to the ranks, which save; the death of this process ends them.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.trainer.devices}",
        "-m", "spectral_conditioning.training.worker", str(saved),
    ]  # fmt: skip
    process = subprocess.Popen(command, preexec_fn=_die_with_parent())
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        process.terminate()  # torchrun hands TERM to every rank.

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked and status != 0:
        raise Stopped("stopped and saved; the same command goes on from here")
    return status


def _die_with_parent() -> Callable[[], None] | None:
    """Return what a child runs first so that the kernel ends it when this process dies; None where there is no such call."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_torchrun() -> None:
    """Called by a rank: end when torchrun dies, so that no rank outlives its run and keeps the folder."""
    end = _die_with_parent() if started_by_torchrun() else None
    if end is not None:
        end()


class RankCheck(Callback):
    """Before training, compare configuration, code and starting step over all ranks, and stop all of them on a difference."""

    def __init__(self, config: RunConfig, *, first_step: int) -> None:
        self.mine = {**_flat(plain_values(config)), "code": source_digest(), "first step": first_step}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            return
        everyone: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(everyone, self.mine)
        problem = disagreement(everyone)
        if problem:
            raise ConfigError(problem)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def disagreement(everyone: list[dict[str, Any]]) -> str | None:
    """Say where the first rank that differs from rank 0 does so; None when all ranks agree."""
    for rank, found in enumerate(everyone):
        if found == everyone[0]:
            continue
        names = [name for name in {**everyone[0], **found} if everyone[0].get(name) != found.get(name)]
        shown = "; ".join(
            f"{name}: {everyone[0].get(name)!r} and {found.get(name)!r}" for name in names[:SHOWN_DIFFERENCES]
        )
        more = f" and {len(names) - SHOWN_DIFFERENCES} more" if len(names) > SHOWN_DIFFERENCES else ""
        return f"rank 0 and rank {rank} differ in {shown}{more}; start every rank from the same config.yaml and code"
    return None
