"""What the figures show, read from their drawn parts: every run, labels, and nothing on top of anything."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.results import lambda_curve, spectra_figures, sweep_figure, training_curves
from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.curves import Logs
from spectral_conditioning.results.figure_style import PALETTE
from spectral_conditioning.results.summary import Table

Write = Callable[..., Path]


def full_log(final: float, lam: float) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in (100, 200, 400):
        lines.append({"step": step, "split": "train", "loss": 2.0 - step / 300})
        lines.append({"step": step, "split": "val", "accuracy": final * step / 400})
        spectra = {f"sigma_min/{role}": 0.01 + lam for role in "qkv"} | {
            f"kappa_w/{role}": 100 / (1 + lam) for role in "qkv"
        }
        lines.append({"step": step, "split": "spectra", **spectra, "kappa_j": 1e4})
    return lines


@pytest.fixture
def few(write: Write, runs: Path, make_settings: Callable[..., dict[str, Any]]) -> Table:
    """Baseline, identity at two λ (one seed at chance, one diverged), and polar, whose λ has another unit."""
    for seed, base in enumerate((0.90, 0.92, 0.91)):
        write(base, seed=seed, log=full_log(base, 0))
        write(base + 0.01, seed=seed, lam=1.0, log=full_log(base + 0.01, 1))
        write(base + 0.02, seed=seed, conditioning=make_settings("polar", lam=1.0), log=full_log(base, 1))
    write(0.08, seed=0, lam=10.0, log=full_log(0.08, 10))
    write(0.50, seed=1, lam=10.0, log=full_log(0.50, 10))
    write(None, seed=2, lam=10.0, status="diverged", diverged_at=200, log=full_log(0.3, 10))
    return compare([runs]).tables[0]


@pytest.fixture
def many(write: Write, runs: Path, make_settings: Callable[..., dict[str, Any]]) -> Table:
    """Twelve series: more than one figure can hold."""
    write(0.9, log=full_log(0.9, 0))
    for lam in (0.1, 1.0, 10.0):
        for placement, targets in [(p, "qkv") for p in ("full", "per_head", "fused")] + [
            ("full", t) for t in ("q", "k", "v", "qk", "qv")
        ]:
            settings = make_settings(lam=lam, placement=placement, targets=list(targets))
            name = f"{placement}-{targets}-{lam}"
            write(0.9 + lam / 1000, conditioning=settings, name=name, log=full_log(0.9, lam))
    for correction in ("polar", "svd", "scaled_identity", "orthogonal"):
        write(0.91, conditioning=make_settings(correction, lam=1.0), log=full_log(0.91, 1))
    return compare([runs]).tables[0]


def dots(axis: Any, lam: float) -> list[float]:
    """Heights of the seed dots at λ (the mean is a bar, a diverged run a cross)."""
    lines = [line for line in axis.lines if line.get_linestyle() == "None" and line.get_marker() not in ("_", "x")]
    return sorted(round(float(line.get_ydata()[0]), 6) for line in lines if line.get_xdata()[0] == lam)


def texts_of(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def assert_nothing_overlaps(figure: Any) -> None:
    """Axes with their labels and titles, the heading and the legend stay apart and inside the figure."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    boxes = [axis.get_tightbbox(renderer) for axis in figure.axes if axis.get_visible()]
    boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
    boxes += [figure._suptitle.get_window_extent(renderer)]
    for index, box in enumerate(boxes):
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
        for other in boxes[index + 1 :]:
            assert (
                min(box.x1, other.x1) - max(box.x0, other.x0) < 1.5
                or min(box.y1, other.y1) - max(box.y0, other.y0) < 1.5
            )
    for axis in figure.axes:
        labels = [label.get_window_extent(renderer) for label in axis.get_xticklabels() if label.get_text()]
        labels = [box for box in labels if axis.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axis.bbox.x1 + 1]
        for left, right in itertools.pairwise(labels):
            assert left.x1 <= right.x0


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
    assert sorted(titles) == sorted(2 * list(lambda_curve.lambda_series(many)))
    assert texts_of(figure) == ["baseline", "λ = 0.1", "λ = 1", "λ = 10"]
    assert_nothing_overlaps(figure)


