"""Values that are as good as 0 take no room on a logarithmic axis, and are labelled as what they are."""

from __future__ import annotations

import pytest

from spectral_conditioning.results.figure_style import new_figure
from spectral_conditioning.results.log_axis import NEGLIGIBLE, mark_zero, notable, zero_level


def test_only_what_is_negligible_beside_the_largest_is_dropped() -> None:
    assert notable([5.0, 0.0, 1e-93, 5 * NEGLIGIBLE, 6 * NEGLIGIBLE, float("inf"), float("nan")]) == [
        5.0,
        6 * NEGLIGIBLE,
    ]
    assert notable([0.0, 0.0]) == []
    assert notable([]) == []


def test_zero_stands_a_decade_below_the_rest() -> None:
    assert zero_level([20.0, 0.3, 1e-93]) == pytest.approx(1e-2)
    assert zero_level([20.0, 0.3, 0.0]) == pytest.approx(1e-2)
    assert zero_level([1000.0, 0.0]) == pytest.approx(1e2)


def test_no_mark_where_no_value_is_as_good_as_zero() -> None:
    assert zero_level([20.0, 1e-9]) is None
    assert zero_level([20.0, float("inf"), float("nan")]) is None
    assert zero_level([0.0, 0.0]) is None  # nothing to stand below


@pytest.mark.parametrize(
    ("level", "largest", "labels"),
    [
        (1e-2, 20.0, ["≈ 0", "$10^{-1}$", "$10^{0}$", "$10^{1}$"]),
        (1e-8, 2e3, ["≈ 0", "$10^{-7}$", "$10^{-5}$", "$10^{-3}$", "$10^{-1}$", "$10^{1}$", "$10^{3}$"]),
        (1e2, 1e3, ["≈ 0", "$10^{3}$"]),
    ],
)
def test_axis_runs_from_the_mark_to_the_largest_value(level: float, largest: float, labels: list[str]) -> None:
    """The ends are free by the axis' margin, whatever was drawn before."""
    _, axes = new_figure(1, 1, width=4, height=3)
    axis = axes[0, 0]
    axis.plot([0, 1], [level, level])
    mark_zero(axis, level, largest)
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "log"
    assert [label.get_text() for label in axis.get_yticklabels()] == labels
    assert axis.get_yticks()[0] == level
    assert (level / low, high / largest) == pytest.approx(2 * ((largest / level) ** 0.05,))
