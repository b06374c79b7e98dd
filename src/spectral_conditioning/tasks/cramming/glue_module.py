"""Fine-tuning on one GLUE task: cross-entropy or squared error, and metrics over the whole validation set."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_conditioning.tasks.base import TaskModule
from spectral_conditioning.tasks.cramming.glue_data import Sentences
from spectral_conditioning.tasks.cramming.glue_metrics import score
from spectral_conditioning.tasks.cramming.glue_model import GlueModel
from spectral_conditioning.tasks.cramming.glue_tasks import GlueTask
from spectral_conditioning.tasks.optim import OptimConfig

log = logging.getLogger(__name__)


class GlueModule(TaskModule):
    """One task. Metrics of a second validation part carry its name, e.g. `mismatched_accuracy`."""

    def __init__(
        self,
        model: GlueModel,
        *,
        optim: OptimConfig,
        total_steps: int,
        task: GlueTask,
        chance: Mapping[str, float],
    ) -> None:
        super().__init__(model, optim=optim, total_steps=total_steps)
        self.task, self.chance = task, chance
        self._seen: list[Tensor] = []

    def losses(self, outputs_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Return the loss of each example (B,)."""
        if self.task.regression:
            return F.mse_loss(outputs_BC.squeeze(-1).float(), labels_B, reduction="none")
        return F.cross_entropy(outputs_BC.float(), labels_B, reduction="none")

    def training_losses(self, samples: Any) -> dict[str, Tensor]:
        batch = Sentences(*samples)
        return {"loss": self.losses(self.model(batch.ids, batch.visible), batch.labels).mean()}

    def evaluate_batch(self, samples: Any, counted: Tensor) -> None:
        batch = Sentences(*samples)
        outputs_BC = self.evaluated_model(batch.ids, batch.visible)
        losses_B = self.losses(outputs_BC, batch.labels)
        predictions_B = outputs_BC.squeeze(-1) if self.task.regression else outputs_BC.argmax(-1)
        rows = torch.stack([batch.labels, predictions_B, losses_B, batch.parts], dim=1).double()
        self._seen.append(rows[counted].detach().cpu())

    def evaluation_metrics(self) -> dict[str, float]:
        rows = self._gathered()
        labels, predictions, losses, parts = rows.T
        found: dict[str, float] = {}
        for number, name in enumerate(self.task.validation):
            here = parts == number
            if here.any():
                prefix = f"{name}_" if name else ""
                found |= score(self.task, labels[here], predictions[here], prefix=prefix)
                found[f"{prefix}loss"] = float(losses[here].mean())
        value, constant = found[self.task.metric], self.chance[self.task.metric]
        if not math.isfinite(value) or math.isclose(value, constant, abs_tol=1e-9):
            log.warning(
                "%s: %s %.4f is what a constant prediction scores; the run has collapsed or has not begun to learn",
                self.task.folder,
                self.task.metric,
                value,
            )
        return found

    def _gathered(self) -> np.ndarray:
        """Return the rows of every rank and start anew."""
        rows: list[Any] = [torch.cat(self._seen)]
        self._seen = []
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            parts = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(parts, rows[0])
            rows = parts
        return torch.cat(rows).numpy()  # type: ignore[no-any-return]

    def example_forward(self, samples: Any) -> Tensor:
        batch = Sentences(*samples)
        outputs_BC: Tensor = self.model(batch.ids, batch.visible)
        return outputs_BC
