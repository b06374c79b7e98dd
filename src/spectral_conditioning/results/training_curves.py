"""Training curves: loss and primary metric over steps, every arm, its mean and its seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from spectral_conditioning.results.curve_lines import curve_handle, curve_key, draw_curves, step_axis
from spectral_conditioning.results.curves import ArmCurve, Logs, arm_curve, curve_name
from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    PALETTE,
    heading,
    lambda_colours,
    legend_below,
    new_figure,
    save,
)
from spectral_conditioning.results.lambda_curve import in_sigma, lambda_series
from spectral_conditioning.results.summary import Arm, Table

# More conditioned arms than this in one panel cannot be told apart: each series of λ gets a panel of its own.
MOST_IN_ONE_PANEL = 6
_COLUMNS = 3


@dataclass(frozen=True)
class Quantity:
    """One logged metric: its curve for every arm, by label, its axis label, and whether it is in the table's unit."""

    label: str
    curves: dict[str, ArmCurve]
    primary: bool


def quantities(table: Table, logs: Logs) -> list[Quantity]:
    """The loss (training loss when logged, else validation loss) and the primary metric, as far as the logs hold them."""
    found = {}
    for name, label in (("train/loss", "training loss"), ("val/loss", "validation loss")):
        loss = _quantity(table, name, label, logs)
        if loss is not None:
            found[name] = loss
            break
    followed = curve_name(table.runs[0])
    if followed not in found:
        unit = " (%)" if table.metric.percent else ""
        primary = _quantity(table, followed, f"{followed}{unit}", logs, primary=True)
        if primary is not None:
            found[followed] = primary
    return list(found.values())


def _quantity(table: Table, name: str, label: str, logs: Logs, *, primary: bool = False) -> Quantity | None:
    shown = table.metric.shown if primary else float
    curves = {arm.label: arm_curve(arm, name, logs, shown=shown) for arm in table.all_arms}
    return None if all(each.empty for each in curves.values()) else Quantity(label, curves, primary)


def plot_training_curves(table: Table, path: Path, logs: Logs) -> list[Path]:
    """Draw the training curves; [] when no run logged any."""
    found = quantities(table, logs)
    if not found:
        return []
    draw = _all_in_one if len(table.arms) <= MOST_IN_ONE_PANEL else _by_series
    figure = draw(table, found)
    key = curve_key(curve for quantity in found for curve in quantity.curves.values())
    heading(figure, f"{table.title}: training{key}")
    return [save(figure, path)]


def _all_in_one(table: Table, found: list[Quantity]) -> Any:
    figure, axes = new_figure(1, len(found), width=max(6.5, 4.9 * len(found)), height=4.2)
    looks = arm_looks(table)
    for axis, quantity in zip(axes[0], found, strict=True):
        draw_curves(axis, [(quantity.curves[arm.label], colour, line) for arm, colour, line in looks])
        _finish(axis, quantity)
    legend_below(figure, _handles((colour, arm.label, line, _curves(found, [arm])) for arm, colour, line in looks))
    return figure


def arm_looks(table: Table) -> list[tuple[Arm, str, str]]:
    """Return (arm, colour, line) with the baseline in black; every second line is dashed, so that equal curves both show.

    The first arm of each series has the series' colour in the λ figure; the others take the colours that are left.
    """
    firsts = [id(arms[0]) for arms in lambda_series(table).values()]
    left = count(len(firsts))
    colours = [firsts.index(id(arm)) if id(arm) in firsts else next(left) for arm in table.arms]
    looks = [
        (arm, PALETTE[colour % len(PALETTE)], ("-", "--")[place % 2])
        for place, (arm, colour) in enumerate(zip(table.arms, colours, strict=True))
    ]
    return ([(table.baseline, BASELINE_COLOUR, "-")] if table.baseline else []) + looks


def _by_series(table: Table, found: list[Quantity]) -> Any:
    """One panel for each series and quantity, λ as shade, the baseline in each."""
    series = lambda_series(table)
    colours = lambda_colours([arm.runs[0].lam for arm in table.arms])
    baseline = table.all_arms[: 1 if table.baseline else 0]
    columns = min(_COLUMNS, len(series))
    rows = -(-len(series) // columns)
    figure, axes = new_figure(
        rows * len(found), columns, width=max(6.5, 3.6 * columns), height=2.6 * rows * len(found) + 0.9
    )
    for block, quantity in enumerate(found):
        panels = [axis for row in axes[block * rows : (block + 1) * rows] for axis in row]
        for axis, (name, arms) in zip(panels, series.items(), strict=False):
            looks = [(quantity.curves[arm.label], colours[arm.runs[0].lam], "-") for arm in arms]
            looks += [(quantity.curves[base.label], BASELINE_COLOUR, "--") for base in baseline]
            draw_curves(axis, looks)
            axis.set_title(f"{name}{in_sigma(arms)}", fontsize=9)
            _finish(axis, quantity)
        for axis in panels[len(series) :]:
            axis.set_visible(False)
        _share_limits(panels[: len(series)])
    entries = [(BASELINE_COLOUR, "baseline", "--", _curves(found, [base])) for base in baseline]
    for lam, colour in colours.items():
        of_lam = [arm for arm in table.arms if arm.runs[0].lam == lam]
        entries.append((colour, f"λ = {lam:g}", "-", _curves(found, of_lam)))
    legend_below(figure, _handles(entries))
    return figure


def _handles(entries: Iterable[tuple[Any, str, str, list[ArmCurve]]]) -> list[Any]:
    """Legend entries for (colour, label, line, curves); none for an arm that logged nothing."""
    return [curve_handle(*entry) for entry in entries if not all(each.empty for each in entry[-1])]


def _curves(found: list[Quantity], arms: Sequence[Arm]) -> list[ArmCurve]:
    """Every curve of the figure that belongs to one of `arms`."""
    return [quantity.curves[arm.label] for quantity in found for arm in arms]


def _finish(axis: Any, quantity: Quantity) -> None:
    step_axis(axis)
    axis.set_ylabel(quantity.label)
    values = [float(y) for drawn in axis.lines for y in drawn.get_ydata() if math.isfinite(y)]
    if values and min(values) > 0 and max(values) > 50 * min(values) and not quantity.primary:
        axis.set_yscale("log")


def _share_limits(axes: Sequence[Any]) -> None:
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
