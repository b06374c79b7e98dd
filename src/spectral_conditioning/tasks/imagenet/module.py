"""Training losses and evaluation of an image classifier."""

# B images, C channels, K classes.

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from spectral_conditioning.tasks.base import TaskModule
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.data import TOP_K
from spectral_conditioning.tasks.optim import OptimConfig


def build_mixup(data: DataConfig, *, smoothing: float, classes: int) -> Mixup | None:
    """Return timm's mixup and cutmix as configured, None when both are off."""
    if data.mixup == 0 and data.cutmix == 0:
        return None
    return Mixup(
        mixup_alpha=data.mixup,
        cutmix_alpha=data.cutmix,
        prob=data.mix_prob,
        switch_prob=data.mix_switch,
        mode=data.mix_mode,
        label_smoothing=smoothing,
        num_classes=classes,
    )


def mix(mixup: Mixup, images_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Mix each image with its mirror in the batch; return new images and soft targets (B, K).

    timm pairs image i with image B-1-i and refuses an odd batch. There the last image stays as it is, with its own smoothed
    label, and the others are mixed among themselves; the number of random draws is the same. Draws come from numpy's
    global generator.
    """
    even = len(images_BCHW) - len(images_BCHW) % 2
    images_BCHW = images_BCHW.clone()
    # timm mixes in place, so the slice changes the copy.
    _, targets_BK = mixup(images_BCHW[:even], labels_B[:even])
    if even < len(images_BCHW):
        off = mixup.label_smoothing / mixup.num_classes
        alone_BK = F.one_hot(labels_B[even:], mixup.num_classes) * (1 - mixup.label_smoothing) + off
        targets_BK = torch.cat([targets_BK, alone_BK.to(targets_BK)])
    return images_BCHW, targets_BK


def build_loss(model: ModelConfig, *, mixed: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return timm's loss: binary cross-entropy (mean over classes), or cross-entropy on soft, smoothed or plain labels.

    With mixing on, the targets are soft and already smoothed.
    """
    loss: Callable[[Tensor, Tensor], Tensor]
    if model.loss == "binary_cross_entropy":
        loss = BinaryCrossEntropy(smoothing=0.0 if mixed else model.smoothing)
    elif mixed:
        loss = SoftTargetCrossEntropy()
    else:
        loss = LabelSmoothingCrossEntropy(model.smoothing) if model.smoothing else nn.CrossEntropyLoss()
    return loss


class ClassificationModule(TaskModule):
    """A classifier with its training loss; evaluation counts plain cross-entropy, top-1 and (beyond 5 classes) top-5.

    The sums run over every counted image of every rank, so a metric does not depend on batches or devices.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optim: OptimConfig,
        total_steps: int,
        settings: ModelConfig,
        data: DataConfig,
        classes: int,
    ) -> None:
        super().__init__(model, optim=optim, total_steps=total_steps)
        self.classes = classes
        self.mixup = build_mixup(data, smoothing=settings.smoothing, classes=classes)
        self.criterion = build_loss(settings, mixed=self.mixup is not None)
        self._sums: Tensor | None = None

    def training_losses(self, samples: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images_BCHW, targets = samples
        if self.mixup is not None:
            images_BCHW, targets = mix(self.mixup, images_BCHW, targets)
        return {"loss": self.criterion(self.model(images_BCHW), targets)}

    def evaluate_batch(self, samples: tuple[Tensor, Tensor], counted: Tensor) -> None:
        images_BCHW, labels_B = samples
        logits_BK = self.evaluated_model(images_BCHW).float()
        loss_B = F.cross_entropy(logits_BK, labels_B, reduction="none").double()
        # The order of logits that are not numbers means nothing, so such an image counts as missed.
        usable_B1 = logits_BK.isfinite().all(dim=1, keepdim=True)
        ranked_BT = logits_BK.topk(min(TOP_K, self.classes), dim=1).indices
        hits_BT = (ranked_BT == labels_B[:, None]) & usable_B1
        rows_B4 = torch.stack(
            [torch.ones_like(loss_B), loss_B, hits_BT[:, 0].double(), hits_BT.any(dim=1).double()], dim=1
        )
        sums = rows_B4[counted].sum(dim=0)
        self._sums = sums if self._sums is None else self._sums + sums

    def evaluation_metrics(self) -> dict[str, float]:
        own = torch.zeros(4, dtype=torch.float64, device=self.device) if self._sums is None else self._sums
        count, loss, top1, top5 = self.reduce_sum(own).tolist()
        self._sums = None
        metrics = {"loss": loss / count, "accuracy": top1 / count}
        return {**metrics, "accuracy_top5": top5 / count} if self.classes > TOP_K else metrics

    def example_forward(self, samples: tuple[Tensor, Tensor]) -> Tensor:
        logits_BK: Tensor = self.model(samples[0])
        return logits_BK
