"""`spectral glue`: the GLUE table of a suite of fine-tuning runs, one column an arm, with the averages that are published.

The published average is over nine numbers, MNLI counting twice (matched and mismatched); the eight-way one leaves out the
mismatched. Authors report the median of five seeds; a mean beside it shows what one collapsed seed does. Unlike
`spectral compare`, this table keeps collapsed runs: it marks them.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from spectral_conditioning.errors import RecordError, problems_message
from spectral_conditioning.results.arms import arm_key, arm_labels, arm_order
from spectral_conditioning.results.collect import collect
from spectral_conditioning.results.pairing import pair_runs
from spectral_conditioning.results.records import Run
from spectral_conditioning.tasks.cramming.glue_tasks import EIGHT, GLUE_TASKS, NINE

Entry = tuple[str, str]
COLLAPSE_MARGIN = 1e-3
# Differences between arms that are no reason to print no table.
_LEFT_TO_COMPARE = ("code", "versions")


@dataclasses.dataclass(frozen=True)
class Cell:
    """The values of one number over seeds, as fractions of one; None for a run without a value."""

    values: tuple[float | None, ...]
    collapsed: int

    @property
    def median(self) -> float | None:
        return self._over(statistics.median)

    @property
    def mean(self) -> float | None:
        return self._over(statistics.fmean)

    def _over(self, function: Callable[[list[float]], float]) -> float | None:
        known = [value for value in self.values if value is not None]
        return function(known) if known else None

    def text(self) -> str:
        """Return median, mean, every seed and how many collapsed: `55.0 (mean 37.0; 55.0 56.0 0.0; 1 collapsed)`."""
        if len(self.values) == 1:
            return _percent(self.median) + (" (collapsed)" if self.collapsed else "")
        each = " ".join(_percent(value) for value in self.values)
        mark = f"; {self.collapsed} collapsed" if self.collapsed else ""
        return f"{_percent(self.median)} (mean {_percent(self.mean)}; {each}{mark})"


@dataclasses.dataclass(frozen=True)
class Suite:
    """All GLUE runs of one experiment: arm label → number → cell."""

    experiment: str
    arms: dict[str, dict[Entry, Cell]]
    seeds: tuple[int, ...]

    def average(self, arm: str, entries: Sequence[Entry], statistic: str) -> float | None:
        """Return the mean over `entries` of each one's median or mean over seeds; None unless all are there."""
        values = [getattr(self.arms[arm][entry], statistic) for entry in entries if entry in self.arms[arm]]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(entries) else None


def collapsed(value: float | None, chance: float | None) -> bool:
    """Whether a run scores no more than a constant prediction."""
    return value is None or (chance is not None and value <= chance + COLLAPSE_MARGIN)


def glue_task(run: Run) -> str | None:
    """Return the GLUE task of a fine-tuning run, None for any other."""
    model = run.config.get("task", {}).get("model", {}) if isinstance(run.config.get("task"), dict) else {}
    name = model.get("glue_task")
    return name if name in GLUE_TASKS else None


def build_suites(runs: Iterable[Run]) -> list[Suite]:
    """Group runs into suites.

    Raises RecordError when arms or tasks have different seeds, or a seed twice, and when an arm and the baseline differ in what
    makes a pair (`pairing.REASONS`); versions of code and packages are left to `spectral compare`.
    """
    by_suite: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if glue_task(run) is not None:
            by_suite[run.experiment.rsplit("/", 1)[0]].append(run)
    if not by_suite:
        raise RecordError("no GLUE runs found; they come from spectral train experiment=cramming/glue …")
    return [_suite(name, members) for name, members in sorted(by_suite.items())]


def _suite(name: str, runs: list[Run]) -> Suite:
    labels = arm_labels(sorted(runs, key=arm_order))
    cells: dict[str, dict[Entry, Cell]] = {label: {} for label in labels.values()}
    seeds: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for key, label in labels.items():
        for task in GLUE_TASKS:
            members = sorted(
                (run for run in runs if arm_key(run) == key and glue_task(run) == task), key=lambda run: run.seed
            )
            if members:
                seeds[task][label] = [run.seed for run in members]
                measured = _measured(run for run in runs if glue_task(run) == task)
                entries = [entry for entry in NINE if entry[0] == task and entry[1] in measured]
                cells[label] |= {entry: _cell(members, entry[1]) for entry in entries}
    _check_seeds(name, seeds)
    _check_pairs(name, runs)
    every = sorted({seed for arms in seeds.values() for found in arms.values() for seed in found})
    return Suite(name, cells, tuple(every))


