"""The schema of one run: every value that a configuration may hold, with its type and default."""

from __future__ import annotations

import dataclasses
from typing import Any

from spectral_conditioning.tasks.optim import OptimConfig


@dataclasses.dataclass(kw_only=True)
class TaskConfig:
    """name: key of the TASKS table. model: the task's own `ModelConfig`."""

    name: str = ""
    model: Any = None


@dataclasses.dataclass(kw_only=True)
class ConditioningConfig:
    """`Conditioning` as configuration; `correction: none` and `lam: 0` both mean the baseline."""

    correction: str = "none"
    lam: float = 0.0
    relative: bool = False
    placement: str = "full"
    targets: list[str] = dataclasses.field(default_factory=lambda: ["q", "k", "v"])
    refresh_every: int = 0
    decay_toward: str = "correction"
    preserve: str = "weight"
    include: list[str] = dataclasses.field(default_factory=list)
    exclude: list[str] = dataclasses.field(default_factory=list)
    seed: int = 0
    float32_projection: bool = False


@dataclasses.dataclass(kw_only=True)
class InitConfig:
    """weights: path of plain weights to start from, null for random ones."""

    weights: str | None = None


@dataclasses.dataclass(kw_only=True)
class BudgetConfig:
    """Length of the run in optimizer steps, epochs or tokens: exactly one, never wall-clock time, which treats arms unequally."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None


@dataclasses.dataclass(kw_only=True)
class EvaluateConfig:
    """Optimizer steps or epochs between validations; both null validates at the end only.

    spectra: number of steps, evenly spaced, at which singular values and κ(J) are recorded (and before the first); 0 for none.
    """

    every_steps: int | None = None
    every_epochs: float | None = 1.0
    spectra: int = 8


@dataclasses.dataclass(kw_only=True)
class TrainerConfig:
    """The machine. Most of it changes only how fast a run goes; `precision`, `compile` and `accumulate` also change numbers."""

    accelerator: str = "cpu"
    devices: int = 1
    nodes: int = 1
    precision: str = "32-true"
    compile: bool = False
    accumulate: int = 1
    threads: int | None = None
    log_every: int = 10
    checkpoint_every: int | None = 200
    keep_checkpoints: int = 2
    progress: str = "auto"


@dataclasses.dataclass(kw_only=True)
class LoggerConfig:
    """wandb: disabled, offline or online. metrics.jsonl is always written."""

    wandb: str = "disabled"
    project: str = "spectral-conditioning"
    entity: str | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True)
class PathsConfig:
    """runs: where run folders go. data: where prepared data lies."""

    runs: str = "runs"
    data: str = "data"


@dataclasses.dataclass(kw_only=True)
class RunConfig:
    """One run. `data` is the task's own `DataConfig`, `task.model` its `ModelConfig`."""

    name: str
    task: TaskConfig
    data: Any
    seed: int = 0
    init: InitConfig = dataclasses.field(default_factory=InitConfig)
    conditioning: ConditioningConfig = dataclasses.field(default_factory=ConditioningConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    budget: BudgetConfig = dataclasses.field(default_factory=BudgetConfig)
    evaluate: EvaluateConfig = dataclasses.field(default_factory=EvaluateConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    logger: LoggerConfig = dataclasses.field(default_factory=LoggerConfig)
    paths: PathsConfig = dataclasses.field(default_factory=PathsConfig)
