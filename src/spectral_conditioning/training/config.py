"""From values to the typed configuration of one run, and everything that can be wrong with it.

Composition (training/compose.py) gives an untyped tree of values; `typed` turns it into a `RunConfig`. Unknown keys and wrong
types are reported first, all of them, each with the nearest valid name; then every value that does not fit.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import typing
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spectral_conditioning.errors import ConfigError, SpectralError, closest, problems_message
from spectral_conditioning.tasks.optim import SCHEDULES, OptimConfig
from spectral_conditioning.tasks.registry import task_entry
from spectral_conditioning.training.identity import conditioning
from spectral_conditioning.training.schema import (
    BudgetConfig,
    ConditioningConfig,
    EvaluateConfig,
    InitConfig,
    LoggerConfig,
    PathsConfig,
    RunConfig,
    TaskConfig,
    TrainerConfig,
)

SECTIONS: dict[str, type] = {
    "init": InitConfig,
    "conditioning": ConditioningConfig,
    "optim": OptimConfig,
    "budget": BudgetConfig,
    "evaluate": EvaluateConfig,
    "trainer": TrainerConfig,
    "logger": LoggerConfig,
    "paths": PathsConfig,
}
# A signed 64-bit number, which every file format and tool takes.
LARGEST_SEED = 2**63 - 1
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")
CHOICES = {
    "trainer.accelerator": ("cpu", "gpu", "auto"),
    "trainer.precision": PRECISIONS,
    "trainer.progress": ("auto", "bar", "lines", "none"),
    "logger.wandb": ("disabled", "offline", "online"),
    "optim.name": ("adamw",),
    "optim.schedule": SCHEDULES,
    "optim.report": ("raw", "ema"),
}


def task_config_module(name: str) -> ModuleType:
    """Import the light module that holds a task's dataclasses."""
    return importlib.import_module(task_entry(name).config)


def flat_keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every value of a nested mapping."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat_keys(value, f"{name}.")
        else:
            yield name


def _section(tree: Mapping[str, Any], name: str, schema: type, problems: list[str]) -> Any:
    """Build one dataclass from its part of the tree, adding unknown keys and wrong types to `problems`."""
    # A typed node of its own drops keys that the schema does not know, one message each.
    found = tree.get(name.split(".")[-1])
    if not isinstance(found, Mapping):
        problems.append(f"{name} is {found!r}; it must be a group of values ({', '.join(_fields(schema))})")
        return schema()
    node = OmegaConf.structured(schema)
    for key, value in found.items():
        if key not in _fields(schema):
            near = closest(str(key), _fields(schema))
            hint = f"; closest {name + '.' + near!r}" if near else f"; allowed: {', '.join(_fields(schema))}"
            problems.append(f"unknown key {name + '.' + str(key)!r}{hint}")
            continue
        try:
            node[key] = value
        except OmegaConfBaseException as error:
            wanted = _fields(schema)[key]
            reason = str(error).splitlines()[0].rstrip(".")
            problems.append(f"{name}.{key} is {value!r}; it must be of type {wanted} ({reason})")
    for key, length in _lengths(schema).items():
        if key in found and isinstance(value := node[key], ListConfig) and len(value) != length:
            problems.append(f"{name}.{key} is {list(value)!r}; it must hold {length} values")
    return OmegaConf.to_object(node)


def _lengths(schema: type) -> dict[str, int]:
    """Return the number of values of every field that is a tuple of fixed length; OmegaConf takes any number."""
    found = {}
    for key, hint in typing.get_type_hints(schema).items():
        parts = typing.get_args(hint)
        if typing.get_origin(hint) is tuple and parts and parts[-1] is not Ellipsis:
            found[key] = len(parts)
    return found


def _fields(schema: type) -> dict[str, str]:
    return {field.name: str(field.type) for field in dataclasses.fields(schema)}


def _parent(tree: DictConfig, name: str) -> tuple[Any, str]:
    """Return the node that holds a dotted name, and the name's last part."""
    above, _, last = name.rpartition(".")
    return (OmegaConf.select(tree, above) if above else tree), last


def _resolved(tree: DictConfig) -> Mapping[Any, Any]:
    """Resolve a tree's interpolations; raises ConfigError that names every mandatory value that is missing."""
    written = OmegaConf.to_container(tree, resolve=False)
    missing = [key for key in flat_keys(written) if OmegaConf.is_missing(*_parent(tree, key))]
    if missing:
        raise ConfigError(problems_message("configuration", [f"{key} is not set; add {key}=…" for key in missing]))
    try:
        container = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"configuration: {' '.join(str(error).split())}") from error
    assert isinstance(container, dict)
    return container


