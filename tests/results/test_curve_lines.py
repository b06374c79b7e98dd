"""Lines, dots and legend of an arm's curves: what is drawn is visible, and the legend and the key look like it."""

from __future__ import annotations

from typing import Any

import pytest

from spectral_conditioning.results.curve_lines import curve_handle, curve_key, draw_curves, step_axis
from spectral_conditioning.results.curves import MOST_LINES, ArmCurve, middle_curve
from spectral_conditioning.results.figure_style import new_figure
from spectral_conditioning.results.metric_log import Curve

POINT, LOWER, LINE = [(200, 64.0)], [(200, 60.0)], [(100, 0.5), (200, 0.4)]


def arm(learned: list[Curve], failed: list[Curve] | None = None) -> ArmCurve:
    return ArmCurve(learned, failed or [], middle_curve(learned))


@pytest.fixture
def axis() -> Any:
    return new_figure(1, 1, width=4, height=3)[1][0, 0]


def marks(axis: Any) -> list[tuple[str, str, str, float]]:
    """(marker, face, edge, height) of everything drawn without a line."""
    return [
        (line.get_marker(), line.get_markerfacecolor(), line.get_markeredgecolor(), float(line.get_ydata()[0]))
        for line in axis.lines
        if line.get_linestyle() == "None"
    ]


def test_curve_of_one_point_is_a_dot_and_a_failed_one_hollow(axis: Any) -> None:
    draw_curves(axis, [(arm([POINT]), "red", "-"), (arm([], [LOWER]), "blue", "--")])
    assert marks(axis) == [("o", "red", "red", 64.0), ("o", "white", "blue", 60.0)]
    assert len(axis.lines) == 2
    assert list(axis.get_xticks()) == [200]
    low, high = axis.get_ylim()
    assert low < 60 < 64 < high


def test_mean_of_single_points_is_a_bar_that_hides_no_seed(axis: Any) -> None:
    draw_curves(axis, [(arm([POINT, LOWER]), "red", "-")])
    assert [(marker, height) for marker, _, _, height in marks(axis)] == [("_", 62.0), ("o", 64.0), ("o", 60.0)]


def test_dots_of_two_arms_at_one_value_stand_side_by_side(axis: Any) -> None:
    draw_curves(axis, [(arm([POINT]), "red", "-"), (arm([POINT]), "blue", "-")])
    axis.figure.canvas.draw()
    (left, right) = (line.get_transform().transform((200, 64.0)) for line in axis.lines)
    width = axis.lines[0].get_markersize() * axis.figure.dpi / 72
    assert right[0] - left[0] >= width
    assert right[1] == left[1]


def test_dots_on_a_log_axis_are_inside_it(axis: Any) -> None:
    draw_curves(axis, [(arm([[(5, 1e-3)]]), "red", "-"), (arm([[(5, 1e4)]]), "blue", "-")])
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    assert low < 1e-3 < 1e4 < high
    assert low > 1e-5
    assert high < 1e6


def test_lines_get_no_dots(axis: Any) -> None:
    draw_curves(axis, [(arm([LINE, LINE], [LINE]), "red", "--")])
    assert marks(axis) == []
    assert [line.get_linestyle() for line in axis.lines] == ["--", ":", "--"]


def test_many_seeds_are_a_band_from_the_lowest_to_the_highest(axis: Any) -> None:
    seeds: list[Curve] = [[(1, float(seed)), (2, 2.0 * seed), (3, 0.5)] for seed in range(MOST_LINES + 1)]
    many, few = arm([*seeds[:-1], seeds[-1][:2]], [LINE]), arm(seeds[:-1])
    assert many.band == [(1, 0.0, MOST_LINES), (2, 0.0, 2.0 * MOST_LINES)]
    assert few.band == []
    draw_curves(axis, [(many, "red", "-")])
    (band,) = axis.collections
    assert band.get_paths()[0].get_extents().extents.tolist() == [1, 0, 2, 2 * MOST_LINES]
    assert [line.get_linestyle() for line in axis.lines] == [":", "-"]  # the failed seed and the mean, no other line
    assert curve_key([many]) == (
        "\n(bold: mean over seeds; band: lowest to highest seed; dotted: diverged or at chance, in no mean)"
    )
    assert curve_key([many, few]).count("thin: each seed") == 1


