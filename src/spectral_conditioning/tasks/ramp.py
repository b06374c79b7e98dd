"""Batches that grow: their sizes are a function of how many samples came before, hence of the step alone."""

# b(s) = min(B, u · (⌊s / (f·S) · B/u⌋ + 1)), s samples seen of S, u the unit, B the full batch, f the fraction of the budget.

from __future__ import annotations

import bisect
import dataclasses
from itertools import pairwise

from spectral_conditioning.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ramp:
    """unit: the first batch and the increment, in samples. until: fraction of the budget, in samples, at which the batch is full.

    A value of `until` above 1 never reaches the full batch.
    """

    unit: int
    until: float


class BatchPlan:
    """The first sample of every batch of a run. `starts[t]` samples come before step t; the last entry is the total."""

    def __init__(self, starts: list[int], *, budget: int) -> None:
        self.starts, self.budget = starts, budget
        self.steps = len(starts) - 1

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first sample of a step and the first after it; past the end, steps go on at the last size."""
        return self.samples_before(step), self.samples_before(step + 1)

    def samples_before(self, step: int) -> int:
        """Return how many samples all steps before `step` take."""
        if step <= self.steps:
            return self.starts[step]
        last = self.starts[-1] - self.starts[-2]
        return self.starts[-1] + (step - self.steps) * last

    def sizes(self) -> list[int]:
        """Return the size of every batch."""
        return [after - before for before, after in pairwise(self.starts)]


def plan_batches(ramp: Ramp, *, batch_size: int, samples: int) -> BatchPlan:
    """Return the batches that fit into `samples`. Raises ConfigError when not one does or the unit does not divide the batch."""
    if batch_size % ramp.unit:
        raise ConfigError(
            f"data.batch_size is {batch_size}, not a multiple of data.ramp_unit ({ramp.unit}); choose one that is"
        )
    levels, starts = batch_size // ramp.unit, [0]
    while True:
        level = int(starts[-1] * levels / (ramp.until * samples)) + 1
        after = starts[-1] + ramp.unit * min(levels, level)
        if after > samples:
            break
        starts.append(after)
    if len(starts) == 1:
        raise ConfigError(f"the budget is {samples} samples, less than the first batch of the ramp ({ramp.unit})")
    return BatchPlan(starts, budget=samples)


def plan_steps(ramp: Ramp, *, batch_size: int, steps: int) -> BatchPlan:
    """Return the plan of exactly `steps` batches: that of the smallest budget that holds so many, cut after the last."""

    def holds(units: int) -> int:
        return plan_batches(ramp, batch_size=batch_size, samples=units * ramp.unit).steps

    units = bisect.bisect_left(
        range(steps * (batch_size // ramp.unit) + 1), steps, lo=1, key=lambda n: holds(max(n, 1))
    )
    plan = plan_batches(ramp, batch_size=batch_size, samples=units * ramp.unit)
    return BatchPlan(plan.starts[: steps + 1], budget=plan.budget)
