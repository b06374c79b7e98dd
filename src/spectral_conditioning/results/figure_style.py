"""The look of every figure: a palette that colour-blind readers can tell apart, markers, sizes, and saving as PNG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectral_conditioning.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from spectral_conditioning.results.curves import ArmCurve

# Okabe and Ito (2008), without yellow, which is too faint on white; black is the baseline's.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F3C8D")
BASELINE_COLOUR = "#000000"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES = ("-", "--", "-.", ":")
DPI = 150
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}


def style(index: int) -> dict[str, Any]:
    """Colour, marker and line of the index-th series; after the palette's end another line style tells them apart."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index // len(PALETTE) % len(LINES)],
    }


def lambda_colours(values: Sequence[float]) -> dict[float, Any]:
    """Return a colour for each λ, dark to light with rising λ; light yellow, too faint on white, is left out."""
    from matplotlib import colormaps

    ordered = sorted(set(values))
    shades = colormaps["viridis"]
    return {value: shades(0.88 * index / max(1, len(ordered) - 1)) for index, value in enumerate(ordered)}


def new_figure(rows: int, columns: int, *, width: float, height: float, **kwargs: Any) -> tuple[Figure, Any]:
    """Return a figure of rows × columns axes (always a 2-d array), laid out so that nothing overlaps."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **kwargs)
    return figure, axes


def draw_curve(axis: Any, lines: ArmCurve, *, colour: Any, line: str = "-") -> None:
    """Draw one arm: its mean bold, each seed thin, seeds that failed (and are in no mean) dotted."""
    if lines.learned:
        # One line with gaps: hundreds of seeds are drawn many times faster so.
        gap = (float("nan"), float("nan"))
        joined = [point for points in lines.learned for point in (*points, gap)]
        axis.plot(*zip(*joined, strict=True), color=colour, linewidth=0.6, alpha=0.35, linestyle=line)
    for points in lines.failed:
        axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.0, alpha=0.9, linestyle=":")
    if lines.mean:
        axis.plot(*zip(*lines.mean, strict=True), color=colour, linewidth=1.7, linestyle=line)


def curve_handle(colour: Any, label: str, line: Any = "-") -> Any:
    """A legend entry for `draw_curve`."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=label, linestyle=line, linewidth=1.7)


def curve_key(curves: Iterable[ArmCurve]) -> str:
    """Say what the lines of `draw_curve` mean, as far as they occur."""
    curves = list(curves)
    parts = ["bold: mean over seeds", "thin: each seed"] if any(len(each.learned) > 1 for each in curves) else []
    if any(each.failed for each in curves):
        parts.append("dotted: diverged or at chance, in no mean")
    return f"\n({'; '.join(parts)})" if parts else ""


def legend_below(figure: Figure, handles: Iterable[Any]) -> None:
    """Put one legend for all panels under the figure, in as many columns as its longest label allows."""
    handles = list(handles)
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    room = int(figure.get_figwidth() * 14 / (longest + 6))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=max(1, min(room, len(handles), 6)), frameon=False, fontsize=8
    )


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG. Raises RecordError when the folder cannot be written to."""
    import matplotlib

    try:
        with matplotlib.rc_context(_SETTINGS):
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}") from error
    return path
