"""Figures of a probe: singular values, condition numbers and saturation by layer, and κ(J) against saturation over λ."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spectral_conditioning.analysis.probe_records import LayerProbe, ProbePoint, ProbeReport
from spectral_conditioning.analysis.saturation import SENSITIVITY_LIMIT
from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    curve_handle,
    lambda_colours,
    legend_below,
    new_figure,
    save,
    style,
)

# More columns than this would be too narrow to read; layers between first and last are then left out.
_MOST_COLUMNS = 4
_ROLES = {"q": "W_Q", "k": "W_K", "v": "W_V"}
# Norms below it are drawn at it: a saturated layer's J_Q of 1e-93 would leave the others no room.
_FLOOR = 1e-30


def plot_spectra(report: ProbeReport, path: Path, *, title: str) -> Path:
    """Draw the singular values of each stacked W + C: a row for each role, a column for each probed layer, a line for each λ."""
    names = _some([layer.name for layer in report.points[0].layers])
    colours = _colours(report)
    figure, axes = new_figure(3, len(names), width=max(6.5, 3.0 * len(names)), height=7.2, sharey="row", sharex="col")
    for row, (role, label) in zip(axes, _ROLES.items(), strict=True):
        for axis, name in zip(row, names, strict=True):
            for point in report.points:
                sigma = point.spectrum(name, role).stacked_k.clamp_min(1e-12).tolist()
                axis.plot(range(1, len(sigma) + 1), sigma, color=colours[_key(point)], linewidth=1.5)
            axis.set_yscale("log")
        row[0].set_ylabel(f"σ of {label} + C")
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name)
    for axis in axes[-1]:
        axis.set_xlabel("index")
    figure.suptitle(f"{title}: singular values of the stacked projections", fontsize=10)
    legend_below(figure, _handles(report))
    return save(figure, path)


def plot_layers(report: ProbeReport, path: Path, *, title: str) -> Path:
    """Draw κ(W + C) stacked and of the median head, κ(J), entropy and softmax sensitivity against depth, one line for each λ."""
    figure, axes = new_figure(3, 3, width=10.5, height=8.0)
    colours = _colours(report)
    order = {name: index + 1 for index, name in enumerate(dict.fromkeys(s.attention for s in report.points[0].spectra))}
    for point in report.points:
        colour = colours[_key(point)]
        for column, role in enumerate(_ROLES):
            spectra = [spectrum for spectrum in point.spectra if spectrum.role == role]
            layers = [order[spectrum.attention] for spectrum in spectra]
            for row, values in enumerate(
                ([s.kappa for s in spectra], [sorted(s.kappa_heads)[len(s.heads_Hk) // 2] for s in spectra])
            ):
                _line(axes[row][column], layers, values, colour, small=True)
        probed = [layer for layer in point.layers if layer.heads and layer.heads[0].jacobian is not None]
        _line(axes[2][0], [order[layer.name] for layer in probed], [_kappa(layer) for layer in probed], colour)
        for layer in probed:
            _beyond(axes[2][0], order[layer.name], _kappa(layer), _kappa_beyond(layer), colour)
        measured = [layer for layer in point.saturation if layer.entropy is not None]
        depth = [order[layer.name] for layer in measured]
        _line(axes[2][1], depth, [layer.entropy or 0.0 for layer in measured], colour, small=True)
        _line(axes[2][2], depth, [max(layer.sensitivity or 0.0, _FLOOR) for layer in measured], colour, small=True)
    for column, label in enumerate(_ROLES.values()):
        axes[0][column].set_title(f"κ({label} + C), stacked")
        axes[1][column].set_title(f"κ({label} + C), median head")
    for axis, label in zip(
        axes[2], ("κ(J), one head", "entropy of attention / log N", "softmax sensitivity"), strict=True
    ):
        axis.set_title(label)
        axis.set_xlabel("attention layer")
    for axis in [*axes[0], *axes[1], axes[2][0], axes[2][2]]:
        _log_scale(axis)
    axes[2][1].set_ylim(-0.05, 1.05)
    axes[2][2].axhline(SENSITIVITY_LIMIT, color="#999999", linewidth=0.8, linestyle=":")
    _whole_layers(axes, len(order))
    figure.suptitle(
        f"{title}: conditioning and saturation by layer\n"
        "(dotted: below it a layer counts as saturated; arrow: lower bound)",
        fontsize=10,
    )
    legend_below(figure, _handles(report))
    return save(figure, path)


def plot_saturation(report: ProbeReport, path: Path, *, title: str) -> Path:
    """Draw κ(J), ‖J_Q‖ and entropy over λ, one line for each probed layer; saturated layers get an open marker."""
    points = [point for point in report.points if point.lam is not None]
    panels: tuple[tuple[str, Callable[[LayerProbe], float | None], Callable[[LayerProbe], str]], ...] = (
        ("κ(J)", lambda layer: _kappa(layer) if layer.heads[0].jacobian else None, _kappa_beyond),
        ("‖J_Q‖", lambda layer: max(_query_norm(layer), _FLOOR) if layer.heads[0].norms else None,
         lambda layer: "↓" if _query_norm(layer) < _FLOOR else ""),
        ("entropy of attention / log N", lambda layer: layer.saturation.entropy if layer.saturation else None,
         lambda _: ""),
    )  # fmt: skip
    figure, axes = new_figure(1, 3, width=10.5, height=3.9)
    names = _some([layer.label for layer in points[0].layers])
    names += [points[0].control.label] if points[0].control else []
    for axis, (label, value, beyond) in zip(axes[0], panels, strict=True):
        for index, name in enumerate(names):
            layers = [next(layer for layer in point.rows if layer.label == name) for point in points]
            found = [(x, value(layer), layer) for x, layer in enumerate(layers)]
            drawn = [(x, y, layer) for x, y, layer in found if y is not None]
            look = style(index)
            axis.plot(
                [x for x, _, _ in drawn], [y for _, y, _ in drawn], color=look["color"], linestyle=look["linestyle"]
            )
            for x, y, layer in drawn:
                open_marker = layer.saturation is not None and layer.saturation.saturated
                axis.plot(x, y, marker=look["marker"], color=look["color"], markersize=7, markeredgewidth=1.6,
                          markerfacecolor="white" if open_marker else look["color"])  # fmt: skip
                _beyond(axis, x, y, beyond(layer), look["color"])
        axis.set_title(label)
        axis.set_xticks(range(len(points)), [f"{point.lam:g}" for point in points])
        axis.set_xlabel("λ")
    axes[0][0].set_yscale("log")
    axes[0][1].set_yscale("log")
    axes[0][2].set_ylim(-0.05, 1.05)
    figure.suptitle(
        f"{title}: condition number beside saturation\n"
        "(open marker: saturated, attention is close to a hard maximum; arrow: the value lies beyond)",
        fontsize=10,
    )
    legend_below(figure, [curve_handle(style(i)["color"], name, style(i)["linestyle"]) for i, name in enumerate(names)])
    return save(figure, path)


def _line(axis: Any, x: list[int], y: list[float], colour: Any, *, small: bool = False) -> None:
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    if pairs:
        axis.plot(*zip(*pairs, strict=True), color=colour, marker="o", markersize=3 if small else 6, linewidth=1.4)


def _beyond(axis: Any, x: float, y: float, arrow: str, colour: Any) -> None:
    """Put an arrow at a point that is only a bound; "" draws nothing."""
    if arrow:
        up = arrow == "↑"
        axis.annotate(arrow, (x, y), xytext=(0, 5 if up else -5), textcoords="offset points", color=colour, fontsize=11,
                      ha="center", va="bottom" if up else "top", fontweight="bold")  # fmt: skip
        axis.margins(y=0.14)


def _log_scale(axis: Any) -> None:
    """Take a logarithmic scale where the lines span more than a decade; a linear one has the plainer ticks below that."""
    values = [float(y) for line in axis.lines for y in line.get_ydata()]
    if values and max(values) > 10 * min(values):
        axis.set_yscale("log")


def _kappa(layer: LayerProbe) -> float:
    found = layer.heads[0].jacobian
    assert found is not None
    return found.kappa


def _kappa_beyond(layer: LayerProbe) -> str:
    found = layer.heads[0].jacobian
    return "↑" if found is not None and not found.exact else ""


def _query_norm(layer: LayerProbe) -> float:
    return layer.heads[0].norms["q"]


def _whole_layers(axes: Any, count: int) -> None:
    step = max(1, math.ceil(count / 8))
    for axis in axes.flat:
        axis.set_xlim(0.5, count + 0.5)
        axis.set_xticks(range(1, count + 1, step))


def _some(names: list[str]) -> list[str]:
    if len(names) <= _MOST_COLUMNS:
        return names
    last = len(names) - 1
    return [names[round(index * last / (_MOST_COLUMNS - 1))] for index in range(_MOST_COLUMNS)]


def _key(point: ProbePoint) -> float:
    return -1.0 if point.lam is None else point.lam


def _colours(report: ProbeReport) -> dict[float, Any]:
    conditioned = [_key(point) for point in report.points if _key(point) != 0]
    return {0.0: BASELINE_COLOUR, **lambda_colours(conditioned)}


def _handles(report: ProbeReport) -> list[Any]:
    colours = _colours(report)
    labels = {_key(point): "as given" if point.lam is None else f"λ = {point.lam:g}" for point in report.points}
    return [curve_handle(colours[key], "plain (λ = 0)" if key == 0 else label) for key, label in labels.items()]
