"""Object detection and instance segmentation with Mask R-CNN: COCO 2017, any folder in its format, generated shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spectral_conditioning.tasks.base import Reported, Task, TaskData
from spectral_conditioning.tasks.coco.backbone import build_body, synchronise_batch_norm
from spectral_conditioning.tasks.coco.data import DetectionData, load_detection_data
from spectral_conditioning.tasks.coco.detector import Float32HeadMaskRCNN, build_detector
from spectral_conditioning.tasks.coco.module import DetectionModule
from spectral_conditioning.tasks.coco.weights import load_body_weights


class ObjectDetection(Task):
    """Box AP on the validation set after the last step, as the paper's COCO table."""

    name = "coco"
    extra = "coco"

    def load_data(self, config: Any) -> DetectionData:
        return load_detection_data(config.task.model, config.data)

    def build_model(self, config: Any, data: TaskData) -> nn.Module:
        settings = config.task.model
        body = build_body(settings)
        if config.init.weights is not None:
            load_body_weights(body, config.init.weights)
        detector = build_detector(settings, body, classes=data.outputs)
        machine = config.trainer
        on_gpu = machine.accelerator == "gpu" or (machine.accelerator == "auto" and torch.cuda.is_available())
        if settings.sync_batch_norm and on_gpu and machine.devices * machine.nodes > 1:
            detector.backbone = synchronise_batch_norm(detector.backbone)
        return detector

    def build_module(self, config: Any, model: nn.Module, data: TaskData, *, total_steps: int) -> DetectionModule:
        assert isinstance(model, Float32HeadMaskRCNN)
        assert isinstance(data, DetectionData)
        return DetectionModule(model, optim=config.optim, total_steps=total_steps, data=data)

    def reported(self, config: Any) -> Reported:
        return Reported(metric="bbox_mAP", split="val", rule="last", mode="max")


TASK = ObjectDetection()
