"""Image classification with timm models: ImageNet-1k, and small data that stands in for it."""

from __future__ import annotations

from typing import Any

from torch import nn

from spectral_conditioning.tasks.base import Reported, Task, TaskData
from spectral_conditioning.tasks.imagenet.data import load_image_data
from spectral_conditioning.tasks.imagenet.model import build_classifier, timm_arguments
from spectral_conditioning.tasks.imagenet.module import ClassificationModule
from spectral_conditioning.tasks.imagenet.weights import load_initial_weights


class ImageClassification(Task):
    """Top-1 accuracy on the validation set after the last step, as the paper's ImageNet table."""

    name = "imagenet"
    extra = "imagenet"

    def load_data(self, config: Any) -> TaskData:
        return load_image_data(config.task.model, config.data)

    def build_model(self, config: Any, data: TaskData) -> nn.Module:
        model = build_classifier(config.task.model, outputs=data.outputs)
        if config.init.weights is not None:
            load_initial_weights(model, config.init.weights)
        return model

    def build_module(self, config: Any, model: nn.Module, data: TaskData, *, total_steps: int) -> ClassificationModule:
        return ClassificationModule(
            model,
            optim=config.optim,
            total_steps=total_steps,
            settings=config.task.model,
            data=config.data,
            classes=data.outputs,
        )

    def plain_call(self, config: Any, data: TaskData) -> dict[str, Any]:
        return {"function": "timm.create_model", "arguments": timm_arguments(config.task.model, outputs=data.outputs)}

    def reported(self, config: Any) -> Reported:
        return Reported(metric="accuracy", split="val", rule="last", mode="max")


TASK = ImageClassification()
