"""The figure of a swept configuration value: every run, at its value, each arm's best ringed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.results import sweep_figure
from spectral_conditioning.results.compare import compare

from .figure_checks import assert_nothing_overlaps, texts_of

Write = Callable[..., Path]


def swept(write: Write, runs: Path, values: list[Any], lambdas: list[float], key: str = "lr") -> Any:
    """A sweep over optim.<key>: seeds 0 and 1, accuracy falling with λ; λ = 10 diverges at the last value with seed 1."""
    for place, value in enumerate(values):
        for lam in lambdas:
            for seed in (0, 1):
                failed = lam == 10 and seed == 1 and place == len(values) - 1
                write(
                    None if failed else 0.9 - 0.01 * place - lam / 1000 + seed / 100, seed=seed, lam=lam,
                    name=f"{place}-{lam}-{seed}", hashes__pair=f"p{value}", config={"optim": {key: value}},
                    **({"status": "diverged", "diverged_at": 50} if failed else {}),
                )  # fmt: skip
    (sweep,) = compare([runs]).sweeps
    return sweep


def test_sweep_is_drawn_over_a_log_axis_with_every_run(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path
) -> None:
    sweep = swept(write, runs, [1e-4, 1e-3, 1e-2], [0.0, 1.0, 10.0])
    sweep_figure.plot_sweep(sweep, tmp_path / "x.png")
    (figure,) = drawn
    (axis,) = figure.axes
    assert (axis.get_xscale(), axis.get_xlabel()) == ("log", "optim.lr (log scale)")
    assert axis.get_ylabel() == "val/accuracy (%), higher is better"
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.0001", "0.001", "0.01"]
    rings = [line for line in axis.lines if line.get_markersize() == 13]
    assert [float(ring.get_xdata()[0]) for ring in rings] == [1e-4, 1e-4, 1e-4]
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert [float(cross.get_xdata()[0]) for cross in crosses] == [1e-2]
    (bottom, top), (left, right) = axis.get_ylim(), axis.get_xlim()
    for row in sweep.rows:
        for value, arm in zip(sweep.values, row.at, strict=True):
            assert left < value < right
            assert arm is not None
            assert all(bottom < seen < top for seen in arm.values)
    lines = [line for line in axis.lines if len(line.get_xdata()) == 3]
    assert len({line.get_color() for line in lines}) == len(sweep.rows) == 3
    assert list(lines[0].get_ydata()) == pytest.approx([90.5, 89.5, 88.5])
    assert texts_of(figure)[:3] == [row.label for row in sweep.rows]
    assert_nothing_overlaps(figure)


def test_labels_of_a_narrow_range_are_the_swept_values_alone(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path
) -> None:
    sweep_figure.plot_sweep(swept(write, runs, [3e-4, 1e-3, 3e-3], [0.0, 1.0]), tmp_path / "x.png")
    (axis,) = drawn[0].axes
    labels = [label.get_text() for minor in (False, True) for label in axis.get_xticklabels(minor=minor)]
    assert [text for text in labels if text] == ["0.0003", "0.001", "0.003"]


def test_sweep_over_words_has_a_place_for_each(write: Write, runs: Path, drawn: list[Any], tmp_path: Path) -> None:
    sweep_figure.plot_sweep(swept(write, runs, ["adamw", "sgd"], [0.0, 1.0], key="name"), tmp_path / "x.png")
    (axis,) = drawn[0].axes
    assert axis.get_xscale() == "linear"
    assert [label.get_text() for label in axis.get_xticklabels()] == ["adamw", "sgd"]


def test_sweep_of_many_arms_is_spread_over_figures(write: Write, runs: Path, drawn: list[Any], tmp_path: Path) -> None:
    sweep = swept(write, runs, [1e-4, 1e-3], [float(lam) for lam in range(9)])
    paths = sweep_figure.plot_sweep(sweep, tmp_path / "x.png")
    assert [path.name for path in paths] == ["x.png", "x-2.png"]
    shown = {text for figure in drawn for text in texts_of(figure)}
    assert {row.label for row in sweep.rows} <= shown
    for figure in drawn:
        assert "baseline" in texts_of(figure)
        assert_nothing_overlaps(figure)
