"""Curves over λ and through training, read from their drawn parts: every run, labels, and nothing on top of anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.results import lambda_curve, spectra_figures, training_curves
from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.curves import Logs
from spectral_conditioning.results.figure_style import PALETTE
from spectral_conditioning.results.summary import Table

from .figure_checks import assert_nothing_overlaps, texts_of

Write = Callable[..., Path]


def dots(axis: Any, lam: float) -> list[float]:
    """Heights of the seed dots at λ (the mean is a bar, a diverged run a cross)."""
    lines = [line for line in axis.lines if line.get_linestyle() == "None" and line.get_marker() not in ("_", "x")]
    return sorted(round(float(line.get_ydata()[0]), 6) for line in lines if line.get_xdata()[0] == lam)


def test_lambda_curve_shows_every_run(few: Table, drawn: list[Any], tmp_path: Path) -> None:
    lambda_curve.plot_lambda_curve(few, tmp_path / "x.png")
    (figure,) = drawn
    close_up, close_up_sigma, absolute, sigma = figure.axes
    assert dots(absolute, 0.0) == [90.0, 91.0, 92.0]
    assert dots(absolute, 1.0) == [91.0, 92.0, 93.0]
    assert dots(absolute, 10.0) == [8.0, 50.0]
    assert dots(sigma, 1.0) == [92.0, 93.0, 94.0]
    assert [line.get_xdata()[0] for line in absolute.lines if line.get_marker() == "x"] == [10.0]
    hollow = [line for line in absolute.lines if line.get_markerfacecolor() == "white"]
    assert [float(line.get_ydata()[0]) for line in hollow] == [8.0]
    # The mean line runs from the baseline through λ = 1 to λ = 10, where only the run that learned counts.
    means = next(line for line in absolute.lines if len(line.get_xdata()) == 3)
    assert list(means.get_xdata()) == [0.0, 1.0, 10.0]
    assert list(means.get_ydata()) == pytest.approx([91.0, 92.0, 50.0])
    low, high = close_up.get_ylim()
    assert 80 < low < 90
    assert 94 < high < 97
    assert absolute.get_xscale() == "symlog"
    assert "σ_max" in sigma.get_xlabel()
    assert "val/accuracy (%), higher is better" in (close_up.get_ylabel(), absolute.get_ylabel())
    assert close_up_sigma.get_ylim() == (low, high)
    assert {"identity (full, qkv)", "polar (full, qkv)", "diverged, in no mean"} <= set(texts_of(figure))
    assert_nothing_overlaps(figure)


def test_close_up_only_where_some_ended_far_off(write: Write, runs: Path) -> None:
    for seed in range(3):
        write(0.90 + seed / 100, seed=seed)
        write(0.91 + seed / 100, seed=seed, lam=1.0)
    assert lambda_curve.close_up_range(compare([runs]).tables[0].all_arms) is None


def test_close_up_of_a_loss_is_at_the_low_end(write: Write, runs: Path) -> None:
    loss = {"primary__name": "val/loss", "primary__mode": "min", "chance": None}
    for seed in range(3):
        write(1.0 + seed / 100, seed=seed, **loss)
        write(1.1 + seed / 100, seed=seed, lam=1.0, **loss)
    write(9.0, seed=0, lam=10.0, **loss)
    zoom = lambda_curve.close_up_range(compare([runs]).tables[0].all_arms)
    assert zoom is not None
    assert 0.9 < zoom[0] < 1.0
    assert 1.12 < zoom[1] < 1.3


def test_many_series_are_spread_over_figures_and_none_is_lost(many: Table, drawn: list[Any], tmp_path: Path) -> None:
    paths = lambda_curve.plot_lambda_curve(many, tmp_path / "x.png")
    assert [path.name for path in paths] == ["x.png", "x-2.png", "x-3.png"]
    shown = {text for figure in drawn for text in texts_of(figure)}
    assert set(lambda_curve.lambda_series(many)) <= shown
    assert len(lambda_curve.lambda_series(many)) == 12
    for figure in drawn:
        assert len([text for text in texts_of(figure) if "(full" in text or "(per_head" in text]) <= len(PALETTE)
        assert_nothing_overlaps(figure)


def test_training_curves_hold_every_arm_and_unit(few: Table, drawn: list[Any], tmp_path: Path) -> None:
    training_curves.plot_training_curves(few, tmp_path / "x.png", Logs())
    (figure,) = drawn
    loss, accuracy = figure.axes
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("training loss", "val/accuracy (%)")
    assert accuracy.get_xlabel() == "optimizer step"
    assert texts_of(figure) == [arm.label for arm in few.all_arms]
    ends = sorted(round(float(line.get_ydata()[-1]), 6) for line in accuracy.lines if line.get_linestyle() == ":")
    assert ends == [8.0, 30.0]  # at chance, and diverged
    assert "dotted: diverged or at chance" in figure._suptitle.get_text()
    assert_nothing_overlaps(figure)


def test_a_loss_that_is_the_tables_metric_is_drawn_beside_the_training_loss(write: Write, runs: Path) -> None:
    primary = {"name": "val/loss", "mode": "min", "step": 400, "weights": "raw", "rule": "last"}
    log = [{"step": step, "split": split, "loss": 2 - step / 400} for step in (200, 400) for split in ("train", "val")]
    for lam, value in ((0.0, 0.9), (1.0, 1.1)):
        write(value, lam=lam, primary={**primary, "value": value}, chance=2.0, log=log)
    table = compare([runs]).tables[0]
    assert [quantity.label for quantity in training_curves.quantities(table, Logs())] == ["training loss", "val/loss"]


def test_training_curves_of_many_arms_have_a_panel_for_each_series(
    many: Table, drawn: list[Any], tmp_path: Path
) -> None:
    training_curves.plot_training_curves(many, tmp_path / "x.png", Logs())
    (figure,) = drawn
    titles = [axis.get_title() for axis in figure.axes if axis.get_visible()]
    names = [name + lambda_curve.in_sigma(arms) for name, arms in lambda_curve.lambda_series(many).items()]
    assert sorted(titles) == sorted(2 * names)
    assert "polar (full, qkv), λ in σ_max(W)" in titles
    assert texts_of(figure) == ["baseline", "λ = 0.1", "λ = 1", "λ = 10"]
    assert_nothing_overlaps(figure)


def test_arm_has_the_colour_of_its_series_in_the_lambda_figure(
    write: Write, runs: Path, make_settings: Callable[..., dict[str, Any]], drawn: list[Any], tmp_path: Path
) -> None:
    log = [{"step": step, "split": "val", "accuracy": step / 500} for step in (0, 200)]
    write(0.9, log=log)
    for settings in (make_settings(lam=1.0), make_settings(lam=10.0), make_settings("polar", lam=1.0)):
        write(0.91, conditioning=settings, log=log)
    table = compare([runs]).tables[0]
    lambda_curve.plot_lambda_curve(table, tmp_path / "x.png")
    training_curves.plot_training_curves(table, tmp_path / "y.png", Logs())
    series, arms = ({
        text.get_text(): handle.get_color()
        for text, handle in zip(figure.legends[0].get_texts(), figure.legends[0].legend_handles, strict=True)
    } for figure in drawn)  # fmt: skip
    assert arms["identity λ=1 (full, qkv)"] == series["identity (full, qkv)"]
    assert arms["polar λ=1 (full, qkv)"] == series["polar (full, qkv)"]
    assert len(set(arms.values())) == 4


def test_legend_names_only_arms_that_logged_something(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path
) -> None:
    log = [{"step": step, "split": "spectra", "kappa_j": 5.0} for step in (0, 200)]
    curve = [{"step": step, "split": "val", "accuracy": step / 500} for step in (0, 200)]
    write(0.9, log=log + curve)
    write(0.9, lam=1.0, log=curve)
    write(0.9, lam=10.0, log=[])
    table = compare([runs]).tables[0]
    spectra_figures.plot_spectra(table, tmp_path / "x.png", Logs())
    training_curves.plot_training_curves(table, tmp_path / "y.png", Logs())
    named = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in drawn]
    assert named == [["baseline"], ["baseline", "identity λ=1 (full, qkv)"]]


def test_nothing_logged_gives_no_figure(write: Write, runs: Path, tmp_path: Path) -> None:
    write(0.9)
    write(0.91, lam=10.0)
    table = compare([runs]).tables[0]
    assert training_curves.plot_training_curves(table, tmp_path / "x.png", Logs()) == []
    assert spectra_figures.plot_spectra(table, tmp_path / "x.png", Logs()) == []
    assert list(tmp_path.glob("*.png")) == []
