"""Crammed BERT: masked language modelling on The Pile, then GLUE from its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from spectral_conditioning.conditioning.packing import interleaved
from spectral_conditioning.tasks.base import Reported, Task, TaskData, TaskModule
from spectral_conditioning.tasks.cramming.architectures import build_language_model
from spectral_conditioning.tasks.cramming.crammed_bert import InterleavedAttention
from spectral_conditioning.tasks.cramming.glue_data import load_glue_data
from spectral_conditioning.tasks.cramming.glue_model import GlueModel
from spectral_conditioning.tasks.cramming.glue_module import GlueModule
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS
from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel
from spectral_conditioning.tasks.cramming.pretrained import find_pretrained, start_from
from spectral_conditioning.tasks.cramming.pretraining import PretrainingModule, load_pretraining_data


class Cramming(Task):
    """Pretraining is known by its masked-LM loss on held-out text, fine-tuning by the metric that GLUE counts."""

    name = "cramming"
    extra = "cramming"

    def load_data(self, config: Any) -> TaskData:
        if config.task.model.glue_task is None:
            return load_pretraining_data(config)
        return load_glue_data(config, find_pretrained(config))

    def build_model(self, config: Any, data: TaskData) -> nn.Module:
        model = config.task.model
        if model.glue_task is None:
            return build_language_model(model, vocabulary=data.outputs, length=config.data.length)
        return GlueModel(find_pretrained(config).build(dropout=model.dropout), outputs=data.outputs, settings=model)

    def build_module(self, config: Any, model: nn.Module, data: TaskData, *, total_steps: int) -> TaskModule:
        settings = config.task.model
        if settings.glue_task is None:
            assert isinstance(model, MaskedLanguageModel)
            return PretrainingModule(
                model,
                optim=config.optim,
                total_steps=total_steps,
                micro_batch_size=config.data.micro_batch_size,
            )
        assert isinstance(model, GlueModel)
        start_from(find_pretrained(config), model, keep_conditioning=settings.keep_conditioning)
        return GlueModule(
            model,
            optim=config.optim,
            total_steps=total_steps,
            task=GLUE_TASKS[settings.glue_task],
            chance=data.chance,
        )

    def reported(self, config: Any) -> Reported:
        if config.task.model.glue_task is None:
            return Reported(metric="loss", split="val", rule="last", mode="min")
        return Reported(metric=GLUE_TASKS[config.task.model.glue_task].metric, split="val", rule="last", mode="max")

    def layouts(self, model: nn.Module) -> Mapping[Any, Any] | None:
        if any(isinstance(module, InterleavedAttention) for module in model.modules()):
            return {InterleavedAttention: interleaved("query_key_value", heads="heads")}
        return None


TASK = Cramming()
