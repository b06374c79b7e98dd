"""The λ curve: the primary metric over λ, one series for each correction, placement and set of targets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spectral_conditioning.results.arms import lambda_in_sigma, series_label
from spectral_conditioning.results.figure_style import BASELINE_COLOUR, legend_below, new_figure, save, style
from spectral_conditioning.results.summary import Arm, Table

# Series at one λ stand this far apart, in points, so that their dots do not cover each other.
_DODGE = 4.0


def lambda_series(table: Table) -> dict[str, list[Arm]]:
    """Return the conditioned arms of each series, by rising λ."""
    series: dict[str, list[Arm]] = {}
    for arm in table.arms:
        series.setdefault(series_label(arm.runs[0]), []).append(arm)
    return {name: sorted(arms, key=lambda arm: arm.runs[0].lam) for name, arms in series.items()}


def plot_lambda_curve(table: Table, path: Path) -> Path:
    """Draw every seed as a dot and each series' mean as a line; λ in weight units and λ in σ_max(W) have a panel each."""
    from matplotlib.lines import Line2D

    series = lambda_series(table)
    panels = [
        (label, chosen)
        for label, in_sigma in (("λ (added to the weights; symlog scale)", False), ("λ (in units of σ_max(W); symlog scale)", True))
        if (chosen := [name for name, arms in series.items() if lambda_in_sigma(arms[0].runs[0]) == in_sigma])
    ]
    sizes = [3.2 if len(_lambdas(series, names)) < 3 else 6.0 for _, names in panels]
    figure, axes = new_figure(
        1, len(panels), width=max(6.5, sum(sizes) + 0.8), height=4.4 + 0.1 * len(series), sharey=True, width_ratios=sizes
    )
    index_of = {name: index for index, name in enumerate(series)}
    for axis, (label, names) in zip(axes[0], panels, strict=True):
        _panel(axis, table, {name: series[name] for name in names}, index_of)
        axis.set_xlabel(label)
    axes[0][0].set_ylabel(f"{table.metric.label}, {table.metric.direction}")
    figure.suptitle(f"{table.title}: final value over λ", fontsize=11)
    handles: list[Any] = [Line2D([], [], color=BASELINE_COLOUR, marker="o", linestyle="--", label=_baseline_label(table))]
    handles += [Line2D([], [], label=name, **style(index)) for name, index in index_of.items()]
    handles += _mark_handles(table)
    legend_below(figure, handles)
    return save(figure, path)


def _panel(axis: Any, table: Table, series: dict[str, list[Arm]], index_of: dict[str, int]) -> None:
    lambdas = _lambdas(series, series)
    axis.set_xscale("symlog", linthresh=min(lambdas), linscale=0.6)
    axis.set_xticks([0, *lambdas], labels=[f"{value:g}" for value in [0, *lambdas]])
    axis.tick_params(axis="x", which="minor", bottom=False)
    axis.set_xlim(-0.35 * min(lambdas), max(lambdas) * 1.7)
    _draw_baseline(axis, table)
    for place, (name, arms) in enumerate(series.items()):
        _draw_series(axis, table, arms, style(index_of[name]), offset=_DODGE * (place - (len(series) - 1) / 2))


def _draw_baseline(axis: Any, table: Table) -> None:
    base = table.baseline
    if base is None:
        return
    if base.mean is not None:
        axis.axhline(base.mean, color=BASELINE_COLOUR, linestyle="--", linewidth=1, zorder=1)
        if base.std is not None:
            axis.axhspan(base.mean - base.std, base.mean + base.std, color="#000000", alpha=0.08, linewidth=0, zorder=0)
    _draw_dots(axis, base, 0.0, {"color": BASELINE_COLOUR, "marker": "o"}, offset=0.0)
    if table.chance is not None and any(arm.collapsed for arm in table.all_arms):
        axis.axhline(table.chance, color="#666666", linestyle=":", linewidth=1)
        axis.annotate("chance", (1, table.chance), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                      textcoords="offset points", ha="right", color="#444444", fontsize=8)


def _draw_series(axis: Any, table: Table, arms: list[Arm], look: dict[str, Any], *, offset: float) -> None:
    points = [(arm.runs[0].lam, arm.mean) for arm in arms if arm.mean is not None]
    if len(arms) > 1 and table.baseline and table.baseline.mean is not None:
        points.insert(0, (0.0, table.baseline.mean))  # λ = 0 is the baseline of every series
    if len(points) > 1:
        axis.plot(*zip(*points, strict=True), color=look["color"], linestyle=look["linestyle"], linewidth=1.4,
                  transform=_shifted(axis, offset), zorder=2)
    for arm in arms:
        _draw_dots(axis, arm, arm.runs[0].lam, look, offset=offset)


def _draw_dots(axis: Any, arm: Arm, lam: float, look: dict[str, Any], *, offset: float) -> None:
    """One dot a seed (hollow at chance, × on the axis when diverged) and a bar at the mean."""
    where = _shifted(axis, offset)
    for run in arm.runs:
        if run.value is None:
            axis.plot([lam], [0.015], marker="x", color=look["color"], markersize=6, markeredgewidth=1.6, clip_on=False,
                      transform=_shifted(axis, offset, across=True), zorder=4)
            continue
        axis.plot([lam], [arm.metric.shown(run.value)], marker=look["marker"], color=look["color"], markersize=4.2, alpha=0.85,
                  markerfacecolor="white" if run.at_chance else look["color"], linestyle="", transform=where, zorder=3)
    if arm.mean is not None and len(arm.values) > 1:
        axis.plot([lam], [arm.mean], marker="_", color=look["color"], markersize=13, markeredgewidth=2.2, linestyle="",
                  transform=where, zorder=3)


def _shifted(axis: Any, points: float, *, across: bool = False) -> Any:
    """Data coordinates moved sideways by `points`; with `across`, y runs from 0 to 1 over the axis."""
    from matplotlib.transforms import offset_copy

    base = axis.get_xaxis_transform() if across else axis.transData
    return offset_copy(base, fig=axis.figure, x=points, y=0, units="points")


def _lambdas(series: dict[str, list[Arm]], names: Iterable[str]) -> list[float]:
    return sorted({arm.runs[0].lam for name in names for arm in series[name]})


def _baseline_label(table: Table) -> str:
    several = table.baseline is not None and table.baseline.std is not None
    return "baseline (λ = 0; line: mean" + (", band: ± std)" if several else ")")


def _mark_handles(table: Table) -> list[Any]:
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    if any(len(arm.values) > 1 for arm in table.arms):
        handles.append(Line2D([], [], color="#555555", marker="_", markersize=11, markeredgewidth=2.2, linestyle="",
                              label="mean (dots: seeds)"))
    if any(arm.collapsed for arm in table.all_arms):
        handles.append(Line2D([], [], color="#555555", marker="o", markerfacecolor="white", linestyle="",
                              label="hollow: at chance, not in the mean"))
    if any(arm.diverged for arm in table.all_arms):
        handles.append(Line2D([], [], color="#555555", marker="x", linestyle="", label="diverged"))
    return handles
