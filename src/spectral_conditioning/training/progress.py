"""Progress for people: a bar in a terminal, lines in a log file."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from spectral_conditioning.errors import SpectralError
from spectral_conditioning.training.callbacks import Record, optimizer_stepped
from spectral_conditioning.training.record import write_json

HEARTBEAT_SECONDS = 5.0


class Progress(Callback):
    """Show step, loss and the latest validation; `lines` prints one line per validation, `bar` redraws one line."""

    def __init__(self, label: str, record: Record, *, style: str, metric: str) -> None:
        if style == "auto":
            style = "bar" if sys.stderr.isatty() else "lines"
        self.label, self.record, self.style, self.metric = label, record, style, metric
        self._bar: Any = None
        self._started = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started, self._first_step = time.perf_counter(), trainer.global_step
        if self.style == "bar" and trainer.is_global_zero:
            self._bar = tqdm(
                total=trainer.max_steps, initial=trainer.global_step, desc=self.label, unit="step", dynamic_ncols=True
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None and optimizer_stepped(trainer, batch_idx):
            self._bar.update()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def validated(self, trainer: Trainer, step: int, metrics: dict[str, float]) -> None:
        """Show the metrics of a validation that has just ended."""
        if not trainer.is_global_zero or self.style == "none":
            return
        shown = {"loss": self.record.latest.get("loss"), f"val {self.metric}": metrics.get(self.metric)}
        texts = {name: f"{value:.4f}" for name, value in shown.items() if value is not None}
        if self._bar is not None:
            self._bar.set_postfix(texts)
            return
        done = step - self._first_step
        rate = done / max(time.perf_counter() - self._started, 1e-9)
        left = (trainer.max_steps - step) / rate if done > 0 else 0.0
        text = "  ".join(f"{name} {value}" for name, value in texts.items())
        print(
            f"{self.label}  step {step}/{trainer.max_steps}  {text}  {rate:.1f} steps/s  {left:.0f} s left", flush=True
        )


class Heartbeat(Callback):
    """Keep progress.json beside the record while a run lasts, for `spectral status`: step, loss, and since when.

    Written at most every five seconds, and when the run ends or is stopped. It holds times, which a repeat of the run does
    not give again: no part of the record.
    """

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record = path, record
        self._started, self._first_step, self._written = 0.0, 0, 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started, self._first_step, self._written = time.time(), trainer.global_step, 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._written or time.monotonic() - self._written >= HEARTBEAT_SECONDS:
            self._write(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # A fault of the disk is what ended the run, perhaps, and must not be hidden by a second one.
        with contextlib.suppress(SpectralError, OSError):
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero or not self._started:
            return
        self._written = time.monotonic()
        write_json(
            self.path,
            {
                "step": trainer.global_step,
                "steps": trainer.max_steps,
                "loss": self.record.latest.get("loss"),
                "first_step": self._first_step,
                "started": self._started,
                "written": time.time(),
            },
        )
