"""Curves of an arm from its runs' logs, and the step at which a run reached its baseline's final value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median_high, median_low
from typing import Literal

import numpy as np

from spectral_conditioning.results.metric_log import Curve, curve, first_step_at_least
from spectral_conditioning.results.records import LogLines, Run
from spectral_conditioning.results.summary import Arm, Table

# A noisy curve with more points than this is drawn as means of equal stretches of steps.
MOST_POINTS = 120
# Lines of more seeds than this cannot be told apart: their range is drawn as a band.
MOST_LINES = 10
Average = Literal["mean", "median"]


class Logs:
    """Each run's log, read once and only when a figure or a sentence needs it."""

    def __init__(self) -> None:
        self._lines: dict[int, LogLines] = {}
        self.damaged: dict[str, int] = {}  # {where a run comes from: lines of its log that cannot be read}

    def __call__(self, run: Run) -> LogLines:
        if id(run) not in self._lines:
            self._lines[id(run)] = lines = run.read_log()
            if count := getattr(lines, "damaged", 0):
                self.damaged[run.source] = count
        return self._lines[id(run)]


@dataclass(frozen=True)
class ArmCurve:
    """Curves of one arm: of the seeds that learned and of those that failed, and the middle of the former."""

    learned: list[Curve]
    failed: list[Curve]
    middle: Curve
    average: Average = "mean"

    def at_least(self, level: float) -> ArmCurve:
        """The same curves with every value below `level` raised to it."""

        def raised(points: Curve) -> Curve:
            return [(step, max(value, level)) for step, value in points]

        return ArmCurve([*map(raised, self.learned)], [*map(raised, self.failed)], raised(self.middle), self.average)

    @property
    def empty(self) -> bool:
        return not (self.learned or self.failed)

    @cached_property
    def band(self) -> list[tuple[int, float, float]]:
        """(step, lowest, highest) of more than `MOST_LINES` seeds that learned, at every step that all of them logged.

        [] for fewer seeds, and for fewer than two such steps.
        """
        if len(self.learned) <= MOST_LINES:
            return []
        found = [(step, min(values), max(values)) for step, values in _shared(self.learned)]
        return found if len(found) > 1 else []


def curve_name(run: Run) -> str:
    """The logged metric to follow: the primary one; a metric of the test split is followed on validation."""
    split, _, own = run.metric.name.partition("/")
    return f"val/{own}" if split == "test" else run.metric.name


def arm_curve(
    arm: Arm, name: str, logs: Logs, *, shown: Callable[[float], float] = float, average: Average = "mean"
) -> ArmCurve:
    """Return the curves of `name` for every run of an arm, values passed through `shown` (the table's unit)."""
    learned: list[Curve] = []
    failed: list[Curve] = []
    for run in arm.runs:
        points = [(step, shown(value)) for step, value in curve(logs(run), name)]
        if points:
            (learned if run.learned else failed).append(thin(points))
    return ArmCurve(learned, failed, middle_curve(learned, average), average)


def middle_curve(seeds: Sequence[Curve], average: Average = "mean") -> Curve:
    """Return the mean or the median over seeds at every step that all of them logged."""
    return [(step, fmean(values) if average == "mean" else _median(values)) for step, values in _shared(seeds)]


def _median(values: list[float]) -> float:
    """The median; of an even number of positive values the geometric mean of the middle two, which may lie decades apart."""
    low, high = median_low(values), median_high(values)
    return math.sqrt(low) * math.sqrt(high) if low > 0 else (low + high) / 2


def _shared(seeds: Sequence[Curve]) -> list[tuple[int, list[float]]]:
    """Return (step, the value of each seed) for every step that all seeds logged."""
    values = [dict(points) for points in seeds]
    steps = sorted(set(values[0]).intersection(*values[1:])) if values else []
    return [(step, [each[step] for each in values]) for step in steps]


def thin(points: Curve) -> Curve:
    """Return at most `MOST_POINTS` points: means over equal counts of neighbours, placed at their last step."""
    if len(points) <= MOST_POINTS:
        return points
    groups = np.array_split(np.arange(len(points)), MOST_POINTS)
    return [(points[int(group[-1])][0], float(np.mean([points[int(i)][1] for i in group]))) for group in groups]


@dataclass(frozen=True)
class Reached:
    """Median step at which an arm's runs reached their own baselines' final value, and how many of them did."""

    step: int | None
    reached: int
    of: int


def steps_to_baseline(table: Table, arm: Arm, logs: Logs) -> Reached:
    """When did each run of `arm` first log a value as good as its baseline's at the tested checkpoint?

    For the baseline arm itself: when it first logged its own final value.
    """
    pairs = [(run, run) for run in arm.runs] if arm.is_baseline else [(pair.baseline, pair.run) for pair in arm.pairs]
    found, asked = [], 0
    for base, run in pairs:
        target = _final_value(base, logs)
        points = curve(logs(run), curve_name(run))
        if target is None or not points:
            continue
        asked += 1
        step = first_step_at_least(points, target, sign=table.metric.sign)
        if step is not None:
            found.append(step)
    return Reached(median_low(found) if found else None, len(found), asked)


def _final_value(base: Run, logs: Logs) -> float | None:
    """The baseline's value of the followed metric at its tested checkpoint."""
    if not base.learned:
        return None
    if curve_name(base) == base.metric.name:
        return base.value
    points = dict(curve(logs(base), curve_name(base)))
    recorded = base.metrics.get(curve_name(base))
    return points.get(base.value_step) if recorded is None and base.value_step is not None else recorded
