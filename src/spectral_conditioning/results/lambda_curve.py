"""The λ curve: the primary metric over λ, one series for each correction, placement and set of targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from spectral_conditioning.results.arms import lambda_in_sigma, series_label
from spectral_conditioning.results.figure_style import BASELINE_COLOUR, heading, legend_below, new_figure, save, style
from spectral_conditioning.results.seed_dots import (
    draw_chance,
    draw_dots,
    mark_handles,
    offsets,
    series_handle,
    shifted,
)
from spectral_conditioning.results.summary import Arm, Table

# Values spread over this many times the range in which most of them lie get a close-up of that range.
_CLOSE_UP = 3.0
MOST_SERIES = 6
# (heading, which series: of correction, placement, and whether all of q, k and v are conditioned)
_GROUPS: tuple[tuple[str, Callable[[str, str, bool], bool]], ...] = (
    (", identity on q, k and v by placement", lambda correction, _, every: correction == "identity" and every),
    (", identity by targets", lambda correction, placement, every: correction == "identity" and (
        not every or placement == "full")),
    (", other corrections", lambda correction, placement, every: correction != "identity"),
)  # fmt: skip
_AXES = (("λ, added to the weights (symlog scale)", False), ("λ in units of σ_max(W) (symlog scale)", True))


def lambda_series(table: Table) -> dict[str, list[Arm]]:
    """Return the conditioned arms of each series, by rising λ."""
    series: dict[str, list[Arm]] = {}
    for arm in table.arms:
        series.setdefault(series_label(arm.runs[0]), []).append(arm)
    return {name: sorted(arms, key=lambda arm: arm.runs[0].lam) for name, arms in series.items()}


def in_sigma(arms: list[Arm]) -> str:
    """Return what a series' name needs beside λ alone: of which unit its λ is, when that is σ_max(W)."""
    return ", λ in σ_max(W)" if lambda_in_sigma(arms[0].runs[0]) else ""


def plot_lambda_curve(table: Table, path: Path) -> list[Path]:
    """Draw every seed as a dot and each series' mean as a line; λ in weight units and λ in σ_max(W) have a panel each.

    Where a few arms ended far off, a first row shows the range of the others close up. Too many series for one figure go
    to one for placements, one for targets and one for other corrections: `<path>`, `<path>-2.png`, …
    """
    series = lambda_series(table)
    groups = {"": series}
    if len(series) > MOST_SERIES:
        groups = {name: chosen for name, wanted in _GROUPS if (chosen := _chosen(series, wanted))}
    return [
        _figure(table, name, chosen, path if not index else path.with_stem(f"{path.stem}-{index + 1}"))
        for index, (name, chosen) in enumerate(groups.items())
    ]


def _chosen(series: dict[str, list[Arm]], wanted: Callable[[str, str, bool], bool]) -> dict[str, list[Arm]]:
    chosen = {}
    for name, arms in series.items():
        settings = arms[0].runs[0].conditioning or {}
        every_target = set(settings.get("targets", "qkv")) == set("qkv")
        if wanted(settings.get("correction", ""), settings.get("placement", "full"), every_target):
            chosen[name] = arms
    return chosen


def _figure(table: Table, group: str, series: dict[str, list[Arm]], path: Path) -> Path:
    panels = [
        (label, chosen)
        for label, in_sigma in _AXES
        if (chosen := {name: arms for name, arms in series.items() if lambda_in_sigma(arms[0].runs[0]) == in_sigma})
    ]
    sizes = [3.2 if len(_lambdas(chosen.values())) < 3 else 6.0 for _, chosen in panels]
    arms = [*table.all_arms[:1], *(arm for chosen in series.values() for arm in chosen)]
    zoom = close_up_range(arms)
    rows = 2 if zoom else 1
    figure, axes = new_figure(
        rows, len(panels), width=max(6.5, sum(sizes) + 0.8), height=0.9 + 3.3 * rows + 0.1 * len(series),
        sharey="row", width_ratios=sizes,
    )  # fmt: skip
    index_of = {name: index for index, name in enumerate(series)}
    for row_index, row in enumerate(axes):
        for axis, (label, chosen) in zip(row, panels, strict=True):
            _panel(axis, table, chosen, index_of)
            axis.set_xlabel(label)
        row[0].set_ylabel(f"{table.metric.label}, {table.metric.direction}")
        if zoom and row_index == 0:
            row[0].set_ylim(*zoom)
            row[0].set_title("close-up; the row below shows every run", fontsize=9, loc="left")
    heading(figure, f"{table.title}: final value over λ{group}", size=11)
    legend_below(figure, _handles(table, series, index_of, arms))
    return save(figure, path)


