"""Checkpoints that a run can be killed between: atomic, checked, and written only where resuming is exact.

A checkpoint is taken at the start of a training batch, after the validation of the step before, when no gradient is
accumulated. At that point the state of a run is its weights, optimizer, schedule, averages and counters; every random draw
to come is a function of (seed, step), so nothing else needs saving.
"""

from __future__ import annotations

import logging
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from spectral_conditioning.errors import RecordError

log = logging.getLogger(__name__)
NAME = re.compile(r"step-(\d+)\.ckpt")


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first."""
    found = [(int(match[1]), path) for path in folder.glob("step-*.ckpt") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that can be read whole, None when there is none; a broken one is named and passed over."""
    for path in checkpoint_files(folder):
        try:
            load_checkpoint(path)
        except RecordError as error:
            log.warning("%s; going back to the one before", error)
            continue
        return path
    return None


def step_of(path: Path) -> int:
    """Return the optimizer step at whose end a checkpoint was taken."""
    match = NAME.fullmatch(path.name)
    assert match, path
    return int(match[1])


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint into memory; raises RecordError when it is missing, cut short, damaged or not a checkpoint."""
    try:
        # torch.save writes a zip with a checksum per tensor, and torch.load does not look at it.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"wrong checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecordError(f"cannot read checkpoint {path}: {reason}") from error
    return dict(content)


def save_atomically(trainer: Trainer, path: Path) -> None:
    """Save the trainer's state under a partial name on all ranks and rename it on rank 0."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        trainer.save_checkpoint(partial, weights_only=False)
        if trainer.is_global_zero:
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as a RuntimeError of its zip writer.
        partial.unlink(missing_ok=True)
        raise RecordError(f"cannot write checkpoint {path}: {error}") from error
    trainer.strategy.barrier()


class Checkpoints(Callback):
    """Save every `every` optimizer steps and keep the newest `keep`."""

    def __init__(self, folder: Path, *, every: int | None, keep: int) -> None:
        self.folder, self.every, self.keep = folder, every, keep
        self._saved_step = -1

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        whole_step = batch_idx % trainer.accumulate_grad_batches == 0
        if self.every and step % self.every == 0 and whole_step:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save the start of this step on all ranks, unless it is saved or nothing has been trained yet."""
        step = trainer.global_step
        if step and step != self._saved_step:
            self._saved_step = step
            save_atomically(trainer, self.folder / f"step-{step}.ckpt")
            self._drop_old(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = trainer.global_step

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning has counted the batch that is about to start as ready and would, after a resume, count it again; the
        # checkpoint belongs to the end of the batch before.
        total = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
        total["ready"] = total["started"] = total["completed"]

    def _drop_old(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            for path in checkpoint_files(self.folder)[self.keep :]:
                path.unlink()
