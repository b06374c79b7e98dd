"""Which weights a run reports: those of its last step, or those that were best on validation."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from spectral_conditioning.errors import RecordError
from spectral_conditioning.files import write_atomically
from spectral_conditioning.tasks.base import Reported, TaskModule
from spectral_conditioning.training.resume import load_checkpoint

REPORTED = "reported.ckpt"


def load_reported(run: Path) -> dict[str, Any]:
    """Read what `Selection` saved of a finished run: model, step, weights, val. RecordError with the way out if it is damaged."""
    try:
        return load_checkpoint(run / "checkpoints" / REPORTED)
    except RecordError as error:
        raise RecordError(
            f"{error}. Copy the file again, or move the folder {run} away and repeat its spectral train command"
        ) from error


class Selection(Callback):
    """Keep `reported.ckpt`: the evaluated weights of the step that the rule selects, with that step's validation metrics."""

    def __init__(self, folder: Path, reported: Reported, *, total_steps: int, weights: str) -> None:
        self.path, self.reported, self.total_steps, self.weights = folder / REPORTED, reported, total_steps, weights
        self.best: float | None = None
        self.validated_step = -1

    def consider(self, trainer: Trainer, step: int, metrics: dict[str, float]) -> None:
        """Save the weights just validated if the rule selects them."""
        if self.reported.metric not in metrics:
            raise RecordError(
                f"validation gave no {self.reported.metric!r}, which selects the checkpoint; it gave {', '.join(metrics)}"
            )
        self.validated_step = step
        value = metrics[self.reported.metric]
        if self.reported.rule == "last":
            if step < self.total_steps:
                return
        elif not math.isfinite(value) or (self.best is not None and not self._better(value)):
            return
        self.best = value
        if trainer.is_global_zero:
            self._save(trainer, step, metrics)
        trainer.strategy.barrier()  # The other ranks read it.

    def _better(self, value: float) -> bool:
        assert self.best is not None
        return value > self.best if self.reported.mode == "max" else value < self.best

    def _save(self, trainer: Trainer, step: int, metrics: dict[str, float]) -> None:
        module = trainer.lightning_module
        assert isinstance(module, TaskModule)
        content = io.BytesIO()
        model = module.__dict__["evaluated_model"]
        torch.save({"model": model.state_dict(), "step": step, "weights": self.weights, "val": metrics}, content)
        write_atomically(self.path, content.getvalue())

    def load(self) -> dict[str, Any]:
        """Read the reported checkpoint: model, step, weights, val."""
        return load_checkpoint(self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