def _measured(runs: Iterable[Run]) -> set[str]:
    """Return the metrics that any of the runs has: local data may lack MNLI's mismatched part. The main one always counts."""
    found: set[str] = set()
    for run in runs:
        found |= {run.metric.name.rsplit("/", 1)[-1], *(name.rsplit("/", 1)[-1] for name in run.metrics)}
    return found


def _cell(runs: list[Run], metric: str) -> Cell:
    values = tuple(run.metrics.get(f"val/{metric}") for run in runs)
    return Cell(values, sum(collapsed(value, run.chance) for value, run in zip(values, runs, strict=True)))


def _check_seeds(name: str, seeds: dict[str, dict[str, list[int]]]) -> None:
    problems = []
    for task, arms in seeds.items():
        for label, found in arms.items():
            if len(set(found)) != len(found):
                problems.append(f"{task}, {label}: seeds {found} hold one twice; give the folders of one configuration")
        if len({tuple(found) for found in arms.values()}) > 1:
            shown = "; ".join(f"{label} {found}" for label, found in arms.items())
            problems.append(f"{task}: the arms have different seeds ({shown}); train the missing ones")
    if problems:
        raise RecordError(problems_message(name, problems))


def _check_pairs(name: str, runs: list[Run]) -> None:
    problems = [
        f"{excluded.run.experiment}, {excluded.run.arm}, seed {excluded.run.seed}: {'; '.join(excluded.reasons)}"
        for pairing in pair_runs(runs, allow=_LEFT_TO_COMPARE)
        for excluded in pairing.refused
    ]
    if problems:
        raise RecordError(
            problems_message(name, problems, advice="train these runs as the baseline was, or leave them out")
        )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def table_lines(suite: Suite) -> list[str]:
    """Return a suite as a Markdown table, in percent."""
    arms = list(suite.arms)
    present = [entry for entry in NINE if any(entry in cells for cells in suite.arms.values())]
    seeds = f"seed {suite.seeds[0]}" if len(suite.seeds) == 1 else f"median of seeds {', '.join(map(str, suite.seeds))}"
    lines = [f"### {suite.experiment}: GLUE development sets, %, {seeds}", ""]
    lines += [_row(["number", *arms]), _row(["---"] * (len(arms) + 1))]
    for task, metric in present:
        cells = [suite.arms[arm].get((task, metric)) for arm in arms]
        lines.append(_row([f"{GLUE_TASKS[task].folder} {metric.replace('_', ' ')}", *(_shown(cell) for cell in cells)]))
    for title, entries in (("9-way average (as published)", NINE), ("8-way average (without MNLI mismatched)", EIGHT)):
        for statistic in ("median", "mean") if len(suite.seeds) > 1 else ("median",):
            values = [_percent(suite.average(arm, entries, statistic)) for arm in arms]
            suffix = f" of {statistic}s" if len(suite.seeds) > 1 else ""
            lines.append(_row([title + suffix, *values]))
    missing = [" ".join((GLUE_TASKS[task].folder, metric)) for task, metric in NINE if (task, metric) not in present]
    if missing:
        partial = [_percent(suite.average(arm, present, "median")) for arm in arms]
        lines.append(_row([f"average of the {len(present)} numbers here", *partial]))
        lines += ["", f"No published average without {', '.join(missing).replace('_', ' ')}."]
    if any(cell.collapsed for cells in suite.arms.values() for cell in cells.values()):
        lines += ["", "collapsed: the run scores no more than a constant prediction."]
    return lines


def _shown(cell: Cell | None) -> str:
    return "–" if cell is None else cell.text()


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders with runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables to a Markdown file as well")


def run(args: argparse.Namespace) -> int:
    """Print the table of every suite found below the folders."""
    text = "\n\n".join("\n".join(table_lines(suite)) for suite in build_suites(collect(args.runs).runs)) + "\n"
    print(text, end="")
    if args.out is not None:
        try:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise RecordError(f"cannot write {args.out}: {error.strerror}") from error
    return 0
