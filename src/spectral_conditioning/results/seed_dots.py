"""Every run as a dot: the marks that the figures of final values share (λ curve, sweep of a configuration value)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from spectral_conditioning.results.summary import Arm

# Series at one place stand side by side over this width, in points, so that their dots do not cover each other.
_WIDTH = 26.0
_MOST_APART = 7.0


def offsets(count: int) -> list[float]:
    """Return how far aside, in points, each of `count` series stands."""
    apart = min(_MOST_APART, _WIDTH / max(1, count))
    return [apart * (place - (count - 1) / 2) for place in range(count)]


def draw_dots(axis: Any, arm: Arm, x: float, look: dict[str, Any], *, offset: float) -> None:
    """Draw one dot a seed at x (hollow at chance, × on the axis when diverged) and a bar at the mean.

    Seeds of equal value share one dot, its area theirs together.
    """
    where, colour = shifted(axis, offset), look["color"]
    if arm.mean is not None and len(arm.values) > 1:
        axis.plot(
            [x], [arm.mean], marker="_", color=colour, markersize=12, markeredgewidth=1.6, linestyle="",
            transform=where, zorder=3,
        )  # fmt: skip
    if arm.diverged:
        axis.plot(
            [x], [0.015], marker="x", color=colour, markersize=_size(6, len(arm.diverged)), markeredgewidth=1.6,
            clip_on=False, transform=shifted(axis, offset, across=True), zorder=5,
        )  # fmt: skip
    for (value, at_chance), count in _ended(arm).items():
        # A moved line does not count for the limits of a log axis.
        axis.update_datalim([(x, value)], updatex=False)
        axis.plot(
            [x], [value], marker=look["marker"], color=colour, markersize=_size(4.6, count), linestyle="",
            markerfacecolor="white" if at_chance else colour, markeredgewidth=0.9 if at_chance else 0.4,
            markeredgecolor=colour if at_chance else "white", transform=where, zorder=4 - 0.1 * min(count, 9),
        )  # fmt: skip


def _ended(arm: Arm) -> Counter[tuple[float, bool]]:
    """Count the seeds that ended with each (value in the table's unit, at chance)."""
    return Counter((arm.metric.shown(run.value), bool(run.at_chance)) for run in arm.runs if run.value is not None)


def _size(single: float, count: int) -> float:
    """The diameter, in points, of a mark whose area is that of `count` single ones."""
    return single * math.sqrt(count)


def draw_chance(axis: Any, chance: float | None) -> None:
    """Draw the chance level, where there is one to draw."""
    if chance is None:
        return
    axis.axhline(chance, color="#666666", linestyle=":", linewidth=1)
    # Beside the axes: inside, some run's dot may be under it.
    axis.annotate(
        "chance", (1, chance), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
        color="#444444", fontsize=8, va="center", annotation_clip=True,
    )  # fmt: skip


def series_handle(label: str, look: dict[str, Any], arms: Sequence[Arm], *, line: bool) -> Any:
    """A legend entry for a series as it is drawn: without a line where it has none, hollow or × where every run failed."""
    from matplotlib.lines import Line2D

    shown = look if line else {**look, "linestyle": ""}
    if all(arm.mean is None for arm in arms):
        ended = any(run.value is not None for arm in arms for run in arm.runs)
        shown = {**shown, "markerfacecolor": "white"} if ended else {**shown, "marker": "x"}
    return Line2D([], [], label=label, **shown)


def mark_handles(arms: Sequence[Arm]) -> list[Any]:
    """Legend entries for the marks of `draw_dots` that occur."""
    from matplotlib.lines import Line2D

    shared = any(len(arm.diverged) > 1 or max(_ended(arm).values(), default=0) > 1 for arm in arms)
    marks = (
        (any(len(arm.values) > 1 for arm in arms), "mean; dots are seeds", {"marker": "_", "markersize": 11}),
        (shared, "larger: seeds of equal value", {"marker": "o", "markersize": _size(4.6, 3)}),
        (any(arm.collapsed for arm in arms), "hollow: not told from chance, in no mean",
         {"marker": "o", "markerfacecolor": "white"}),
        (any(arm.diverged for arm in arms), "diverged, in no mean", {"marker": "x"}),
    )  # fmt: skip
    return [Line2D([], [], color="#555555", linestyle="", label=text, **look) for shown, text, look in marks if shown]


def shifted(axis: Any, points: float, *, across: bool = False) -> Any:
    """Data coordinates moved sideways by `points`; with `across`, y runs from 0 to 1 over the axis."""
    from matplotlib.transforms import offset_copy

    base = axis.get_xaxis_transform() if across else axis.transData
    return offset_copy(base, fig=axis.figure, x=points, y=0, units="points")
