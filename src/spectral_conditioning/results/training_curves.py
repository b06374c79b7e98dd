"""Training curves: loss and primary metric over steps, every arm, its mean and its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectral_conditioning.results.curves import ArmCurve, Logs, arm_curve, curve_name
from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    LINES,
    PALETTE,
    lambda_colours,
    legend_below,
    new_figure,
    save,
)
from spectral_conditioning.results.lambda_curve import lambda_series
from spectral_conditioning.results.summary import Arm, Table

# More conditioned arms than this in one panel cannot be told apart: each series of λ gets a panel of its own.
MOST_IN_ONE_PANEL = 6
_COLUMNS = 3


@dataclass(frozen=True)
class Quantity:
    """What one panel shows: a logged metric, its axis label, and whether it is in the table's unit."""

    name: str
    label: str
    primary: bool


def quantities(table: Table, logs: Logs) -> list[Quantity]:
    """The loss (training loss when logged) and the primary metric, as far as the logs hold them."""
    found = []
    for name in ("train/loss", "val/loss"):
        if any(arm_curve(arm, name, logs).seeds for arm in table.all_arms):
            found.append(Quantity(name, name.replace("train/", "training ").replace("val/", "validation "), False))
            break
    followed = curve_name(table.runs[0])
    if followed not in [each.name for each in found]:
        unit = " (%)" if table.metric.percent else ""
        found.append(Quantity(followed, f"{followed}{unit}", True))
    return [each for each in found if any(arm_curve(arm, each.name, logs).seeds for arm in table.all_arms)]


def plot_training_curves(table: Table, path: Path, logs: Logs) -> Path | None:
    """Draw the training curves; None when no run logged any."""
    found = quantities(table, logs)
    if not found:
        return None
    if len(table.arms) <= MOST_IN_ONE_PANEL:
        return _all_in_one(table, found, path, logs)
    return _by_series(table, found, path, logs)


def _all_in_one(table: Table, found: list[Quantity], path: Path, logs: Logs) -> Path:
    figure, axes = new_figure(1, len(found), width=4.9 * len(found), height=4.2)
    for axis, quantity in zip(axes[0], found, strict=True):
        for index, arm in enumerate(table.arms):
            _draw(axis, _curve(arm, quantity, logs, table), colour=PALETTE[index], line=LINES[index % 2])
        if table.baseline:
            _draw(axis, _curve(table.baseline, quantity, logs, table), colour=BASELINE_COLOUR, line="-")
        _finish(axis, quantity)
    figure.suptitle(f"{table.title}: training (bold: mean over seeds, thin: each seed)", fontsize=11)
    labels = [arm.label for arm in table.arms]
    legend_below(figure, [handle(BASELINE_COLOUR, "baseline"), *(
        handle(PALETTE[i], label, LINES[i % 2]) for i, label in enumerate(labels))])
    return save(figure, path)


def _by_series(table: Table, found: list[Quantity], path: Path, logs: Logs) -> Path:
    """One panel for each series and quantity, λ as shade, the baseline in each."""
    series = lambda_series(table)
    colours = lambda_colours([arm.runs[0].lam for arm in table.arms])
    columns = min(_COLUMNS, len(series))
    rows_each = -(-len(series) // columns)
    figure, axes = new_figure(rows_each * len(found), columns, width=3.6 * columns, height=2.6 * rows_each * len(found) + 0.9,
                              sharex=True)
    for block, quantity in enumerate(found):
        block_axes = [axis for row in axes[block * rows_each : (block + 1) * rows_each] for axis in row]
        for axis, (name, arms) in zip(block_axes, series.items(), strict=False):
            for arm in arms:
                _draw(axis, _curve(arm, quantity, logs, table), colour=colours[arm.runs[0].lam], line="-")
            if table.baseline:
                _draw(axis, _curve(table.baseline, quantity, logs, table), colour=BASELINE_COLOUR, line="--")
            axis.set_title(name, fontsize=9)
            _finish(axis, quantity)
        for axis in block_axes[len(series):]:
            axis.set_visible(False)
        _share_limits(block_axes[: len(series)])
    figure.suptitle(f"{table.title}: training (bold: mean over seeds, thin: each seed)", fontsize=11)
    legend_below(figure, [handle(BASELINE_COLOUR, "baseline", "--"), *(
        handle(colour, f"λ = {lam:g}") for lam, colour in colours.items())])
    return save(figure, path)


def _curve(arm: Arm, quantity: Quantity, logs: Logs, table: Table) -> ArmCurve:
    return arm_curve(arm, quantity.name, logs, shown=table.metric.shown if quantity.primary else float)


def _draw(axis: Any, lines: ArmCurve, *, colour: Any, line: str) -> None:
    for points in lines.seeds:
        axis.plot(*zip(*points, strict=True), color=colour, linewidth=0.6, alpha=0.35, linestyle=line)
    if lines.mean:
        axis.plot(*zip(*lines.mean, strict=True), color=colour, linewidth=1.7, linestyle=line)


def _finish(axis: Any, quantity: Quantity) -> None:
    axis.set_xlabel("optimizer step")
    axis.set_ylabel(quantity.label)
    values = [float(y) for drawn in axis.lines for y in drawn.get_ydata()]
    if values and min(values) > 0 and max(values) > 50 * min(values) and not quantity.primary:
        axis.set_yscale("log")


def _share_limits(axes: Sequence[Any]) -> None:
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def handle(colour: Any, label: str, line: str = "-") -> Any:
    """A legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=label, linestyle=line, linewidth=1.7)
