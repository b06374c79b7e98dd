"""Laws of loader processes: a scheduler's signals pass them by, and they end when their trainer ends them."""

from __future__ import annotations

import subprocess
import time

import torch
from torch.utils.data import TensorDataset

from spectral_conditioning.tasks.streams import StreamDataModule


def test_workers_outlive_a_schedulers_signals_but_not_their_trainer() -> None:
    numbers = TensorDataset(torch.arange(40.0))
    served = StreamDataModule(train=numbers, val=numbers, test=None, batch_size=4, eval_batch_size=4, seed=0, workers=1)
    batches = iter(served.train_dataloader())
    next(batches)
    (worker,) = batches._workers
    for name in ("TERM", "USR1", "USR2"):
        # From a process of its own, as a scheduler's are.
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
    time.sleep(0.5)
    for _ in range(20):
        next(batches)
    assert worker.is_alive()
    # What Python does on its way out; a worker that ignored it would be waited for without end.
    worker.terminate()
    worker.join(timeout=30)
    assert not worker.is_alive()
