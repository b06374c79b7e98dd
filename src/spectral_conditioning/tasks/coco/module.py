"""Training losses and evaluation of a detector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spectral_conditioning.tasks.base import TaskModule
from spectral_conditioning.tasks.coco.annotations import Entry, ground_truth
from spectral_conditioning.tasks.coco.data import DetectionData
from spectral_conditioning.tasks.coco.detector import Float32HeadMaskRCNN, prepare_inputs
from spectral_conditioning.tasks.coco.evaluation import detections_of, gathered_metrics
from spectral_conditioning.tasks.coco.pictures import draw_comparison
from spectral_conditioning.tasks.optim import OptimConfig

PREDICTIONS = "predictions.png"


class DetectionModule(TaskModule):
    """Mask R-CNN with its losses; evaluation collects the detections of every counted image of every rank."""

    model: Float32HeadMaskRCNN

    def __init__(
        self, model: Float32HeadMaskRCNN, *, optim: OptimConfig, total_steps: int, data: DetectionData
    ) -> None:
        super().__init__(model, optim=optim, total_steps=total_steps)
        self.data = data
        self._truth = ground_truth(data.truth)
        self._category_ids = [category["id"] for category in data.truth.categories]
        self._detections: list[Entry] = []

    def training_losses(self, samples: dict[str, Any]) -> dict[str, Tensor]:
        inputs, prepared = prepare_inputs(self.model, samples, training=True)
        # A loss of several levels is their sum; entries that are no losses (accuracies) are not wanted.
        losses = {
            name: torch.stack(list(value)).sum() if isinstance(value, list) else value.mean()
            for name, value in self.model.loss(inputs, prepared).items()
            if "loss" in name
        }
        return {"loss": torch.stack(list(losses.values())).sum()} | {k: v.detach() for k, v in losses.items()}

    def predict_batch(self, samples: dict[str, Any]) -> list[list[Entry]]:
        """Return the detections of each image of a batch, in pixels of the original."""
        model = self.evaluated_model
        assert isinstance(model, Float32HeadMaskRCNN)
        inputs, prepared = prepare_inputs(model, samples, training=False)
        predicted = model.predict(inputs, prepared, rescale=True)
        return [detections_of(int(item.img_id), item.pred_instances, self._category_ids) for item in predicted]

    def evaluate_batch(self, samples: dict[str, Any], counted: Tensor) -> None:
        for detections, counts in zip(self.predict_batch(samples), counted.tolist(), strict=True):
            if counts:
                self._detections += detections

    def evaluation_metrics(self) -> dict[str, float]:
        detections, self._detections = self._detections, []
        return gathered_metrics(self._truth, detections)

    def no_decay(self) -> set[str]:
        """Spare what the recipe spares: parameters with "norm" in their names, which are the layer norms of the XCiT."""
        return {name for name, _ in self.named_parameters() if "norm" in name}

    def example_forward(self, samples: dict[str, Any]) -> Any:
        inputs, _ = prepare_inputs(self.model, samples, training=False)
        return self.model.backbone(inputs)

    def artifacts(self, folder: Path) -> dict[str, Path]:
        """Draw predictions beside ground truth for the first `data.pictures` validation images that have objects."""
        data = self.data
        shown = [i for i, image in enumerate(data.truth.images) if data.truth.objects[image["id"]]][: data.pictures]
        if not shown:
            return {}
        with torch.inference_mode():
            detections = [self.predict_batch(data.collate([data.val[i]]))[0] for i in shown]
        path = folder / PREDICTIONS
        draw_comparison(path, data.truth, data.val.read, shown, detections)  # type: ignore[attr-defined]
        return {"predictions": path}
