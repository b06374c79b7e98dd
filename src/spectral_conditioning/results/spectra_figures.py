"""Spectra through training, as in the paper's figures: σ_min(W), κ(W) and κ(J) over steps for every arm.

They come from log lines with split `spectra`, whose keys are `<quantity>` or `<quantity>/<role>`, e.g. `sigma_min/q`,
`kappa_w/k`, `kappa_j`; each value is a mean over layers. The paper's three stand first, beside the saturation of attention,
without which a low κ(J) cannot be read; quantities not known here come last, under their own names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.results.curve_lines import Drawn, curve_handle, curve_key, draw_curves, step_axis
from spectral_conditioning.results.curves import ArmCurve, Logs, arm_curve
from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    heading,
    lambda_colours,
    legend_below,
    new_figure,
    save,
)
from spectral_conditioning.results.lambda_curve import in_sigma, lambda_series
from spectral_conditioning.results.log_axis import mark_zero, notable, zero_level
from spectral_conditioning.results.summary import Arm, Table
from spectral_conditioning.results.training_curves import MOST_IN_ONE_PANEL, arm_looks

SPLIT = "spectra"
_NOT_QUANTITIES = frozenset(["step", "split", "epoch"])
_ROLES = ("q", "k", "v", "")
_COLUMNS, _ROWS = 3, 3
# Values that span less than this factor are read more easily on a linear axis.
_LOG_SPAN = 10.0


@dataclass(frozen=True)
class Quantity:
    """How a logged quantity is shown: title (`{}` stands for `_Q`, `_K`, `_V`), y axis, row, and limits where it has some."""

    title: str
    label: str
    row: int
    limits: tuple[float, float] | None = None
    threshold: tuple[float, str] | None = None


_RATIO = "σ_max / σ_min"
QUANTITIES = {
    "sigma_min": Quantity("σ_min(W{})", "smallest singular value", 0),
    "kappa_w": Quantity("κ(W{})", _RATIO, 1),
    "kappa": Quantity("κ(W{})", _RATIO, 1),
    "kappa_j": Quantity("κ(J{})", f"{_RATIO}, one head", 2),
    "attention_entropy": Quantity("attention entropy", "fraction of log N", 2, limits=(-0.03, 1.03)),
    "attention_sensitivity": Quantity(
        "softmax sensitivity", "1: flat attention", 2, threshold=(SENSITIVITY_LIMIT, "saturated below")
    ),
    "attention_self_weight": Quantity("attention to itself", "share of a row", 3, limits=(-0.03, 1.03)),
    "sigma_max": Quantity("σ_max(W{})", "largest singular value", 4),
    "kappa_head": Quantity("κ per head of W{}", _RATIO, 5),
    "norm_j": Quantity("‖J{}‖", "largest σ, one head", 6),
}
Look = tuple[Arm, Any, str]


def spectra_names(arms: list[Arm], logs: Logs) -> list[str]:
    """Return the logged spectra keys of all arms: by quantity, then by role."""
    found = {
        key
        for arm in arms
        for run in arm.runs
        for line in logs(run)
        if line.get("split") == SPLIT
        for key, value in line.items()
        if key not in _NOT_QUANTITIES and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return sorted(found, key=_order)


def plot_spectra(table: Table, path: Path, logs: Logs) -> list[Path]:
    """Draw a panel for each quantity and role, at most nine a figure; [] when no run logged spectra.

    Further panels go to `<path>-2.png` and so on. So do, where there are too many arms for one panel, the series of λ, the
    baseline in each.
    """
    rows = panel_rows(spectra_names(table.all_arms, logs))
    pages = [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]
    drawings = [(series, looks, page) for series, looks in _series_looks(table) for page in pages]
    return [
        _draw(table, series, page, looks, path if not index else path.with_stem(f"{path.stem}-{index + 1}"), logs)
        for index, (series, looks, page) in enumerate(drawings)
    ]


def panel_rows(names: list[str]) -> list[list[str]]:
    """Return the keys by row of panels: roles side by side, short rows joined as long as they fit."""
    rows: list[list[str]] = []
    ranks: list[int] = []
    for name in names:
        rank = _order(name)[0]
        if rows and ranks[-1] == rank and len(rows[-1]) < _COLUMNS:
            rows[-1].append(name)
            continue
        rows.append([name])
        ranks.append(rank)
    joined: list[list[str]] = []
    for row in rows:
        if joined and len(joined[-1]) + len(row) <= _COLUMNS:
            joined[-1] += row
        else:
            joined.append(row)
    return joined


def _series_looks(table: Table) -> list[tuple[str, list[Look]]]:
    if len(table.arms) <= MOST_IN_ONE_PANEL:
        return [("", arm_looks(table))]
    colours = lambda_colours([arm.runs[0].lam for arm in table.arms])
    base: list[Look] = [(table.baseline, BASELINE_COLOUR, "--")] if table.baseline else []
    return [
        (f", {series}{in_sigma(arms)}", [*base, *((arm, colours[arm.runs[0].lam], "-") for arm in arms)])
        for series, arms in lambda_series(table).items()
    ]


def _draw(table: Table, series: str, rows: list[list[str]], looks: list[Look], path: Path, logs: Logs) -> Path:
    columns = max(len(row) for row in rows)
    figure, axes = new_figure(len(rows), columns, width=max(6.5, 3.4 * columns), height=2.5 * len(rows) + 1.0)
    drawn: list[list[ArmCurve]] = []
    for axis_row, row in zip(axes, rows, strict=True):
        for axis, name in zip(axis_row, row, strict=False):
            drawn.append(_panel(axis, name, looks, logs))
        for axis in axis_row[len(row) :]:
            axis.set_visible(False)
    key = curve_key(curves for panel in drawn for curves in panel)
    heading(figure, f"{table.title}{series}: through training, mean over layers, W with its correction{key}")
    handles = [
        curve_handle(colour, arm.label, line, curves)
        for (arm, colour, line), curves in zip(looks, zip(*drawn, strict=True), strict=True)
        if not all(each.empty for each in curves)
    ]
    legend_below(figure, handles)
    return save(figure, path)


def _panel(axis: Any, name: str, looks: list[Look], logs: Logs) -> list[ArmCurve]:
    """Draw one quantity of every arm and return the curves, one for each arm."""
    # One seed's condition number may be decades above the others', and would be their mean.
    arms: list[Drawn] = [
        (arm_curve(arm, f"{SPLIT}/{name}", logs, average="median"), colour, line) for arm, colour, line in looks
    ]
    values = [value for curves, _, _ in arms for points in [*curves.learned, *curves.failed] for _, value in points]
    quantity = QUANTITIES.get(_split(name)[0])
    if quantity and quantity.limits:
        draw_curves(axis, arms)
        axis.set_ylim(*quantity.limits)
    else:
        _draw_scaled(axis, arms, values, quantity.threshold if quantity else None)
    axis.set_title(title(name), fontsize=10)
    axis.set_ylabel(quantity.label if quantity else "")
    step_axis(axis)
    return [curves for curves, _, _ in arms]


def _draw_scaled(axis: Any, arms: list[Drawn], values: list[float], threshold: tuple[float, str] | None) -> None:
    """Draw on a logarithmic axis where the values are far apart, with what is as good as 0 lowest.

    The threshold is drawn, and counts as a value, where one of them is below it.
    """
    if threshold is not None and any(value < threshold[0] for value in values):
        _draw_threshold(axis, *threshold)
        values = [*values, threshold[0]]
    shown, level = notable(values), zero_level(values)
    if not shown or min(values) < 0 or max(shown) <= _LOG_SPAN * min(shown):
        draw_curves(axis, arms)
    elif level is None:
        draw_curves(axis, arms)
        axis.set_yscale("log")
    else:
        draw_curves(axis, [(curves.at_least(level), colour, line) for curves, colour, line in arms])
        mark_zero(axis, level, max(shown))


def _draw_threshold(axis: Any, value: float, text: str) -> None:
    axis.axhline(value, color="#666666", linestyle=":", linewidth=1)
    axis.annotate(
        f"{text} {value:g}", (1, value), xycoords=("axes fraction", "data"), xytext=(-2, -3), textcoords="offset points",
        ha="right", va="top", color="#444444", fontsize=8,
    )  # fmt: skip


def title(name: str) -> str:
    """`kappa_w/q` → `κ(W_Q)`; names that are not known stay as they are."""
    quantity, role = _split(name)
    known = QUANTITIES.get(quantity)
    if known is None or (role and "{}" not in known.title):
        return name
    return known.title.format(f"_{role.upper()}" if role else "")


def _split(name: str) -> tuple[str, str]:
    quantity, _, role = name.partition("/")
    return quantity, role


def _order(name: str) -> tuple[Any, ...]:
    """Rank of a key's row, then its place in the row."""
    quantity, role = _split(name)
    names = list(QUANTITIES)
    known = quantity in QUANTITIES
    rank = QUANTITIES[quantity].row if known else len(names)
    place = names.index(quantity) if known else len(names)
    return rank, place, quantity, _ROLES.index(role) if role in _ROLES else len(_ROLES), role