def test_spectra_stand_by_quantity_and_role(few: Table, drawn: list[Any], tmp_path: Path) -> None:
    spectra_figures.plot_spectra(few, tmp_path / "x.png", Logs())
    (figure,) = drawn
    titles = [axis.get_title() for axis in figure.axes if axis.get_visible()]
    assert titles == ["σ_min(W_Q)", "σ_min(W_K)", "σ_min(W_V)", "κ(W_Q)", "κ(W_K)", "κ(W_V)", "κ(J)"]
    scales = [axis.get_yscale() for axis in figure.axes if axis.get_visible()]
    assert scales == ["log"] * 6 + ["linear"]  # κ(J) is the same everywhere in these logs
    assert texts_of(figure) == [arm.label for arm in few.all_arms]
    assert_nothing_overlaps(figure)


def test_everything_a_run_logs_has_a_title_a_unit_and_a_readable_figure(
    write: Write, runs: Path, drawn: list[Any], tmp_path: Path
) -> None:
    """The paper's three and the saturation on the first figure; a saturated arm shows the limit."""
    from spectral_conditioning.training.spectra_log import KEPT

    for lam in (0.0, 10.0):
        values = {name: 1e-5 if lam and name == "attention_sensitivity" else 1.0 for name in KEPT}
        log = [{"step": step, "split": "spectra", **values} for step in (0, 200, 400)]
        write(0.9, lam=lam, log=log)
    paths = spectra_figures.plot_spectra(compare([runs]).tables[0], tmp_path / "x.png", Logs())
    assert [path.name for path in paths] == ["x.png", "x-2.png"]
    panels = [[axis for axis in figure.axes if axis.get_visible()] for figure in drawn]
    assert [[axis.get_title() for axis in page] for page in panels] == [
        [
            "σ_min(W_Q)", "σ_min(W_K)", "σ_min(W_V)", "κ(W_Q)", "κ(W_K)", "κ(W_V)",
            "κ(J)", "attention entropy", "softmax sensitivity",
        ],
        ["κ per head of W_Q", "κ per head of W_K", "κ per head of W_V", "‖J_Q‖"],
    ]  # fmt: skip
    assert all(axis.get_ylabel() and axis.get_xlabel() == "optimizer step" for page in panels for axis in page)
    sensitivity = panels[0][-1]
    assert [text.get_text() for text in sensitivity.texts] == [f"saturated below {SENSITIVITY_LIMIT:g}"]
    for figure in drawn:
        assert_nothing_overlaps(figure)


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


def test_rows_of_panels_hold_roles_side_by_side_and_lose_none() -> None:
    rows = spectra_figures.panel_rows(["kappa_w/q", "kappa_w/k", "kappa_j", "norm_j/q", "x/1", "x/2", "x/3", "x/4"])
    assert rows == [["kappa_w/q", "kappa_w/k", "kappa_j"], ["norm_j/q"], ["x/1", "x/2", "x/3"], ["x/4"]]
    assert spectra_figures.panel_rows([]) == []


def test_spectra_of_many_arms_have_a_figure_for_each_series(many: Table, drawn: list[Any], tmp_path: Path) -> None:
    paths = spectra_figures.plot_spectra(many, tmp_path / "x.png", Logs())
    assert len(paths) == len(set(paths)) == len(drawn) == 12
    assert {text for figure in drawn for text in texts_of(figure)} == {arm.label for arm in many.all_arms}


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


def test_nothing_logged_gives_no_figure(write: Write, runs: Path, tmp_path: Path) -> None:
    write(0.9)
    write(0.91, lam=10.0)
    table = compare([runs]).tables[0]
    assert training_curves.plot_training_curves(table, tmp_path / "x.png", Logs()) == []
    assert spectra_figures.plot_spectra(table, tmp_path / "x.png", Logs()) == []
    assert list(tmp_path.glob("*.png")) == []


def test_unknown_spectra_are_drawn_under_their_own_names() -> None:
    assert spectra_figures.title("entropy/q") == "entropy/q"
    assert spectra_figures.title("kappa_j") == "κ(J)"
    assert spectra_figures.title("attention_entropy/q") == "attention_entropy/q"
