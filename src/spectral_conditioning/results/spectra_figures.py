"""Spectra through training, as in the paper's figures: σ_min(W), κ(W) and κ(J) over steps for every arm.

They come from log lines with split `spectra`, whose keys are `<quantity>` or `<quantity>/<role>`, e.g. `sigma_min/q`,
`kappa_w/k`, `kappa_j`; each value is a mean over layers. Quantities not known here are drawn under their own names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spectral_conditioning.results.curves import ArmCurve, Logs, arm_curve
from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    curve_handle,
    curve_key,
    draw_curve,
    lambda_colours,
    legend_below,
    new_figure,
    save,
)
from spectral_conditioning.results.lambda_curve import lambda_series
from spectral_conditioning.results.summary import Arm, Table
from spectral_conditioning.results.training_curves import MOST_IN_ONE_PANEL, arm_looks

SPLIT = "spectra"
_NOT_QUANTITIES = frozenset(["step", "split", "epoch"])
_QUANTITIES = ("sigma_min", "sigma_max", "kappa", "kappa_w", "kappa_j")
_ROLES = ("q", "k", "v", "")
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
    """Draw one row for each quantity and one column for each role; [] when no run logged spectra.

    Too many arms for one panel go to one figure for each series of λ, `<path>-2.png` and so on, the baseline in each.
    """
    names = spectra_names(table.all_arms, logs)
    if not names:
        return []
    if len(table.arms) <= MOST_IN_ONE_PANEL:
        return [_draw(table, "", names, arm_looks(table), path, logs)]
    colours = lambda_colours([arm.runs[0].lam for arm in table.arms])
    base: list[Look] = [(table.baseline, BASELINE_COLOUR, "--")] if table.baseline else []
    return [
        _draw(
            table, f", {series}", names, [*base, *((arm, colours[arm.runs[0].lam], "-") for arm in arms)],
            path if not index else path.with_stem(f"{path.stem}-{index + 1}"), logs,
        )
        for index, (series, arms) in enumerate(lambda_series(table).items())
    ]  # fmt: skip


def _draw(table: Table, series: str, names: list[str], looks: list[Look], path: Path, logs: Logs) -> Path:
    rows: dict[str, list[str]] = {}
    for name in names:
        rows.setdefault(_split(name)[0], []).append(name)
    columns = max(len(row) for row in rows.values())
    figure, axes = new_figure(len(rows), columns, width=max(6.5, 3.4 * columns), height=2.4 * len(rows) + 1.0)
    drawn: list[ArmCurve] = []
    for axis_row, row in zip(axes, rows.values(), strict=True):
        for axis, name in zip(axis_row, row, strict=False):
            drawn += _panel(axis, name, looks, logs)
        for axis in axis_row[len(row) :]:
            axis.set_visible(False)
    figure.suptitle(f"{table.title}{series}: spectra through training, mean over layers{curve_key(drawn)}", fontsize=10)
    legend_below(figure, [curve_handle(colour, arm.label, line) for arm, colour, line in looks])
    return save(figure, path)


def _panel(axis: Any, name: str, looks: list[Look], logs: Logs) -> list[ArmCurve]:
    curves = [(arm_curve(arm, f"{SPLIT}/{name}", logs), colour, line) for arm, colour, line in looks]
    for lines, colour, line in curves:
        draw_curve(axis, lines, colour=colour, line=line)
    values = [value for lines, _, _ in curves for points in [*lines.learned, *lines.failed] for _, value in points]
    if values and min(values) > 0:
        axis.set_yscale("log")
    axis.set_title(title(name), fontsize=10)
    axis.set_xlabel("optimizer step")
    return [lines for lines, _, _ in curves]


def title(name: str) -> str:
    """`kappa_w/q` → `κ(W_Q)`; names that are not known stay as they are."""
    quantity, role = _split(name)
    subject = f"_{role.upper()}" if role else ""
    return {
        "sigma_min": f"σ_min(W{subject})",
        "sigma_max": f"σ_max(W{subject})",
        "kappa": f"κ(W{subject})",
        "kappa_w": f"κ(W{subject})",
        "kappa_j": f"κ(J{subject})",
    }.get(quantity, name)


def _split(name: str) -> tuple[str, str]:
    quantity, _, role = name.partition("/")
    return quantity, role


def _order(name: str) -> tuple[Any, ...]:
    quantity, role = _split(name)
    rank = _QUANTITIES.index(quantity) if quantity in _QUANTITIES else len(_QUANTITIES)
    return rank, quantity, _ROLES.index(role) if role in _ROLES else len(_ROLES), role
