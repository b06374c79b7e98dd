"""Figures of a probe: singular values, condition numbers and saturation by layer, and κ(J) against saturation over λ."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.analysis.probe_records import LayerProbe, ProbePoint, ProbeReport
from spectral_conditioning.results.curve_lines import curve_handle
from spectral_conditioning.results.figure_style import (
    BASELINE_COLOUR,
    heading,
    lambda_colours,
    legend_below,
    new_figure,
    save,
    style,
)
from spectral_conditioning.results.log_axis import mark_zero, notable, zero_level

# More columns than this would be too narrow to read; layers between first and last are then left out.
_MOST_COLUMNS = 4
_ROLES = {"q": "W_Q", "k": "W_K", "v": "W_V"}


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
    heading(figure, f"{title}\nsingular values of the stacked projections")
    legend_below(figure, _handles(report))
    return save(figure, path)


def plot_layers(report: ProbeReport, path: Path, *, title: str) -> Path:
    """Draw κ(W + C) stacked and of the median head, κ(J), entropy and softmax sensitivity against depth, one line for each λ."""
    figure, axes = new_figure(3, 3, width=10.5, height=8.0)
    order = {name: index for index, name in enumerate(dict.fromkeys(s.attention for s in report.points[0].spectra))}
    for column, (role, label) in enumerate(_ROLES.items()):
        _draw_kappa(axes[0][column], axes[1][column], report, role, order)
        axes[0][column].set_title(f"κ({label} + C), stacked")
        axes[1][column].set_title(f"κ({label} + C), median head")
    _draw_saturation(axes[2], report, order)
    for axis, label in zip(
        axes[2], ("κ(J), one head", "entropy of attention / log N", "softmax sensitivity"), strict=True
    ):
        axis.set_title(label)
        axis.set_xlabel("attention layer, the first is 0")
    _whole_layers(axes, len(order))
    heading(
        figure,
        f"{title}\nconditioning and saturation by layer\n"
        "(dotted: below it a layer counts as saturated; arrow: lower bound)",
    )
    legend_below(figure, _handles(report))
    return save(figure, path)


def _draw_kappa(stacked: Any, of_head: Any, report: ProbeReport, role: str, order: dict[str, int]) -> None:
    colours = _colours(report)
    for point in report.points:
        spectra = [spectrum for spectrum in point.spectra if spectrum.role == role]
        layers = [order[spectrum.attention] for spectrum in spectra]
        median = [sorted(spectrum.kappa_heads)[len(spectrum.heads_Hk) // 2] for spectrum in spectra]
        _line(stacked, layers, [spectrum.kappa for spectrum in spectra], colours[_key(point)], small=True)
        _line(of_head, layers, median, colours[_key(point)], small=True)
    _log_scale(stacked)
    _log_scale(of_head)


def _draw_saturation(axes: Any, report: ProbeReport, order: dict[str, int]) -> None:
    """Draw κ(J), entropy and sensitivity; a sensitivity that is as good as 0 stands at the foot of its axis."""
    colours = _colours(report)
    found = [
        layer.sensitivity or 0.0 for point in report.points for layer in point.saturation if layer.entropy is not None
    ]
    level = zero_level([*found, SENSITIVITY_LIMIT])
    for point in report.points:
        colour = colours[_key(point)]
        probed = [layer for layer in point.layers if layer.heads and layer.heads[0].jacobian is not None]
        _line(axes[0], [order[layer.name] for layer in probed], [_kappa(layer) for layer in probed], colour)
        for layer in probed:
            _beyond(axes[0], order[layer.name], _kappa(layer), _kappa_beyond(layer), colour)
        measured = [layer for layer in point.saturation if layer.entropy is not None]
        depth = [order[layer.name] for layer in measured]
        _line(axes[1], depth, [layer.entropy or 0.0 for layer in measured], colour, small=True)
        _line(axes[2], depth, [max(layer.sensitivity or 0.0, level or 0.0) for layer in measured], colour, small=True)
    _log_scale(axes[0])
    axes[1].set_ylim(-0.05, 1.05)
    if level is None:
        _log_scale(axes[2])
    else:
        mark_zero(axes[2], level, max([*found, SENSITIVITY_LIMIT]))
    axes[2].axhline(SENSITIVITY_LIMIT, color="#999999", linewidth=0.8, linestyle=":")


def plot_saturation(report: ProbeReport, path: Path, *, title: str) -> Path:
    """Draw κ(J), ‖J_Q‖ and entropy over λ, one line for each probed layer; saturated layers get an open marker."""
    from matplotlib.lines import Line2D

    points = [point for point in report.points if point.lam is not None]
    names = _some([layer.label for layer in points[0].layers])
    names += [points[0].control.label] if points[0].control else []
    rows = [layer for point in points for layer in point.rows if layer.label in names]
    norms = [_query_norm(layer) for layer in rows if layer.heads[0].norms]
    level = zero_level(norms)
    panels: tuple[tuple[str, Callable[[LayerProbe], float | None], Callable[[LayerProbe], str]], ...] = (
        ("κ(J)", lambda layer: _kappa(layer) if layer.heads[0].jacobian else None, _kappa_beyond),
        ("‖J_Q‖", lambda layer: max(_query_norm(layer), level or 0.0) if layer.heads[0].norms else None,
         lambda layer: "↓" if level is not None and _query_norm(layer) < level else ""),
        ("entropy of attention / log N", lambda layer: layer.saturation.entropy if layer.saturation else None,
         lambda _: ""),
    )  # fmt: skip
    figure, axes = new_figure(1, 3, width=10.5, height=4.1)
    for axis, (label, value, beyond) in zip(axes[0], panels, strict=True):
        for index, name in enumerate(names):
            layers = [next(layer for layer in point.rows if layer.label == name) for point in points]
            _draw_over_lambda(axis, layers, value, beyond, style(index))
        axis.set_title(label)
        axis.set_xticks(range(len(points)), [f"{point.lam:g}" for point in points])
        axis.set_xlabel("λ")
    axes[0][0].set_yscale("log")
    if level is not None:
        mark_zero(axes[0][1], level, max(norms))
    elif notable(norms):
        axes[0][1].set_yscale("log")
    axes[0][2].set_ylim(-0.05, 1.05)
    heading(
        figure,
        f"{title}\ncondition number beside saturation\n"
        "(open marker: saturated, attention is close to a hard maximum; arrow: the value lies beyond)",
    )
    legend_below(figure, [Line2D([], [], label=name, **style(index)) for index, name in enumerate(names)])
    return save(figure, path)


def _draw_over_lambda(
    axis: Any,
    layers: list[LayerProbe],
    value: Callable[[LayerProbe], float | None],
    beyond: Callable[[LayerProbe], str],
    look: dict[str, Any],
) -> None:
    """Draw one layer at every λ: a line, markers, open where the layer is saturated, and an arrow where a value is a bound."""
    drawn = [(x, y, layer) for x, layer in enumerate(layers) if (y := value(layer)) is not None]
    axis.plot([x for x, _, _ in drawn], [y for _, y, _ in drawn], color=look["color"], linestyle=look["linestyle"])
    for x, y, layer in drawn:
        open_marker = layer.saturation is not None and layer.saturation.saturated
        axis.plot(x, y, marker=look["marker"], color=look["color"], markersize=7, markeredgewidth=1.6,
                  markerfacecolor="white" if open_marker else look["color"])  # fmt: skip
        _beyond(axis, x, y, beyond(layer), look["color"])


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
        axis.margins(y=0.2)


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
        axis.set_xlim(-0.5, count - 0.5)
        axis.set_xticks(range(0, count, step))


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