def close_up_range(arms: list[Arm]) -> tuple[float, float] | None:
    """Return the range that leaves out values far below the rest (Tukey's fence on the bad side), None if all lie close."""
    sign = arms[0].metric.sign
    values = [sign * arm.metric.shown(run.value) for arm in arms for run in arm.runs if run.value is not None]
    if len(values) < 4:
        return None
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    # Half of the arms may have failed: then the upper half alone says what the others' range is.
    spread = min(high - low, 2 * (high - middle))
    near = [value for value in values if value >= middle - 3 * spread] or values
    if max(values) - min(values) < _CLOSE_UP * (max(near) - min(near)):
        return None
    margin = 0.12 * (max(near) - min(near)) or 0.01
    ends = sorted((sign * (min(near) - margin), sign * (max(near) + margin)))
    return float(ends[0]), float(ends[1])


def _panel(axis: Any, table: Table, series: dict[str, list[Arm]], index_of: dict[str, int]) -> None:
    lambdas = _lambdas(series.values())
    axis.set_xscale("symlog", linthresh=lambdas[0], linscale=0.6)
    axis.set_xticks([0, *lambdas], labels=[f"{value:g}" for value in [0, *lambdas]])
    axis.tick_params(axis="x", which="minor", bottom=False)
    axis.set_xlim(-0.35 * lambdas[0], lambdas[-1] * 1.7)
    failed = any(arm.collapsed for arm in [*table.all_arms[:1], *(arm for arms in series.values() for arm in arms)])
    _draw_baseline(axis, table, chance=table.chance if failed else None)
    for offset, (name, arms) in zip(offsets(len(series)), series.items(), strict=True):
        _draw_series(axis, table, arms, style(index_of[name]), offset=offset)


def _draw_baseline(axis: Any, table: Table, *, chance: float | None) -> None:
    base = table.baseline
    if base is None:
        return
    if base.mean is not None:
        axis.axhline(base.mean, color=BASELINE_COLOUR, linestyle="--", linewidth=1, zorder=1)
        if base.std is not None:
            axis.axhspan(base.mean - base.std, base.mean + base.std, color="#000000", alpha=0.08, linewidth=0, zorder=0)
    draw_dots(axis, base, 0.0, {"color": BASELINE_COLOUR, "marker": "o"}, offset=0.0)
    draw_chance(axis, chance)


def _draw_series(axis: Any, table: Table, arms: list[Arm], look: dict[str, Any], *, offset: float) -> None:
    points = _means(table, arms)
    if len(points) > 1:
        axis.plot(
            *zip(*points, strict=True), color=look["color"], linestyle=look["linestyle"], linewidth=1.3,
            transform=shifted(axis, offset), zorder=2,
        )  # fmt: skip
    for arm in arms:
        draw_dots(axis, arm, arm.runs[0].lam, look, offset=offset)


def _means(table: Table, arms: list[Arm]) -> list[tuple[float, float]]:
    """The points of a series' line."""
    points = [(arm.runs[0].lam, arm.mean) for arm in arms if arm.mean is not None]
    if len(arms) > 1 and table.baseline and table.baseline.mean is not None:
        points.insert(0, (0.0, table.baseline.mean))  # λ = 0 is the baseline of every series
    return points


def _lambdas(series: Iterable[list[Arm]]) -> list[float]:
    return sorted({arm.runs[0].lam for arms in series for arm in arms})


def _handles(table: Table, series: dict[str, list[Arm]], index_of: dict[str, int], arms: list[Arm]) -> list[Any]:
    """Legend: the baseline, each series, and the marks that occur."""
    handles = []
    base = table.baseline
    if base is not None:
        what = "" if base.mean is None else "; line: mean" + (", band: ± std" if base.std is not None else "")
        look = {"color": BASELINE_COLOUR, "marker": "o", "linestyle": "--"}
        handles.append(series_handle(f"baseline (λ = 0{what})", look, [base], line=base.mean is not None))
    handles += [
        series_handle(name, style(index_of[name]), chosen, line=len(_means(table, chosen)) > 1)
        for name, chosen in series.items()
    ]
    return [*handles, *mark_handles(arms)]
