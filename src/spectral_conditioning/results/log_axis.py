"""Logarithmic axes on which some values are as good as 0: these are drawn at a mark of their own and take no room."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

# Beside the largest value, less than this share is 0: a saturated layer's J_Q of 1e-93 would leave the others no room.
NEGLIGIBLE = 1e-12
_MOST_TICKS = 6


def notable(values: Iterable[float]) -> list[float]:
    """Return the finite values above `NEGLIGIBLE` times the largest of them."""
    finite = [value for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    return [value for value in finite if value > NEGLIGIBLE * largest and value > 0]


def zero_level(values: Iterable[float]) -> float | None:
    """Return where a log axis shows what is as good as 0: the decade below all notable values; None when there is none."""
    values = list(values)
    shown = notable(values)
    if not shown or len(shown) == sum(map(math.isfinite, values)):
        return None
    return float(10.0 ** (math.floor(math.log10(min(shown))) - 1))


def mark_zero(axis: Any, level: float, largest: float) -> None:
    """Make the axis logarithmic from `level`, labelled as 0, to `largest`; label every decade, or every few, between them."""
    low, high = round(math.log10(level)) + 1, math.floor(math.log10(largest))
    step = max(1, math.ceil((high - low + 1) / _MOST_TICKS))
    decades = range(low, high + 1, step)
    axis.set_yscale("log")
    axis.set_yticks([level, *(10.0**decade for decade in decades)], labels=["≈ 0", *(f"$10^{{{d}}}$" for d in decades)])
    axis.tick_params(axis="y", which="minor", left=False)
    margin = (largest / level) ** axis.margins()[1]
    axis.set_ylim(level / margin, largest * margin)
