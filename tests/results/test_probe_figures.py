"""Figures of a probe with a layer that is saturated altogether: ‖J_Q‖ and sensitivity as good as 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spectral_conditioning.analysis.condition_number import JacobianCondition
from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.analysis.probe_records import HeadProbe, LayerProbe, ProbePoint, ProbeReport
from spectral_conditioning.analysis.saturation import LayerSaturation
from spectral_conditioning.analysis.spectra import ProjectionSpectrum
from spectral_conditioning.results.figure_style import BASELINE_COLOUR
from spectral_conditioning.results.probe_figures import plot_layers, plot_saturation, plot_spectra

from .figure_checks import assert_nothing_overlaps, texts_of

TITLE = (
    "timm:vit_base_patch16_224, random initialisation (seed 0), identity on q, k and v (full), a photograph of a temple"
)
NAMES = ("blocks.0.attn", "blocks.1.attn")


def point(lam: float, norm: float, sensitivity: float) -> ProbePoint:
    """Two layers, of which the second is given the norm and the sensitivity; the first stays at 20 and 0.9."""
    layers, saturation = [], []
    for name, size, share in zip(NAMES, (20.0, norm), (0.9, sensitivity), strict=True):
        state = LayerSaturation(name, "vit", share, 0.1, 5.0, share, saturated=share < SENSITIVITY_LIMIT)
        kappa = JacobianCondition(1e5, True, 1.0, 1e-5, 4, 4, 1e-14, "rows", 4, 0.0, 0.1)
        layers.append(LayerProbe(name, "vit", state, {}, [HeadProbe(0, jacobian=kappa, norms={"q": size})]))
        saturation.append(state)
    sigma = torch.tensor([1.0 + lam, 0.1 + lam])
    spectra = [ProjectionSpectrum(name, role, sigma, sigma[None]) for name in NAMES for role in "qkv"]
    return ProbePoint(lam, None, layers, spectra, saturation, {}, None)


@pytest.mark.parametrize("nothing", [0.0, 1e-93])
def test_saturation_marks_zero_and_points_beyond_it(drawn: list[Any], tmp_path: Path, nothing: float) -> None:
    report = ProbeReport([point(0.0, 5.0, 0.8), point(10.0, nothing, nothing)], [])
    plot_saturation(report, tmp_path / "x.png", title=TITLE)
    (figure,) = drawn
    axis = figure.axes[1]
    low, high = axis.get_ylim()
    assert axis.get_title() == "‖J_Q‖"
    assert 1e-2 < low < 0.1 < 20 < high < 100
    assert (axis.get_yticks()[0], axis.get_yticklabels()[0].get_text()) == (0.1, "≈ 0")
    assert [(text.get_text(), text.xy) for text in axis.texts] == [("↓", (1, 0.1))]
    faces = [line.get_markerfacecolor() for line in axis.lines if line.get_marker() == "s"]
    assert [face == "white" for face in faces] == [False, True]
    assert_nothing_overlaps(figure)
    arrow = axis.texts[0].get_window_extent(figure.canvas.get_renderer())
    assert arrow.y0 >= axis.bbox.y0 - 1


def test_norms_that_can_be_drawn_get_no_mark(drawn: list[Any], tmp_path: Path) -> None:
    report = ProbeReport([point(0.0, 5.0, 0.8), point(10.0, 1e-9, 1e-6)], [])
    plot_saturation(report, tmp_path / "x.png", title=TITLE)
    axis = drawn[0].axes[1]
    assert axis.get_yscale() == "log"
    assert list(axis.texts) == []
    assert 1e-11 < axis.get_ylim()[0] < 1e-9


@pytest.mark.parametrize("nothing", [0.0, 1e-93])
def test_layers_show_the_limit_above_a_sensitivity_of_zero(drawn: list[Any], tmp_path: Path, nothing: float) -> None:
    report = ProbeReport([point(0.0, 5.0, 0.8), point(10.0, 5.0, nothing)], [])
    plot_layers(report, tmp_path / "x.png", title=TITLE)
    (figure,) = drawn
    axis = figure.axes[8]
    low, high = axis.get_ylim()
    assert axis.get_title() == "softmax sensitivity"
    # As in module names: the first layer of blocks.0, blocks.1 is 0.
    assert list(axis.get_xticks()) == [0, 1]
    assert "first is 0" in axis.get_xlabel()
    assert list(axis.lines[0].get_xdata()) == [0, 1]
    assert 1e-5 < low < 1e-4 < SENSITIVITY_LIMIT < 0.9 < high < 10
    assert (axis.get_yticks()[0], axis.get_yticklabels()[0].get_text()) == (1e-4, "≈ 0")
    assert [float(y) for line in axis.lines for y in line.get_ydata() if y < SENSITIVITY_LIMIT] == [1e-4]
    assert_nothing_overlaps(figure)


def test_plain_model_is_black_and_no_lambda_is(drawn: list[Any], tmp_path: Path) -> None:
    report = ProbeReport([point(lam, 5.0, 0.8) for lam in (0.0, 0.1, 10.0)], [])
    plot_spectra(report, tmp_path / "x.png", title=TITLE)
    (figure,) = drawn
    assert texts_of(figure) == ["plain (λ = 0)", "λ = 0.1", "λ = 10"]
    plain, lowest, _ = (line.get_color() for line in figure.axes[0].lines)
    assert plain == BASELINE_COLOUR
    assert lowest[2] > 0.5  # viridis at 0.2 is blue
    assert_nothing_overlaps(figure)
