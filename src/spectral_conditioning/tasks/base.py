"""The contract between a task and the run path: what data, model and Lightning module a benchmark family provides."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from spectral_conditioning.tasks.optim import OptimConfig, build_optimizer
from spectral_conditioning.tasks.ramp import Ramp
from spectral_conditioning.tasks.streams import Batch

Mode = Literal["max", "min"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reported:
    """The number that a run is known by.

    metric: name in the evaluation metrics, e.g. "accuracy". split: where the published number is taken. rule: which
    checkpoint is reported, the last or the best on validation. mode: whether more or less is better.
    """

    metric: str
    split: Literal["val", "test"] = "val"
    rule: Literal["last", "best"] = "last"
    mode: Mode = "max"


@dataclasses.dataclass(kw_only=True)
class TaskData:
    """Opened and checked data of one task.

    train, val, test: map-style data sets over an integer index; a sample is whatever `collate` takes. A set that draws no
    random numbers says so with an attribute `deterministic = True`; one that does draws from the global generators only.
    fingerprint: a hash that changes when a file, label or split changes. chance: metric → value of a constant predictor.
    outputs: size of the prediction head. description: one line for the log.
    tokens_per_sample: for budgets in tokens, None where tokens mean nothing. shuffle: false visits the stored order.
    ramp: batches that grow to data.batch_size, None for constant ones.
    """

    train: Dataset[Any]
    val: Dataset[Any]
    test: Dataset[Any] | None = None
    fingerprint: str
    chance: Mapping[str, float]
    outputs: int
    description: str
    collate: Callable[[list[Any]], Any] = default_collate
    repeats: int = 1
    tokens_per_sample: int | None = None
    shuffle: bool = True
    ramp: Ramp | None = None


class TaskModule(LightningModule, abc.ABC):
    """Loss and metrics of one task around `self.model`, the module that is conditioned, compiled, averaged and exported.

    A subclass writes `training_losses`, `evaluate_batch` and `evaluation_metrics`; it draws random numbers only from the
    global generators, which the run path seeds before each step, and never logs by itself.
    """

    evaluated_model: nn.Module

    def __init__(self, model: nn.Module, *, optim: OptimConfig, total_steps: int) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        self.total_steps = total_steps
        # The weights that evaluation uses; the run path points it at the averaged model when that one is reported.
        self.__dict__["evaluated_model"] = model

    @abc.abstractmethod
    def training_losses(self, samples: Any) -> dict[str, Tensor]:
        """Return scalars of one collated batch: "loss", which is minimised, and anything else worth a curve."""

    @abc.abstractmethod
    def evaluate_batch(self, samples: Any, counted: Tensor) -> None:
        """Add one collated batch to the running metrics, entries with `counted` (B,) true only. Use `self.evaluated_model`."""

    @abc.abstractmethod
    def evaluation_metrics(self) -> dict[str, float]:
        """Return the metrics over everything added on every rank, and start anew."""

    def example_forward(self, samples: Any) -> Any:
        """Run the model once on a collated batch (for measurements before the first step)."""
        raise NotImplementedError

    def artifacts(self, folder: Path) -> dict[str, Path]:
        """Write pictures a person would look at after training into `folder`; return name → PNG file. Called on one rank, in
        evaluation mode, with the weights of the last step; the order of training draws is over by then."""
        return {}

    def no_decay(self) -> set[str]:
        """Names of parameters that weight decay must spare, beyond vectors and biases."""
        listed = getattr(self.model, "no_weight_decay", None)
        return {f"model.{name}" for name in listed()} if callable(listed) else set()

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return self.training_losses(batch.samples)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate_batch(batch.samples, batch.counted)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate_batch(batch.samples, batch.counted)

    def configure_optimizers(self) -> Any:
        optimizer, schedule = build_optimizer(self, self.optim, total_steps=self.total_steps, no_decay=self.no_decay())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def reduce_sum(self, value: Tensor) -> Tensor:
        """Sum a tensor over all ranks."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            value = value.clone()
            torch.distributed.all_reduce(value)
        return value


class Task(abc.ABC):
    """One benchmark family. `TASKS` maps its name to the module that holds an instance called `TASK`."""

    name: str
    extra: str

    @abc.abstractmethod
    def load_data(self, config: Any) -> TaskData:
        """Open and check the data that `config.data` names (a `RunConfig`)."""

    @abc.abstractmethod
    def build_model(self, config: Any, data: TaskData) -> nn.Module:
        """Build the plain model; initial weights are drawn from the global generators, seeded by the caller."""

    @abc.abstractmethod
    def build_module(self, config: Any, model: nn.Module, data: TaskData, *, total_steps: int) -> TaskModule:
        """Wrap the (conditioned) model in its Lightning module."""

    @abc.abstractmethod
    def reported(self, config: Any) -> Reported:
        """Return which number the run is known by."""

    def plain_call(self, config: Any, data: TaskData) -> dict[str, Any] | None:
        """Return the call that builds the plain model elsewhere, {"function": name, "arguments": {...}}; None if impossible."""
        return None

    def layouts(self, model: nn.Module) -> Mapping[Any, Any] | None:
        """Attention layouts of the task's own modules in `model`, for `condition()`; None where the library knows them all."""
        return None
