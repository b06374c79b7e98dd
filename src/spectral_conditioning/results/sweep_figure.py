"""The primary metric over a swept configuration value: one line for each arm, every run a dot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spectral_conditioning.results.figure_style import BASELINE_COLOUR, heading, legend_below, new_figure, save, style
from spectral_conditioning.results.lambda_curve import close_up_range
from spectral_conditioning.results.seed_dots import (
    draw_chance,
    draw_dots,
    mark_handles,
    offsets,
    series_handle,
    shifted,
)
from spectral_conditioning.results.sweep import Sweep, SweptArm

# More conditioned arms than this in one panel cannot be told apart: further figures take them, the baseline in each.
MOST_ARMS = 6
Look = dict[str, Any]
_BASELINE: Look = {"color": BASELINE_COLOUR, "marker": "o", "linestyle": "--"}


def plot_sweep(sweep: Sweep, path: Path) -> list[Path]:
    """Draw means over seeds as lines and runs as dots, each arm's best ringed; numbers above 0 on a log axis.

    Where some runs ended far off, a first row shows the range of the others close up. Too many arms for one figure go to
    `<path>`, `<path>-2.png`, …
    """
    arms = sweep.rows[1:]
    groups = [arms[start : start + MOST_ARMS] for start in range(0, len(arms), MOST_ARMS)]
    return [
        _figure(sweep, [sweep.baseline, *group], path if not index else path.with_stem(f"{path.stem}-{index + 1}"))
        for index, group in enumerate(groups)
    ]


def _figure(sweep: Sweep, rows: list[SweptArm], path: Path) -> Path:
    shown = [arm for row in rows for arm in row.arms]
    zoom = close_up_range(shown)
    panels = 2 if zoom else 1
    figure, axes = new_figure(panels, 1, width=max(6.5, 1.1 * len(sweep.values)), height=0.9 + 3.3 * panels)
    looks = [_BASELINE, *(style(index) for index in range(len(rows) - 1))]
    for axis in axes[:, 0]:
        _panel(axis, sweep, rows, looks)
    axes[0, 0].set_ylabel(f"{sweep.metric.label}, {sweep.metric.direction}")
    if zoom:
        axes[0, 0].set_ylim(*zoom)
        axes[0, 0].set_title("close-up; the panel below shows every run", fontsize=9, loc="left")
    heading(figure, f"{sweep.title}: final value", size=11)
    legend_below(figure, [*_handles(rows, looks), *mark_handles(shown)])
    return save(figure, path)


def _panel(axis: Any, sweep: Sweep, rows: list[SweptArm], looks: list[Look]) -> None:
    places = [float(value) for value in sweep.values] if sweep.numeric else list(map(float, range(len(sweep.values))))
    logarithmic = sweep.numeric and places[0] > 0
    if logarithmic:
        axis.set_xscale("log")
    axis.set_xlim(*_ends(places, logarithmic=logarithmic))
    axis.set_xticks(places, labels=[sweep.value_text(index) for index in range(len(places))])
    axis.minorticks_off()  # a range of about a decade would get labels between the swept values
    axis.set_xlabel(f"{sweep.key} (log scale)" if logarithmic else sweep.key)
    failed = any(arm.collapsed for row in rows for arm in row.arms)
    draw_chance(axis, sweep.tables[0].chance if failed else None)
    for offset, row, look in zip(offsets(len(rows)), rows, looks, strict=True):
        _draw_row(axis, row, places, look, offset=offset)


def _ends(places: list[float], *, logarithmic: bool) -> tuple[float, float]:
    """Return the limits of the axis: a tenth of its length free at either end."""
    low, high = places[0], places[-1]
    if logarithmic:
        return low / (high / low) ** 0.1, high * (high / low) ** 0.1
    return low - 0.1 * (high - low), high + 0.1 * (high - low)


def _draw_row(axis: Any, row: SweptArm, places: list[float], look: Look, *, offset: float) -> None:
    means = [(x, arm.mean) for x, arm in zip(places, row.at, strict=True) if arm is not None and arm.mean is not None]
    if len(means) > 1:
        axis.plot(
            *zip(*means, strict=True), color=look["color"], linestyle=look["linestyle"], linewidth=1.3,
            transform=shifted(axis, offset), zorder=2,
        )  # fmt: skip
    for x, arm in zip(places, row.at, strict=True):
        if arm is not None:
            draw_dots(axis, arm, x, look, offset=offset)
    if row.best is not None and row.best_arm is not None:
        axis.plot(
            [places[row.best]], [row.best_arm.mean], marker="o", color=look["color"], markersize=13, markerfacecolor="none",
            markeredgewidth=1.1, linestyle="", transform=shifted(axis, offset), zorder=6,
        )  # fmt: skip


def _handles(rows: list[SweptArm], looks: list[Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        series_handle(row.label, look, row.arms, line=sum(arm.mean is not None for arm in row.arms) > 1)
        for row, look in zip(rows, looks, strict=True)
    ]
    ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": ""}
    return [*handles, Line2D([], [], color="#555555", label="ring: the arm's best", **ring)]  # type: ignore[arg-type]
