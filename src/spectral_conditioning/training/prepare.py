"""Everything of a run that comes before training: data, plain model, conditioning, module. Input errors surface here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

from spectral_conditioning.conditioning import Conditioning, Report, condition
from spectral_conditioning.errors import ConfigError
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.base import Reported, Task, TaskData, TaskModule
from spectral_conditioning.tasks.optim import OptimConfig
from spectral_conditioning.tasks.ramp import BatchPlan, plan_batches, plan_steps
from spectral_conditioning.tasks.registry import load_task
from spectral_conditioning.tasks.streams import StreamDataModule
from spectral_conditioning.training.identity import conditioning
from spectral_conditioning.training.record import hash_tensors
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.selection import load_reported
from spectral_conditioning.training.storage import read_config


@dataclasses.dataclass
class Prepared:
    """A run with everything built and checked, and nothing trained."""

    config: RunConfig
    task: Task
    data: TaskData
    loader: StreamDataModule
    steps: int
    reported: Reported
    module: TaskModule
    report: Report
    initial_weights: str

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps in one pass over the training set."""
        return self.loader.stream.batches_per_epoch / self.config.trainer.accumulate

    def epoch(self, step: int) -> float:
        """Return how many passes over the training set the steps before `step` make."""
        if self.loader.stream.plan is None:
            return step / self.steps_per_epoch
        return self.loader.samples_before(step) / self.loader.stream.size


def prepare(config: RunConfig) -> Prepared:
    """Load the data, build the model and condition it. Raises a SpectralError for whatever does not fit."""
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise ConfigError("trainer.accelerator is 'gpu', but no GPU is visible here; use trainer=cpu, or 'auto'")
    task = load_task(config.task.name)
    data = task.load_data(config)
    loader = StreamDataModule(
        train=data.train,
        val=data.val,
        test=data.test,
        batch_size=config.data.batch_size,
        eval_batch_size=config.data.eval_batch_size,
        seed=config.seed,
        workers=config.data.workers,
        repeats=data.repeats,
        accumulate=config.trainer.accumulate,
        shuffle=data.shuffle,
        plan=batch_plan(config, data),
        collate=data.collate,
    )
    steps = total_steps(config, data, loader)
    model, initial_weights, report = build(config, task, data)
    recipe = dataclasses.replace(config, optim=_with_warmup_steps(config, loader, steps))
    module = task.build_module(recipe, model, data, total_steps=steps)
    return Prepared(config, task, data, loader, steps, task.reported(config), module, report, initial_weights)


def build(config: RunConfig, task: Task, data: TaskData) -> tuple[nn.Module, str, Report]:
    """Build the model from the run's seed, hash its plain weights, condition it. Return model, hash and report.

    The baseline is conditioned with λ = 0, which changes nothing and makes it refuse conditioned weights.
    """
    seed_all(config.seed, "init")
    model = task.build_model(config, data)
    if config.trainer.precision == "64-true":
        model = model.double()
    initial_weights = hash_tensors(model.named_parameters())
    chosen = conditioning(config) or Conditioning(lam=0.0)
    report = condition(model, chosen, layouts=task.layouts(model))
    return model, initial_weights, report


def load_run_model(folder: Path) -> nn.Module:
    """Rebuild the model of a finished run with its reported weights, conditioned as it was trained."""
    config = read_config(folder / "config.yaml")
    task = load_task(config.task.name)
    model, _, _ = build(config, task, task.load_data(config))
    model.load_state_dict(load_reported(folder)["model"])
    return model.eval()


def batch_plan(config: RunConfig, data: TaskData) -> BatchPlan | None:
    """Return the growing batches that the task asks for, fitted to the budget; None for constant ones."""
    if data.ramp is None:
        return None
    budget, batch_size = config.budget, config.data.batch_size
    if budget.steps is not None:
        return plan_steps(data.ramp, batch_size=batch_size, steps=budget.steps)
    if budget.epochs is not None:
        samples = round(budget.epochs * len(data.train))  # type: ignore[arg-type]
    else:
        assert budget.tokens is not None
        samples = budget.tokens // _tokens_per_sample(config, data)
    return plan_batches(data.ramp, batch_size=batch_size, samples=samples)


def _tokens_per_sample(config: RunConfig, data: TaskData) -> int:
    if data.tokens_per_sample is None:
        raise ConfigError(f"budget.tokens is set, but task {config.task.name!r} has no tokens; use steps or epochs")
    return data.tokens_per_sample


def total_steps(config: RunConfig, data: TaskData, loader: StreamDataModule) -> int:
    """Return the number of optimizer steps of the budget; raises ConfigError when it comes to none."""
    if loader.stream.plan is not None:
        return loader.stream.plan.steps
    per_epoch = loader.stream.batches_per_epoch / config.trainer.accumulate
    budget = config.budget
    if budget.steps is not None:
        return budget.steps
    if budget.epochs is not None:
        steps = round(budget.epochs * per_epoch)
    else:
        assert budget.tokens is not None
        steps = budget.tokens // (_tokens_per_sample(config, data) * config.data.batch_size)
    if steps < 1:
        size = f"budget.epochs={budget.epochs:g}" if budget.epochs is not None else f"budget.tokens={budget.tokens:,}"
        raise ConfigError(f"{size} is less than one step (an epoch has {per_epoch:g}); give more, or budget.steps")
    return steps


def _with_warmup_steps(config: RunConfig, loader: StreamDataModule, steps: int) -> OptimConfig:
    """Return the optimizer's settings with the warm-up in steps, also where the recipe counts epochs."""
    warmup = config.optim.warmup_steps
    if warmup is None:
        per_epoch = loader.stream.batches_per_epoch / config.trainer.accumulate
        warmup = round(config.optim.warmup_epochs * per_epoch)
    if warmup >= steps:
        raise ConfigError(
            f"the warm-up takes {warmup} steps but the budget is {steps}; shorten it (optim.warmup_epochs)"
        )
    return dataclasses.replace(config.optim, warmup_steps=warmup)