def test_seeds_without_common_steps_stay_lines(axis: Any) -> None:
    seeds: list[Curve] = [[(seed, 1.0), (seed + 100, 2.0)] for seed in range(MOST_LINES + 1)]
    assert arm(seeds).band == []
    draw_curves(axis, [(arm(seeds), "red", "-")])
    assert len(axis.lines) == 1  # all seeds, with gaps between them
    assert not axis.collections


@pytest.mark.parametrize(
    ("curves", "line", "marker", "face"),
    [
        ([arm([LINE])], "--", "None", "red"),
        ([arm([LINE], [LINE])], "--", "None", "red"),
        ([arm([], [LINE])], ":", "None", "red"),
        ([arm([POINT])], "None", "o", "red"),
        ([arm([], [POINT])], "None", "o", "white"),
        ([arm([], [LINE]), arm([], [POINT])], ":", "None", "red"),
        ([arm([LINE]), arm([POINT])], "--", "None", "red"),
        ([], "--", "None", "red"),
    ],
)
def test_legend_entry_looks_like_what_is_drawn(curves: list[ArmCurve], line: str, marker: str, face: str) -> None:
    handle = curve_handle("red", "arm", "--", curves)
    assert (handle.get_linestyle(), handle.get_marker(), handle.get_markerfacecolor()) == (line, marker, face)
    assert (handle.get_label(), handle.get_color(), handle.get_markeredgecolor()) == ("arm", "red", "red")


@pytest.mark.parametrize(
    ("curves", "key"),
    [
        ([arm([LINE]), arm([POINT])], ""),
        ([arm([LINE, LINE])], "\n(bold: mean over seeds; thin: each seed)"),
        ([arm([POINT, LOWER])], "\n(bar: mean over seeds; dot: each seed)"),
        ([arm([], [LINE])], "\n(dotted: diverged or at chance, in no mean)"),
        ([arm([POINT], [LOWER])], "\n(hollow: diverged or at chance, in no mean)"),
        (
            [arm([LINE, LINE], [LINE]), arm([POINT, LOWER], [LOWER])],
            "\n(bold or bar: mean over seeds; thin or dot: each seed; dotted or hollow: diverged or at chance, in no mean)",
        ),
    ],
)
def test_key_names_what_occurs(curves: list[ArmCurve], key: str) -> None:
    assert curve_key(curves) == key


def test_key_names_the_median_where_it_is_drawn() -> None:
    found = ArmCurve([LINE, LINE], [], LINE, "median")
    assert curve_key([found]) == "\n(bold: median over seeds; thin: each seed)"
    assert found.at_least(0.1).average == "median"


def test_ticks_of_the_step_axis_are_whole_steps(axis: Any) -> None:
    draw_curves(axis, [(arm([[(0, 1.0), (1, 2.0), (2, 1.5)]]), "red", "-")])
    step_axis(axis)
    assert all(float(tick).is_integer() for tick in axis.get_xticks())
    assert axis.get_xlabel() == "optimizer step"


def test_a_single_step_keeps_its_tick(axis: Any) -> None:
    draw_curves(axis, [(arm([POINT]), "red", "-")])
    step_axis(axis)
    assert list(axis.get_xticks()) == [200]


def test_raised_curves_keep_steps_and_what_is_above() -> None:
    raised = arm([[(0, 1e-93), (1, 2.0)]], [[(0, 0.0)]]).at_least(0.1)
    assert raised == ArmCurve([[(0, 0.1), (1, 2.0)]], [[(0, 0.1)]], [(0, 0.1), (1, 2.0)])