def typed(tree: DictConfig | Mapping[str, Any]) -> RunConfig:
    """Turn a composed tree into a `RunConfig`.

    Raises ConfigError that lists every unknown key and wrong type or, when there are none, every value that does not fit.
    """
    container = _resolved(tree) if isinstance(tree, DictConfig) else tree
    values: dict[str, Any] = {str(key): value for key, value in container.items()}
    problems: list[str] = []
    top = {field.name for field in dataclasses.fields(RunConfig)}
    for key in sorted(set(values) - top):
        near = closest(key, top)
        problems.append(
            f"unknown key {key!r}" + (f"; closest {near!r}" if near else f"; allowed: {', '.join(sorted(top))}")
        )
    task_tree = values.get("task")
    task_name = task_tree.get("name") if isinstance(task_tree, Mapping) else None
    module = task_config_module(str(task_name))
    for key in sorted(set(task_tree) - {"name", "model"}):  # type: ignore[arg-type]
        problems.append(f"unknown key 'task.{key}'; allowed: task.name, task.model")
    sections = {name: _section(values, name, schema, problems) for name, schema in SECTIONS.items() if name in values}
    model = _section(task_tree, "task.model", module.ModelConfig, problems)  # type: ignore[arg-type]
    data = _section(values, "data", module.DataConfig, problems)
    seed, name = values.get("seed", 0), values.get("name")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        problems.append(f"seed is {seed!r}; it must be a whole number from 0 to {LARGEST_SEED}")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]*\w[\w.-]*(/[\w.-]*\w[\w.-]*)*", name):
        problems.append(f"name is {name!r}; it must be words of letters, digits, '_', '-', '.' joined by '/'")
    if problems:
        raise ConfigError(problems_message("configuration", problems))
    config = RunConfig(
        name=str(name), seed=seed, task=TaskConfig(name=str(task_name), model=model), data=data, **sections
    )
    problems = [*value_problems(config), *module.problems(config)]
    if problems:
        raise ConfigError(problems_message("configuration", problems))
    return config


def value_problems(config: RunConfig) -> list[str]:
    """Name every value that does not fit, in all sections that tasks share."""
    problems = []
    for name, allowed in CHOICES.items():
        section, key = name.split(".")
        value = getattr(getattr(config, section), key)
        if value not in allowed:
            near = closest(str(value), allowed)
            problems.append(
                f"{name} is {value!r}; allowed: {', '.join(allowed)}" + (f"; closest {near!r}" if near else "")
            )
    given = {key: value for key, value in dataclasses.asdict(config.budget).items() if value is not None}
    if len(given) != 1:
        shown = ", ".join(f"{key}={value}" for key, value in given.items()) or "none"
        hint = f"set the others to null, e.g. budget.{[*given][-1]}=null" if given else "e.g. budget.steps=1000"
        problems.append(f"budget needs exactly one of steps, epochs, tokens; found {shown}; {hint}")
    problems += [
        f"budget.{key} is {value}; it must be a finite number above 0"
        for key, value in given.items()
        if not (math.isfinite(value) and value > 0)
    ]
    minimum = {"devices": 1, "nodes": 1, "accumulate": 1, "log_every": 1, "keep_checkpoints": 1}
    for key, least in minimum.items():
        if getattr(config.trainer, key) < least:
            problems.append(f"trainer.{key} is {getattr(config.trainer, key)}; it must be at least {least}")
    for section, key in (
        ("trainer", "threads"),
        ("trainer", "checkpoint_every"),
        ("evaluate", "every_steps"),
        ("evaluate", "every_epochs"),
    ):
        value = getattr(getattr(config, section), key)
        if value is not None and value <= 0:
            problems.append(f"{section}.{key} is {value}; it must be above 0 or null")
    if config.evaluate.spectra < 0:
        problems.append(f"evaluate.spectra is {config.evaluate.spectra}; it must be 0 (none) or more")
    if config.evaluate.every_steps is not None and config.evaluate.every_epochs is not None:
        problems.append("evaluate.every_steps and evaluate.every_epochs are both set; set one of them to null")
    if not config.paths.runs.strip():
        problems.append(f"paths.runs is {config.paths.runs!r}; it must name a folder, e.g. paths.runs=runs")
    problems += _optim_problems(config.optim)
    try:
        conditioning(config)
    except SpectralError as error:
        problems.append(str(error))
    return problems


def _optim_problems(optim: OptimConfig) -> list[str]:
    problems = []
    for key in ("lr", "eps"):
        if not 0 < getattr(optim, key) < math.inf:
            problems.append(f"optim.{key} is {getattr(optim, key)}; it must be a finite number above 0")
    for key in ("weight_decay", "warmup_epochs", "warmup_lr", "min_lr"):
        if not 0 <= getattr(optim, key) < math.inf:
            problems.append(f"optim.{key} is {getattr(optim, key)}; it must be a finite number, 0 or more")
    if not all(0 <= beta < 1 for beta in optim.betas):
        problems.append(f"optim.betas is {tuple(optim.betas)}; both must lie in [0, 1)")
    for key in ("clip_norm", "clip_value"):
        value = getattr(optim, key)
        if value is not None and not 0 < value < math.inf:
            problems.append(f"optim.{key} is {value}; it must be a finite number above 0, or null for no clipping")
    if optim.clip_norm is not None and optim.clip_value is not None:
        problems.append("optim.clip_norm and optim.clip_value are both set; set one of them to null")
    if optim.ema_decay is not None and not 0 <= optim.ema_decay < 1:
        problems.append(f"optim.ema_decay is {optim.ema_decay}; it must lie in [0, 1), or null for no average")
    if optim.report == "ema" and optim.ema_decay is None:
        problems.append("optim.report is 'ema' but optim.ema_decay is null; set a decay or report 'raw'")
    return problems
