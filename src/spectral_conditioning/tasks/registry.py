"""The table of tasks: the one place where a name becomes a benchmark family."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from spectral_conditioning.errors import ConfigError, closest

if TYPE_CHECKING:
    from spectral_conditioning.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """Where a task lives: `config` holds its dataclasses (light to import), `implementation` the rest.

    The config module defines `ModelConfig` and `DataConfig` and a function
    `problems(config) -> list[str]` that names every value that does not fit.
    """

    config: str
    implementation: str
    extra: str


TASKS: dict[str, TaskEntry] = {
    name: TaskEntry(
        config=f"spectral_conditioning.tasks.{name}.config",
        implementation=f"spectral_conditioning.tasks.{name}.task",
        extra=name,
    )
    for name in ("imagenet", "coco", "lra", "cramming")
}


def task_entry(name: str) -> TaskEntry:
    """Return the table entry of a task, or raise ConfigError that names the nearest one."""
    if name not in TASKS:
        near = closest(name, TASKS)
        hint = f"; closest {near!r}" if near else ""
        raise ConfigError(f"task.name is {name!r}; allowed: {', '.join(TASKS)}{hint}")
    return TASKS[name]


def load_task(name: str) -> Task:
    """Import a task and its heavy stack; a missing package is a one-line error with the install command."""
    entry = task_entry(name)
    try:
        module = importlib.import_module(entry.implementation)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("spectral_conditioning"):
            raise
        raise ConfigError(
            f"task {name!r} needs the package {error.name!r}, which is not installed: "
            f"pip install 'spectral-conditioning[{entry.extra}]'"
        ) from error
    except ImportError as error:
        if ".so" not in str(error):
            raise
        raise ConfigError(
            f"task {name!r} needs a shared library of the system: {error}. README.md lists the packages "
            f"(OpenCV of task 'coco' wants libgl1 and libglib2.0-0: apt-get install libgl1 libglib2.0-0)"
        ) from error
    task: Task = module.TASK
    return task
