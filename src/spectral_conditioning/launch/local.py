"""Many runs on one machine: configurations are written to files, and a few worker processes train them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spectral_conditioning.errors import RecordError
from spectral_conditioning.launch.study import config_name
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.storage import save_config


def train_locally(configs: Sequence[RunConfig], *, folder: Path, workers: int) -> int:
    """Train `configs` in `workers` processes of one thread each; return the number of workers that failed.

    folder: where the configurations are written, each under its `config_name`. Each worker gets every `workers`-th run.
    Stopping this process, by Ctrl-C or SIGTERM, stops the workers; each run goes on from its last checkpoint at the next call.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {folder}: {error.strerror}; choose another folder") from error
    for config in configs:
        files.append(folder / config_name(config))
        save_config(config, files[-1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ended_by_sigterm():
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


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that what was started is ended too (in the main thread, the only one that can)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
