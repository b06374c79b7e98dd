"""Settings that every task's data shares."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(kw_only=True)
class LoaderConfig:
    """How samples become batches.

    batch_size: samples per optimizer step over all devices and micro-batches, so that a recipe does not change with the
    machine. eval_batch_size: per device. workers: loader processes per device, 0 loads in the training process.
    """

    batch_size: int = 64
    eval_batch_size: int = 256
    workers: int = 0


def loader_problems(data: LoaderConfig) -> list[str]:
    """Name every loader setting that is out of range."""
    found = []
    for name in ("batch_size", "eval_batch_size"):
        if getattr(data, name) < 1:
            found.append(f"data.{name} is {getattr(data, name)}; it must be at least 1")
    if data.workers < 0:
        found.append(f"data.workers is {data.workers}; it must be 0 (load in the training process) or more")
    return found
