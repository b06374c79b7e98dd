"""Colours, markers and line styles tell arms apart, for colour-blind readers too."""

from __future__ import annotations

from typing import Any

import pytest

from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    PALETTE,
    heading,
    lambda_colours,
    new_figure,
    style,
)

# Machado, Oliveira and Fernandes (2009), full severity, acting on linear RGB.
DEFICIENCIES = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


@pytest.mark.parametrize("deficiency", list(DEFICIENCIES))
def test_first_series_differ_for_colour_blind_readers(deficiency: str) -> None:
    """Any two of the first six colours, seen with the deficiency, differ clearly in RGB; so do the markers in shape."""
    import numpy as np
    from matplotlib.colors import to_rgb

    def seen(colour: str) -> Any:
        return np.clip(np.array(DEFICIENCIES[deficiency]) @ np.array(to_rgb(colour)) ** 2.2, 0, 1) ** (1 / 2.2)

    colours = [seen(colour) for colour in (*PALETTE[:6], "#000000", "#ffffff")]
    distances = [float(np.linalg.norm(a - b)) for i, a in enumerate(colours) for b in colours[i + 1 :]]
    assert min(distances) > 0.12
    assert len({style(index)["marker"] for index in range(6)}) == 6


def test_styles_repeat_only_after_all_combinations() -> None:
    looks = [tuple(style(index).values()) for index in range(28)]
    assert len(set(looks)) == 28


def test_lambda_shades_rise_in_lightness() -> None:
    shades = lambda_colours([10.0, 0.1, 1.0])
    lightness = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b, _ in shades.values()]
    assert list(shades) == [0.1, 1.0, 10.0]
    assert lightness == sorted(lightness)
    assert max(lightness) < 0.8


@pytest.mark.parametrize("values", [[1.0], [0.1, 10.0], [0.01, 0.1, 1.0, 10.0, 100.0]])
def test_no_shade_of_lambda_is_taken_for_the_baseline(values: list[float]) -> None:
    """The lowest λ is viridis at 0.2, so farther from black than any two palette colours must be."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    shades = list(lambda_colours(values).values())
    assert shades[0] == colormaps["viridis"](0.2)
    distances = [float(np.linalg.norm(np.array(shade[:3]) - to_rgb(BASELINE_COLOUR))) for shade in shades]
    assert min(distances) > 0.6


LONG = "cramming/small_pretrain, optim.lr=0.0003, task.model.layers=12: through training, mean over layers, W with its correction"


@pytest.mark.parametrize(("width", "size"), [(6.5, 10), (6.5, 11), (10.2, 10)])
def test_long_heading_stays_in_the_figure_and_keeps_its_words(width: float, size: int) -> None:
    key = "(bold: mean over seeds; thin: each seed; dotted: diverged or at chance, in no mean)"
    figure, _ = new_figure(1, 1, width=width, height=3)
    heading(figure, f"{LONG}\n{key}", size=size)
    figure.canvas.draw()
    box = figure._suptitle.get_window_extent(figure.canvas.get_renderer())
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    lines = figure._suptitle.get_text().splitlines()
    assert " ".join(lines) == f"{LONG} {key}"
    assert any(line.startswith("(bold") for line in lines)  # a line of the caller's stays a line
    assert figure._suptitle.get_fontsize() == size


def test_short_heading_is_one_line_at_its_size() -> None:
    figure, _ = new_figure(1, 1, width=6.5, height=3)
    heading(figure, "imagenet/small: final value over λ", size=11)
    assert figure._suptitle.get_text() == "imagenet/small: final value over λ"
    assert figure._suptitle.get_fontsize() == 11
