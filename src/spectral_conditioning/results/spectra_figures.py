"""Spectra through training, as in the paper's figures: σ_min(W), κ(W) and κ(J) over steps for every arm.

They come from log lines with split `spectra`, whose keys are `<quantity>` or `<quantity>/<role>`, e.g. `kappa_w/q`; each is a
mean over layers. Unknown quantities are drawn under their own names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spectral_conditioning.results.curves import ArmCurve, Logs, arm_curve
from spectral_conditioning.results.figure_style import BASELINE_COLOUR, LINES, PALETTE, legend_below, new_figure, save
from spectral_conditioning.results.summary import Arm, Table
from spectral_conditioning.results.training_curves import handle

SPLIT = "spectra"
_NOT_QUANTITIES = frozenset(["step", "split", "epoch"])
_ROLE_ORDER = ("q", "k", "v", "")


def spectra_names(arms: list[Arm], logs: Logs) -> list[str]:
    """Return the logged spectra keys of all arms, in a fixed order."""
    found = {
        key
        for arm in arms
        for run in arm.runs
        for line in logs(run)
        if line.get("split") == SPLIT
        for key, value in line.items()
        if key not in _NOT_QUANTITIES and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return sorted(found, key=lambda name: (_quantity(name), _role_rank(name), name))


def plot_spectra(table: Table, path: Path, logs: Logs) -> Path | None:
    """Draw one row for each quantity and one column for each role; None when no run logged spectra."""
    names = spectra_names(table.all_arms, logs)
    if not names:
        return None
    rows: dict[str, list[str]] = {}
    for name in names:
        rows.setdefault(_quantity(name), []).append(name)
    columns = max(len(row) for row in rows.values())
    figure, axes = new_figure(len(rows), columns, width=max(6.5, 3.4 * columns), height=2.6 * len(rows) + 0.9)
    for axis_row, row in zip(axes, rows.values(), strict=True):
        for axis, name in zip(axis_row, row, strict=False):
            _panel(axis, table, name, logs)
        for axis in axis_row[len(row):]:
            axis.set_visible(False)
    figure.suptitle(f"{table.title}: spectra through training (mean over layers; bold: mean over seeds)", fontsize=11)
    legend_below(figure, [handle(colour, label, line) for _, colour, line, label in _looks(table)])
    return save(figure, path)


def _panel(axis: Any, table: Table, name: str, logs: Logs) -> None:
    drawn: list[float] = []
    for arm, colour, line, _ in _looks(table):
        lines: ArmCurve = arm_curve(arm, f"{SPLIT}/{name}", logs)
        for points in lines.seeds:
            axis.plot(*zip(*points, strict=True), color=colour, linewidth=0.6, alpha=0.35, linestyle=line)
            drawn += [value for _, value in points]
        if lines.mean:
            axis.plot(*zip(*lines.mean, strict=True), color=colour, linewidth=1.7, linestyle=line)
    axis.set_title(title(name), fontsize=10)
    axis.set_xlabel("optimizer step")
    axis.set_ylabel(f"{title(name)} (log scale)" if min(drawn) > 0 else title(name))
    if min(drawn) > 0:
        axis.set_yscale("log")


def _looks(table: Table) -> list[tuple[Arm, str, str, str]]:
    looks = [
        (arm, PALETTE[index % len(PALETTE)], LINES[index // len(PALETTE) % len(LINES)], arm.label)
        for index, arm in enumerate(table.arms)
    ]
    return looks + ([(table.baseline, BASELINE_COLOUR, "-", "baseline")] if table.baseline else [])


def title(name: str) -> str:
    """`kappa_w/q` → `κ(W_Q)`; names that are not known stay as they are."""
    quantity, role = _quantity(name), _role(name)
    subject = f"_{role.upper()}" if role else ""
    known = {
        "sigma_min": f"σ_min(W{subject})",
        "sigma_max": f"σ_max(W{subject})",
        "kappa": f"κ(W{subject})",
        "kappa_w": f"κ(W{subject})",
        "kappa_j": f"κ(J{subject})",
        "jacobian": f"κ(J{subject})",
    }
    return known.get(quantity, name)


def _quantity(name: str) -> str:
    return name.split("/", 1)[0]


def _role(name: str) -> str:
    return name.split("/", 1)[1] if "/" in name else ""


def _role_rank(name: str) -> int:
    role = _role(name)
    return _ROLE_ORDER.index(role) if role in _ROLE_ORDER else len(_ROLE_ORDER)
