"""A sweep of one configuration value: every arm at every value, and each arm's best against the baseline's best.

An experiment whose tables differ in exactly one value of the configuration, e.g. optim.lr, has one sweep over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spectral_conditioning.results.arms import arm_key, arm_labels, arm_order
from spectral_conditioning.results.configurations import differing_keys, is_number, value_order
from spectral_conditioning.results.metric import Metric
from spectral_conditioning.results.pairing import REASONS, flat_config
from spectral_conditioning.results.records import Run
from spectral_conditioning.results.summary import Arm, Table

# A run that starts from the pretrained weights of its own seed: a file each, and no scale to sweep.
_NO_SWEEP = frozenset(["init.weights"])
# What pairs of unequal values may share beside the seed.
_SHARED = {name: REASONS[name] for name in ("initial_weights", "order", "data")}


@dataclass(frozen=True)
class SweptArm:
    """One arm over the swept values: one `Arm` for each value, None where it has no comparable run."""

    label: str
    at: list[Arm | None]

    @property
    def arms(self) -> list[Arm]:
        return [arm for arm in self.at if arm is not None]

    @property
    def is_baseline(self) -> bool:
        return self.arms[0].is_baseline

    @property
    def best(self) -> int | None:
        """Index of the best mean among the values with the smallest share of failed seeds; None when no run learned."""
        ranks = [
            (-arm.failures / len(arm.runs), arm.metric.sign * arm.mean, -index)
            for index, arm in enumerate(self.at)
            if arm is not None and arm.mean is not None
        ]
        return -max(ranks)[2] if ranks else None

    @property
    def best_arm(self) -> Arm | None:
        return None if self.best is None else self.at[self.best]

    @property
    def best_at_an_end(self) -> bool:
        """True when a value beyond the swept range may be better still."""
        return self.best in (0, len(self.at) - 1)


@dataclass(frozen=True)
class Sweep:
    """The tables of one experiment beside each other: `rows` are the arms (baseline first), `values` of `key` the columns."""

    experiment: str
    key: str
    values: list[Any]
    rows: list[SweptArm]
    tables: list[Table]

    @property
    def metric(self) -> Metric:
        return self.tables[0].metric

    @property
    def title(self) -> str:
        return f"{self.experiment} over {self.key}"

    @property
    def baseline(self) -> SweptArm:
        return self.rows[0]

    @property
    def numeric(self) -> bool:
        """True when the values are numbers, which then rise."""
        return all(is_number(value) for value in self.values)

    def value_text(self, index: int) -> str:
        value = self.values[index]
        return f"{value:g}" if is_number(value) else str(value)

    def best_pairs(self, row: SweptArm) -> list[tuple[Run, Run]]:
        """(baseline at its best value, arm at its own best value) for every seed that both have; [] for the baseline."""
        base, arm = self.baseline.best_arm, row.best_arm
        if row.is_baseline or base is None or arm is None:
            return []
        by_seed = {run.seed: run for run in base.runs}
        return [(by_seed[run.seed], run) for run in arm.runs if run.seed in by_seed]

    def best_differences(self, row: SweptArm) -> list[float]:
        """arm − baseline, each at its best value, of every seed that learned in both; in the table's unit."""
        return [
            self.metric.shown(run.value - base.value)
            for base, run in self.best_pairs(row)
            if base.learned and run.learned and base.value is not None and run.value is not None
        ]

    def unequal(self) -> list[str]:
        """Which of initial weights, order and data differ within the pairs of best values."""
        pairs = [pair for row in self.rows for pair in self.best_pairs(row)]
        return [
            name.replace("_", " ")
            for name, difference in _SHARED.items()
            if any(difference(base, run) for base, run in pairs)
        ]


def build_sweeps(tables: Iterable[Table]) -> list[Sweep]:
    """Return a sweep for every experiment whose tables have one metric and differ in exactly one value."""
    by_experiment: dict[str, list[Table]] = {}
    for table in tables:
        by_experiment.setdefault(table.experiment, []).append(table)
    sweeps = [_build_sweep(experiment, group) for experiment, group in by_experiment.items()]
    return [sweep for sweep in sweeps if sweep is not None]


def arranged(tables: Sequence[Table], sweeps: Sequence[Sweep]) -> list[Table | Sweep]:
    """Return what is shown, in order: an experiment's sweep before the tables it holds."""
    waiting = {sweep.experiment: sweep for sweep in sweeps}
    shown: list[Table | Sweep] = []
    for table in tables:
        sweep = waiting.pop(table.experiment, None)
        shown += [table] if sweep is None else [sweep, table]
    return shown


def _build_sweep(experiment: str, tables: list[Table]) -> Sweep | None:
    flat = [flat_config(table.runs[0].config) for table in tables]
    varied = differing_keys(flat)
    if len(varied) != 1 or len({table.metric for table in tables}) > 1 or not all(table.baseline for table in tables):
        return None
    (key,) = varied
    if key in _NO_SWEEP:
        return None
    by_value = {repr(each.get(key)): (each.get(key), table) for each, table in zip(flat, tables, strict=True)}
    if len(by_value) < len(tables):
        return None
    ordered = sorted(by_value.values(), key=lambda pair: value_order(pair[0]))
    tables = [table for _, table in ordered]
    return Sweep(experiment, key, [value for value, _ in ordered], _rows(tables), tables)


def _rows(tables: list[Table]) -> list[SweptArm]:
    labels = arm_labels(run for table in tables for run in table.runs)
    found = [{arm_key(arm.runs[0]): arm for arm in table.all_arms} for table in tables]
    first = {key: arm.runs[0] for each in found for key, arm in each.items()}
    return [
        SweptArm(labels[key], [each.get(key) for each in found])
        for key in sorted(first, key=lambda key: arm_order(first[key]))
    ]
