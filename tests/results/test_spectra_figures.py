"""Figures of spectra through training: panels by quantity and role, titles, units, and one figure a series of many arms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.results import spectra_figures
from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.curves import Logs
from spectral_conditioning.results.summary import Table

from .figure_checks import assert_nothing_overlaps, texts_of

Write = Callable[..., Path]


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


def test_rows_of_panels_hold_roles_side_by_side_and_lose_none() -> None:
    rows = spectra_figures.panel_rows(["kappa_w/q", "kappa_w/k", "kappa_j", "norm_j/q", "x/1", "x/2", "x/3", "x/4"])
    assert rows == [["kappa_w/q", "kappa_w/k", "kappa_j"], ["norm_j/q"], ["x/1", "x/2", "x/3"], ["x/4"]]
    assert spectra_figures.panel_rows([]) == []


def test_spectra_of_many_arms_have_a_figure_for_each_series(many: Table, drawn: list[Any], tmp_path: Path) -> None:
    paths = spectra_figures.plot_spectra(many, tmp_path / "x.png", Logs())
    assert len(paths) == len(set(paths)) == len(drawn) == 12
    assert {text for figure in drawn for text in texts_of(figure)} == {arm.label for arm in many.all_arms}


def test_unknown_spectra_are_drawn_under_their_own_names() -> None:
    assert spectra_figures.title("entropy/q") == "entropy/q"
    assert spectra_figures.title("kappa_j") == "κ(J)"
    assert spectra_figures.title("attention_entropy/q") == "attention_entropy/q"
