"""Marks of the whole figures: single evaluations, failed arms, chance, and values that are as good as 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.results import lambda_curve, spectra_figures, sweep_figure, training_curves
from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.curves import Logs
from spectral_conditioning.results.summary import Table

from .figure_checks import assert_nothing_overlaps, texts_of

Write = Callable[..., Path]


def entries(figure: Any) -> dict[str, tuple[str, str, str]]:
    """(line, marker, face) of every entry of the legend, by its text."""
    handles = figure.legends[0].legend_handles
    return {
        text: (handle.get_linestyle(), handle.get_marker(), handle.get_markerfacecolor())
        for text, handle in zip(texts_of(figure), handles, strict=True)
    }


def seed_dots(axis: Any) -> list[Any]:
    return [line for line in axis.lines if line.get_linestyle() == "None" and line.get_marker() != "_"]


@pytest.fixture
def failing(write: Write, runs: Path, make_settings: Callable[..., dict[str, Any]]) -> Table:
    """A baseline that learns, evaluated once, λ = 10 at chance in both seeds, and polar, diverged in both."""
    for seed in (0, 1):
        log = [{"step": step, "split": "train", "loss": 0.7} for step in (100, 200)]
        write(0.8, seed=seed, log=[*log, {"step": 200, "split": "val", "accuracy": 0.8}])
        write(0.11, seed=seed, lam=10.0, log=[*log, {"step": 200, "split": "val", "accuracy": 0.11}])
        polar = make_settings("polar", lam=1.0)
        write(None, seed=seed, conditioning=polar, status="diverged", diverged_at=50)
    return compare([runs]).tables[0]


def test_one_evaluation_is_seen_in_the_training_curves(failing: Table, drawn: list[Any], tmp_path: Path) -> None:
    training_curves.plot_training_curves(failing, tmp_path / "x.png", Logs())
    (figure,) = drawn
    loss, accuracy = figure.axes
    assert [(line.get_markerfacecolor(), float(line.get_ydata()[0])) for line in seed_dots(accuracy)] == [
        ("#000000", 80.0), ("#000000", 80.0), ("white", pytest.approx(11.0)), ("white", pytest.approx(11.0)),
    ]  # fmt: skip
    assert seed_dots(loss) == []
    assert entries(figure)["identity λ=10 (full, qkv)"][0] == ":"
    assert entries(figure)["baseline"][0] == "-"
    assert_nothing_overlaps(figure)


def test_failed_series_look_in_the_legend_as_they_are_drawn(failing: Table, drawn: list[Any], tmp_path: Path) -> None:
    lambda_curve.plot_lambda_curve(failing, tmp_path / "x.png")
    found = entries(drawn[0])
    assert found["identity (full, qkv)"] == ("None", "o", "white")
    assert found["polar (full, qkv)"][:2] == ("None", "x")
    assert found["baseline (λ = 0; line: mean, band: ± std)"] == ("--", "o", "#000000")


def test_baseline_that_failed_promises_no_line(write: Write, runs: Path, drawn: list[Any], tmp_path: Path) -> None:
    write(0.1)
    write(0.9, lam=1.0)
    write(0.8, lam=10.0)
    lambda_curve.plot_lambda_curve(compare([runs]).tables[0], tmp_path / "x.png")
    found = entries(drawn[0])
    assert found["baseline (λ = 0)"] == ("None", "o", "white")
    assert found["identity (full, qkv)"][:2] == ("-", "o")


def test_failed_arm_of_a_sweep_looks_in_the_legend_as_it_is_drawn(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path
) -> None:
    for rate in (1e-3, 1e-2):
        for lam, value in ((0.0, 0.9), (1.0, 0.8), (10.0, 0.1)):
            write(value, lam=lam, name=f"{rate}-{lam}", hashes__pair=f"p{rate}", config={"optim": {"lr": rate}})
    (sweep,) = compare([runs]).sweeps
    sweep_figure.plot_sweep(sweep, tmp_path / "x.png")
    found = entries(drawn[0])
    assert found["identity λ=10 (full, qkv)"] == ("None", "s", "white")
    assert found["identity λ=1 (full, qkv)"][:2] == ("-", "o")


def test_seeds_of_equal_value_share_a_larger_dot(write: Write, runs: Path, drawn: list[Any], tmp_path: Path) -> None:
    for seed, value in enumerate((0.9, 0.9, 0.8, 0.9)):
        write(0.85, seed=seed)
        write(value, seed=seed, lam=1.0)
    lambda_curve.plot_lambda_curve(compare([runs]).tables[0], tmp_path / "x.png")
    (axis,) = drawn[0].axes
    area = {float(dot.get_ydata()[0]): dot.get_markersize() ** 2 for dot in seed_dots(axis) if dot.get_xdata()[0] == 1}
    assert area[90.0] == pytest.approx(3 * area[80.0])
    assert "larger: seeds of equal value" in texts_of(drawn[0])
    assert_nothing_overlaps(drawn[0])


def test_chance_is_written_where_no_dot_can_be(failing: Table, drawn: list[Any], tmp_path: Path) -> None:
    lambda_curve.plot_lambda_curve(failing, tmp_path / "x.png")
    (figure,) = drawn
    assert_nothing_overlaps(figure)
    renderer = figure.canvas.get_renderer()
    labelled = 0
    for axis in figure.axes:
        for text in (text for text in axis.texts if text.get_text() == "chance"):
            box = text.get_window_extent(renderer)
            assert box.x0 > axis.bbox.x1
            assert (box.y0 + box.y1) / 2 == pytest.approx(axis.transData.transform((0, 10.0))[1], abs=2)
            labelled += 1
    assert labelled > 0


def spectra(write: Write, runs: Path, key: str, baseline: list[float], conditioned: list[float]) -> Table:
    for lam, values in ((0.0, baseline), (10.0, conditioned)):
        log = [{"step": 100 * step, "split": "spectra", key: value} for step, value in enumerate(values)]
        write(0.9 - lam / 1000, lam=lam, log=log)
    return compare([runs]).tables[0]


@pytest.mark.parametrize("nothing", [0.0, 1e-93])
def test_norm_that_is_as_good_as_zero_stretches_no_axis(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path, nothing: float
) -> None:
    table = spectra(write, runs, "norm_j/q", [20.0, 30.0], [nothing, 0.5])
    spectra_figures.plot_spectra(table, tmp_path / "x.png", Logs())
    axis = drawn[0].axes[0]
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "log"
    assert 1e-3 < low < 1e-2 < 30 < high < 100
    assert (axis.get_yticks()[0], axis.get_yticklabels()[0].get_text()) == (1e-2, "≈ 0")
    assert [float(y) for line in axis.lines for y in line.get_ydata() if y < 0.1] == [1e-2, 1e-2]  # seed and mean
    assert_nothing_overlaps(drawn[0])


@pytest.mark.parametrize(
    ("values", "scale", "zero"),
    [
        ([0.0, 0.0], "log", True),
        ([1e-20, 1e-20], "log", True),
        ([1e-6, 2e-6], "log", False),
        ([0.0025, 0.002], "log", False),
        ([0.9, 0.8], "linear", False),
    ],
)
def test_limit_of_sensitivity_is_in_the_panel_where_a_value_is_below(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path, values: list[float], scale: str, zero: bool
) -> None:
    spectra_figures.plot_spectra(
        spectra(write, runs, "attention_sensitivity", [0.9, 0.7], values), tmp_path / "x.png", Logs()
    )
    axis = drawn[0].axes[0]
    low, high = axis.get_ylim()
    below = min(values) < SENSITIVITY_LIMIT
    assert axis.get_yscale() == scale
    assert [text.get_text() for text in axis.texts] == ["saturated below 0.003"] * below
    assert not below or low < SENSITIVITY_LIMIT < high
    assert low > 1e-8
    assert ("≈ 0" in [label.get_text() for label in axis.get_yticklabels()]) is zero


def test_sensitivity_of_zero_everywhere_is_shown_below_its_limit(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path
) -> None:
    table = spectra(write, runs, "attention_sensitivity", [0.0, 0.0], [0.0, 0.0])
    spectra_figures.plot_spectra(table, tmp_path / "x.png", Logs())
    axis = drawn[0].axes[0]
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "linear"
    assert low < 0 < SENSITIVITY_LIMIT < high < 0.01
