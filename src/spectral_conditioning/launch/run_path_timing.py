"""What the run path adds to a training step, against a bare loop over the same model, loader and optimizer."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from spectral_conditioning.launch.paired_timing import Ratio, clock, median_interval
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.fit import make_trainer, observers, quiet
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.record import MetricsFile, RunFolder
from spectral_conditioning.training.schema import RunConfig


def time_run_path(*, rounds: int, progress: Callable[[], object], length: int = 40) -> Ratio:
    """Return the time of a training step in the run path over that of a bare loop with the same model, loader and optimizer.

    The model is that of experiment=imagenet/small, the smallest of the suite, where whatever the run path adds to a step weighs
    most. Each round trains `length` steps either way; building, validation and checkpoints are not in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = [f"paths.runs='{folder}'", f"budget={{steps: {length}, epochs: null, tokens: null}}"]
        fixed = ["experiment=imagenet/small", "trainer.progress=none", "trainer.checkpoint_every=null"]
        config = compose_run([*fixed, *values])
        ratios, seconds = [], []
        for number in range(rounds + 1):
            path, bare = step_in_run_path(config, Path(folder) / str(number)), step_in_bare_loop(config, length)
            if number:  # The first round warms up.
                ratios.append(path / bare)
                seconds.append(path)
                progress()
    low, high = median_interval(ratios)
    return Ratio(statistics.median(ratios), low, high, statistics.median(seconds), rounds)


class StepClock(Callback):
    """Seconds between the starts of training batches; the run path of experiment=imagenet/small trains on the CPU."""

    def __init__(self) -> None:
        self.now = clock(torch.device("cpu"))
        self.starts: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.starts.append(self.now())

    def median(self) -> float:
        """Return the median duration of a step, the first five left out."""
        pairs = zip(self.starts[5:], self.starts[6:], strict=False)
        return statistics.median(after - before for before, after in pairs)


def step_in_run_path(config: RunConfig, folder: Path) -> float:
    """Train in the run path and return the median seconds of a step."""
    prepared = prepare(config)
    clock = StepClock()
    with RunFolder(folder) as opened:
        seen = observers(prepared, opened, [MetricsFile(opened.metrics, keep_until=0)], "bench")
        with quiet():
            trainer = make_trainer(prepared, opened.path, [clock, *seen.callbacks])
            trainer.fit(prepared.module, datamodule=prepared.loader)
    return clock.median()


def step_in_bare_loop(config: RunConfig, length: int) -> float:
    """Train the same model on the same batches in a loop of five lines and return the median seconds of a step."""
    prepared = prepare(config)
    module = prepared.module.train()
    built = module.configure_optimizers()
    optimizer, schedule = built["optimizer"], built["lr_scheduler"]["scheduler"]
    clock = StepClock()
    for batch in itertools.islice(prepared.loader.train_dataloader(), length):
        clock.on_train_batch_start()
        optimizer.zero_grad()
        module.training_losses(batch.samples)["loss"].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return clock.median()
