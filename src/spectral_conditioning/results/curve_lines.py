"""How the curves of arms are drawn, and what their legend says: training curves and spectra share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spectral_conditioning.results.curves import ArmCurve
from spectral_conditioning.results.metric_log import Curve
from spectral_conditioning.results.seed_dots import offsets, shifted

FAILED_LINE = ":"
# (curves of an arm, colour, line)
Drawn = tuple[ArmCurve, Any, str]


def draw_curves(axis: Any, arms: Sequence[Drawn]) -> None:
    """Draw each arm: its mean or median bold, each seed thin (many seeds: a band), seeds that failed (and are in no mean) dotted.

    A curve of one point is a dot, hollow where the run failed, beside a bar at the middle; several arms stand side by side.
    """
    for (curves, colour, line), aside in zip(arms, offsets(len(arms)), strict=True):
        if curves.band:
            axis.fill_between(*zip(*curves.band, strict=True), color=colour, alpha=0.12, linewidth=0)
        # One line with gaps is drawn faster than many.
        gap = (float("nan"), float("nan"))
        joined = [point for points in curves.learned if len(points) > 1 for point in (*points, gap)]
        if joined and not curves.band:
            axis.plot(*zip(*joined, strict=True), color=colour, linewidth=0.6, alpha=0.35, linestyle=line)
        for points in curves.failed:
            if len(points) > 1:
                axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.0, alpha=0.9, linestyle=FAILED_LINE)
        if len(curves.middle) > 1:
            axis.plot(*zip(*curves.middle, strict=True), color=colour, linewidth=1.7, linestyle=line)
        _draw_dots(axis, curves, colour, aside)
    steps = {step for curves, _, _ in arms for points in (*curves.learned, *curves.failed) for step, _ in points}
    if len(steps) == 1:  # around a single step, marks such as 197.5 mean nothing
        axis.set_xticks(list(steps))
    axis.autoscale_view()


def _draw_dots(axis: Any, curves: ArmCurve, colour: Any, aside: float) -> None:
    middle = [curves.middle] if len(curves.learned) > 1 else []
    for found, look in (
        (_dots(middle), {"marker": "_", "markersize": 12, "markeredgewidth": 1.6}),
        (_dots(curves.learned), {"marker": "o", "markersize": 4.5}),
        (_dots(curves.failed), {"marker": "o", "markersize": 4.5, "markerfacecolor": "white"}),
    ):
        for point in found:
            axis.update_datalim([point])  # a moved line does not count for the limits
            axis.plot(*zip(point, strict=True), color=colour, linestyle="", transform=shifted(axis, aside), **look)


def _dots(curves: Iterable[Curve]) -> list[tuple[int, float]]:
    return [points[0] for points in curves if len(points) == 1]


def step_axis(axis: Any) -> None:
    """Label the axis of optimizer steps, which are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("optimizer step")
    if len(axis.get_xticks()) != 1:  # the single step that `draw_curves` marked
        axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 2.5, 5, 10]))


def curve_handle(colour: Any, label: str, line: Any = "-", curves: Iterable[ArmCurve] = ()) -> Any:
    """A legend entry for `draw_curves`: where all of `curves` failed, dotted; where all are single points, a dot."""
    from matplotlib.lines import Line2D

    curves = list(curves)
    learned = [points for each in curves for points in each.learned]
    failed = [points for each in curves for points in each.failed]
    if failed and not learned:
        line = FAILED_LINE
    drawn = [*learned, *failed]
    if drawn and len(_dots(drawn)) == len(drawn):
        face = colour if learned else "white"
        return Line2D([], [], color=colour, label=label, linestyle="", marker="o", markersize=5, markerfacecolor=face)
    return Line2D([], [], color=colour, label=label, linestyle=line, linewidth=1.7)


def curve_key(curves: Iterable[ArmCurve]) -> str:
    """Say what the lines and dots of `draw_curves` mean, as far as they occur."""
    curves = list(curves)
    bands = any(each.band for each in curves)
    lines = any(len(each.learned) - len(_dots(each.learned)) > 1 for each in curves)
    thin = any(len(each.learned) - len(_dots(each.learned)) > 1 and not each.band for each in curves)
    dots = any(len(_dots(each.learned)) > 1 for each in curves)
    failed = [points for each in curves for points in each.failed]
    averages = " or ".join(sorted({each.average for each in curves}))
    marks = (
        ({"bold": lines, "bar": dots}, f"{averages} over seeds"),
        ({"band": bands}, "lowest to highest seed"),
        ({"thin": thin, "dot": dots}, "each seed"),
        (
            {"dotted": len(_dots(failed)) < len(failed), "hollow": bool(_dots(failed))},
            "diverged or at chance, in no mean",
        ),
    )
    parts = [
        f"{' or '.join(name for name, shown in found.items() if shown)}: {text}"
        for found, text in marks
        if any(found.values())
    ]
    return f"\n({'; '.join(parts)})" if parts else ""
