"""Many runs on one machine: configurations are written to files, and a few worker processes train them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spectral_conditioning.errors import RecordError
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.storage import save_config


def train_locally(configs: Sequence[RunConfig], *, folder: Path, workers: int) -> int:
    """Train `configs` in `workers` processes of one thread each; return the number of workers that failed.

    folder: where the configurations are written. Each worker gets every `workers`-th run.
    Stopping this process stops the workers; each run goes on from its last checkpoint at the next call.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {folder}: {error.strerror}; choose another folder") from error
    for number, config in enumerate(configs):
        files.append(folder / f"{number:03d}.yaml")
        save_config(config, files[-1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "spectral_conditioning.training.worker", *map(str, files[start::workers])],
            env=environment,
        )
        for start in range(min(workers, len(files)))
    ]
    try:
        return sum(process.wait() != 0 for process in processes)
    except BaseException:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()
        raise
