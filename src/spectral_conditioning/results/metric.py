"""How a metric is shown: its direction, its unit and its digits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Mode = Literal["max", "min"]

# Records hold these as fractions of one; tables show them in percent, as the paper does.
FRACTIONS = frozenset(["accuracy", "acc", "top1", "top5", "f1", "matthews", "mcc", "pearson", "spearman", "average"])


def leaf(name: str) -> str:
    """Return the metric's own name without its split: `val/accuracy` → `accuracy`."""
    return name.rsplit("/", 1)[-1]


@cache
def is_fraction(name: str) -> bool:
    """True when a record holds this metric as a fraction of one."""
    own = leaf(name).lower()
    return own in FRACTIONS or own.endswith("accuracy") or re.search(r"(^|_)m?ap($|_)", own) is not None


@dataclass(frozen=True)
class Metric:
    """One primary metric, e.g. `Metric("val/accuracy", "max")`."""

    name: str
    mode: Mode

    @property
    def percent(self) -> bool:
        return is_fraction(self.name)

    @property
    def sign(self) -> int:
        """+1 when higher is better, −1 when lower is better."""
        return 1 if self.mode == "max" else -1

    @property
    def direction(self) -> str:
        return "higher is better" if self.mode == "max" else "lower is better"

    @property
    def unit(self) -> str:
        return "%" if self.percent else ""

    @property
    def difference_unit(self) -> str:
        """Differences of percentages are percentage points."""
        return "points" if self.percent else "difference"

    @property
    def digits(self) -> int:
        """Decimals shown."""
        return 2 if self.percent else 4

    @property
    def label(self) -> str:
        """The metric with its unit, for headings and axes."""
        return f"{self.name} (%)" if self.percent else self.name

    def shown(self, value: float) -> float:
        """Return the value in the unit of the table."""
        return 100.0 * value if self.percent else value

    def number(self, value: float | None, *, signed: bool = False) -> str:
        """Format a value that is already in the table's unit; `–` when there is none."""
        if value is None or not math.isfinite(value):
            return "–"
        digits = self.digits
        value = round(value, digits) + 0.0  # no negative zero
        text = f"{value:+.{digits}f}" if signed and value else f"{value:.{digits}f}"
        return text.replace("-", "−")
