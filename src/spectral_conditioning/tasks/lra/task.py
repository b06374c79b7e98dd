"""Long Range Arena: ListOps, Text, Retrieval, Image and Pathfinder with Nyströmformer (or softmax) encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from spectral_conditioning.conditioning import separate
from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.base import Reported, Task, TaskData
from spectral_conditioning.tasks.lra.data import load_sequences
from spectral_conditioning.tasks.lra.module import SequenceModule
from spectral_conditioning.tasks.lra.nystromformer import PairClassifier, SequenceClassifier

LAYOUTS = {"*.attention": separate("W_q", "W_k", "W_v", heads="heads")}


class LongRangeArena(Task):
    """Test accuracy of the checkpoint that is best on validation, as the benchmark's published tables."""

    name = "lra"
    extra = "lra"

    def load_data(self, config: Any) -> TaskData:
        return load_sequences(config.task.model, config.data)

    def build_model(self, config: Any, data: TaskData) -> nn.Module:
        if config.init.weights is not None:
            raise ConfigError(
                "init.weights is set, but the Long Range Arena models are trained from scratch; set it to null"
            )
        kind = PairClassifier if config.data.dataset == "retrieval" else SequenceClassifier
        model = config.task.model
        return kind(model, tokens=config.data.padded_length, vocabulary=model.vocabulary, classes=data.outputs)

    def build_module(self, config: Any, model: nn.Module, data: TaskData, *, total_steps: int) -> SequenceModule:
        return SequenceModule(model, optim=config.optim, total_steps=total_steps)

    def reported(self, config: Any) -> Reported:
        return Reported(metric="accuracy", split="test", rule="best", mode="max")

    def layouts(self, model: nn.Module) -> Mapping[Any, Any]:
        return LAYOUTS


TASK = LongRangeArena()
