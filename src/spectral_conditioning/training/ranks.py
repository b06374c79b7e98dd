"""Several processes for one run: who starts them and how each knows its configuration.

Under SLURM or torchrun the ranks exist already. Elsewhere the first process writes config.yaml and starts all ranks with
torchrun on that file, so a rank can never rerun a sweep or see another job's overrides.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.schema import RunConfig


def launched() -> bool:
    """Whether this process is one of several ranks that somebody started."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1


def global_rank() -> int:
    """Return this process's rank over all nodes, 0 when it is alone."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))) if launched() else 0


def must_start_ranks(config: RunConfig) -> bool:
    """Whether this run wants more ranks than this process; raises ConfigError when it cannot start them."""
    wanted = config.trainer.devices * config.trainer.nodes
    if wanted == 1 or launched():
        return False
    if config.trainer.nodes > 1:
        raise ConfigError(
            f"trainer.nodes is {config.trainer.nodes}, but this process was not started by srun or torchrun on each node"
        )
    return True


def start_ranks(config: RunConfig, saved: Path) -> int:
    """Run `config`, saved at `saved`, on trainer.devices local ranks; return the exit status."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.trainer.devices}",
        "-m", "spectral_conditioning.training.worker", str(saved),
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode
