"""A sweep as text: arms down, swept values across, each arm's best in bold, and the best against the baseline's best."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from spectral_conditioning.results import statistics
from spectral_conditioning.results.arms import series_label
from spectral_conditioning.results.summary import Arm
from spectral_conditioning.results.sweep import Sweep, SweptArm
from spectral_conditioning.results.tables import DASH, Grid, fits, mean_text, print_views, rich_table
from spectral_conditioning.results.tidy import csv_text

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = [
    "experiment", "key", "value", "arm", "series", "lam", "metric", "mode", "unit", "seeds", "learned", "diverged", "collapsed",
    "mean", "std", "median", "best", "best_pairs", "best_difference", "best_difference_std",
]  # fmt: skip


def sweep_grid(sweep: Sweep) -> Grid:
    """Lay a sweep out. A cell is `92.00 ± 1.00 (3)`: mean, standard deviation, number of seeds."""
    best, difference = "best", f"Δ {sweep.metric.difference_unit}, best to best"
    values = [f"{sweep.key}={sweep.value_text(0)}", *(sweep.value_text(i) for i in range(1, len(sweep.values)))]
    rows = [
        [row.label, *(cell_text(arm) for arm in row.at), _best_text(sweep, row), _difference_text(sweep, row)]
        for row in sweep.rows
    ]
    marked = frozenset((index, 1 + row.best) for index, row in enumerate(sweep.rows) if row.best is not None)
    return Grid(sweep.title, ["arm", *values, best, difference], rows, sweep_notes(sweep), marked)


def cell_text(arm: Arm | None) -> str:
    """`92.00 ± 1.00 (3)`; `(2 of 3)` when a seed failed; `at chance (3)` or `diverged (3)` when all did."""
    if arm is None:
        return DASH
    text = mean_text(arm)
    return text if arm.failures and arm.mean is not None else f"{text} ({len(arm.runs)})"


def sweep_notes(sweep: Sweep) -> list[str]:
    """What must be read with a sweep: the meaning of a cell, how a best was chosen, and where the range may be too short."""
    metric = sweep.metric
    found = [
        f"{metric.label} at the tested checkpoint, mean ± standard deviation (seeds); {metric.direction}. Bold: each arm's best "
        f"{sweep.key}, by the mean among the values with the smallest share of failed seeds.",
        f"Δ: every arm at its own best {sweep.key} minus the baseline at the baseline's best, paired by seed. Each best was "
        "chosen by the result that is shown, so it is overstated: repeat it with new seeds.",
    ]
    if any(arm.failures for row in sweep.rows for arm in row.arms):
        found.append("Runs that diverged or ended at chance are in no mean or difference; (2 of 3) says how many are.")
    ends = [
        f"{row.label} ({sweep.value_text(row.best)})"
        for row in sweep.rows
        if row.best_at_an_end and row.best is not None
    ]
    if ends and sweep.numeric:
        found.append(f"Best at an end of the range, which may be too short: {', '.join(ends)}.")
    if unequal := sweep.unequal():
        found.append(f"Warning: the pairs behind Δ share a seed, but not {', '.join(unequal)}.")
    return found


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print a sweep and its notes; where it is wider than the terminal, in parts of as many values as fit."""
    laid = sweep_grid(sweep)
    parts: list[list[str]] = [["arm"]]
    for name in laid.columns[1:]:
        if len(parts[-1]) > 1 and not fits(rich_table(laid.only([*parts[-1], name])), console):
            parts.append(["arm"])
        parts[-1].append(name)
    views = [rich_table(laid.only(names), title=None if not index else " ") for index, names in enumerate(parts)]
    print_views(views, laid.notes, console)


def sweep_csv(sweeps: Iterable[Sweep]) -> str:
    """One line for every arm at every value; the difference stands on the line of the arm's best value."""
    return csv_text(
        COLUMNS,
        [
            _line(sweep, row, index, arm)
            for sweep in sweeps
            for row in sweep.rows
            for index, arm in enumerate(row.at)
            if arm is not None
        ],
    )


def _line(sweep: Sweep, row: SweptArm, index: int, arm: Arm) -> dict[str, Any]:
    differences = sweep.best_differences(row) if index == row.best else []
    mean, std = statistics.mean_std(differences)
    run = arm.runs[0]
    return {
        "experiment": sweep.experiment, "key": sweep.key, "value": sweep.values[index], "arm": row.label,
        "series": series_label(run), "lam": run.lam, "metric": sweep.metric.name, "mode": sweep.metric.mode,
        "unit": sweep.metric.unit, "seeds": len(arm.runs), "learned": len(arm.values), "diverged": len(arm.diverged),
        "collapsed": len(arm.collapsed), "mean": arm.mean, "std": arm.std, "median": arm.median, "best": index == row.best,
        "best_pairs": len(differences) or None, "best_difference": mean, "best_difference_std": std,
    }  # fmt: skip


def _best_text(sweep: Sweep, row: SweptArm) -> str:
    if row.best is None or row.best_arm is None:
        return DASH
    return f"{sweep.metric.number(row.best_arm.mean)} at {sweep.value_text(row.best)}"


def _difference_text(sweep: Sweep, row: SweptArm) -> str:
    differences = sweep.best_differences(row)
    mean, std = statistics.mean_std(differences)
    text = sweep.metric.number(mean, signed=True)
    if std is not None:
        text += f" ± {sweep.metric.number(std)}"
    pairs = len(sweep.best_pairs(row))
    return text if not differences or len(differences) == pairs else f"{text} ({len(differences)} of {pairs})"
