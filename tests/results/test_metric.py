"""Units and directions of metrics as the tasks name them."""

from __future__ import annotations

import pytest

from spectral_conditioning.results.metric import Metric


@pytest.mark.parametrize(
    "name", ["val/accuracy", "test/accuracy", "val/bbox_mAP", "val/segm_mAP_50", "val/AP_box", "val/matthews", "val/f1"]
)
def test_fractions_are_shown_in_percent(name: str) -> None:
    metric = Metric(name, "max")
    assert (metric.shown(0.817), metric.label, metric.difference_unit) == (pytest.approx(81.7), f"{name} (%)", "points")


@pytest.mark.parametrize("name", ["val/loss", "val/perplexity", "val/mapped", "steps"])
def test_other_numbers_stay_as_they_are(name: str) -> None:
    assert Metric(name, "min").shown(3.25) == 3.25
    assert Metric(name, "min").label == name


def test_numbers_are_written_with_a_true_minus_and_no_negative_zero() -> None:
    metric = Metric("val/accuracy", "max")
    assert metric.number(-1.005, signed=True) == "−1.00"
    assert metric.number(1.25, signed=True) == "+1.25"
    assert metric.number(-0.001, signed=True) == "0.00"
    assert metric.number(None) == metric.number(float("nan")) == "–"
    assert Metric("val/loss", "min").number(0.12345) == "0.1235"
