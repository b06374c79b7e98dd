"""Colours, markers and line styles tell arms apart, for colour-blind readers too."""

from __future__ import annotations

from typing import Any

import pytest

from spectral_conditioning.results.figure_style import PALETTE, lambda_colours, style

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
