"""Training loss and evaluation of a sequence classifier."""

# B samples, C classes.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.tasks.base import TaskModule
from spectral_conditioning.tasks.optim import OptimConfig


class SequenceModule(TaskModule):
    """Cross-entropy; evaluation sums loss and hits over every counted sample of every rank."""

    def __init__(self, model: nn.Module, *, optim: OptimConfig, total_steps: int) -> None:
        super().__init__(model, optim=optim, total_steps=total_steps)
        self._sums: Tensor | None = None

    @staticmethod
    def _logits(model: Any, samples: dict[str, Tensor]) -> Tensor:
        logits_BC: Tensor = model(samples["ids"], samples.get("lengths"))
        return logits_BC.float() if logits_BC.dtype in (torch.float16, torch.bfloat16) else logits_BC

    def training_losses(self, samples: dict[str, Tensor]) -> dict[str, Tensor]:
        logits_BC = self._logits(self.model, samples)
        hits_B = logits_BC.detach().argmax(dim=-1) == samples["labels"]
        return {"loss": F.cross_entropy(logits_BC, samples["labels"]), "accuracy": hits_B.float().mean()}

    def evaluate_batch(self, samples: dict[str, Tensor], counted: Tensor) -> None:
        logits_BC = self._logits(self.evaluated_model, samples)
        loss_B = F.cross_entropy(logits_BC, samples["labels"], reduction="none").double()
        # The order of logits that are not numbers means nothing, so such a sample counts as missed.
        hits_B = (logits_BC.argmax(dim=-1) == samples["labels"]) & logits_BC.isfinite().all(dim=-1)
        rows_B3 = torch.stack([torch.ones_like(loss_B), loss_B, hits_B.double()], dim=1)
        sums = rows_B3[counted].sum(dim=0)
        self._sums = sums if self._sums is None else self._sums + sums

    def evaluation_metrics(self) -> dict[str, float]:
        own = torch.zeros(3, dtype=torch.float64, device=self.device) if self._sums is None else self._sums
        count, loss, hits = self.reduce_sum(own).tolist()
        self._sums = None
        return {"accuracy": hits / count, "loss": loss / count}

    def example_forward(self, samples: dict[str, Tensor]) -> Tensor:
        return self._logits(self.model, samples)
