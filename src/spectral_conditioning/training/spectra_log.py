"""The paper's figures from a run: σ_min, κ(W) and κ(J) at a few steps, as lines of metrics.jsonl with split "spectra"."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from spectral_conditioning.analysis.jacobian_summary import jacobian_summary
from spectral_conditioning.analysis.spectra import spectra_summary
from spectral_conditioning.tasks.base import TaskModule
from spectral_conditioning.training.callbacks import optimizer_stepped

# Names in the record → names of the analysis; each value is a mean over layers.
KEPT = {
    **{f"sigma_min/{role}": f"sigma_min/{role}" for role in "qkv"},
    **{f"kappa_w/{role}": f"kappa/{role}" for role in "qkv"},
    **{f"kappa_head/{role}": f"kappa_head/{role}" for role in "qkv"},
    "kappa_j": "kappa_jacobian",
    "norm_j/q": "norm_jacobian/q",
    "attention_entropy": "attention_entropy",
    "attention_sensitivity": "attention_sensitivity",
}


class RecordSpectra(Callback):
    """Measure W + C and J before the first step and at `points` evenly spaced steps, on the samples of the first batch.

    Nothing is drawn from a global generator and the model is left as it was; rank 0 measures alone. `seconds`: wall time
    that it took in this process.
    """

    def __init__(
        self,
        *,
        points: int,
        total_steps: int,
        samples: Callable[[], Any],
        layouts: Mapping[Any, Any] | None,
        write: Callable[[Trainer, str, Mapping[str, float]], None],
    ) -> None:
        self.steps = {round(total_steps * point / points) for point in range(1, points + 1)}
        self.samples, self.layouts, self.write = samples, layouts, write
        self.seconds = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0:
            self._measure(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step in self.steps and optimizer_stepped(trainer, batch_idx):
            self._measure(trainer, pl_module)

    def _measure(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(module, TaskModule)
        started = time.perf_counter()
        batch = trainer.strategy.batch_to_device(self.samples(), module.device)
        try:
            found = spectra_summary(module.model, layouts=self.layouts)
            found |= jacobian_summary(module.model, lambda: module.example_forward(batch), layouts=self.layouts)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # Weights on their way to infinity have no spectrum; the loss decides whether the run has diverged.
            found = dict.fromkeys(KEPT.values(), float("nan"))
        self.write(trainer, "spectra", {name: found[source] for name, source in KEPT.items() if source in found})
        self.seconds += time.perf_counter() - started
