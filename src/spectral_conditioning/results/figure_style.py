"""The look of every figure: a palette that colour-blind readers can tell apart, markers, sizes, and saving as PNG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectral_conditioning.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008), without yellow, which is too faint on white; black is the baseline's.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F3C8D")
BASELINE_COLOUR = "#000000"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES = ("-", "--", "-.", ":")
DPI = 150
# The part of viridis that λ is drawn in.
_SHADES = (0.2, 0.88)
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
    """Return a colour for each λ, dark to light with rising λ.

    The ends of the scale are left out: near black, which is the baseline's, and light yellow, too faint on white.
    """
    from matplotlib import colormaps

    ordered = sorted(set(values))
    first, last = _SHADES
    step = (last - first) / max(1, len(ordered) - 1)
    return {value: colormaps["viridis"](first + step * index) for index, value in enumerate(ordered)}


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


def heading(figure: Figure, text: str, *, size: int = 10) -> None:
    """Write the figure's heading; a line that is too long for the figure goes on below, broken between words."""
    room = int(figure.get_figwidth() * 72 / (0.56 * size))
    lines = [textwrap.wrap(line, room, break_on_hyphens=False) for line in text.splitlines()]
    figure.suptitle("\n".join(part for parts in lines for part in parts), fontsize=size)


def legend_below(figure: Figure, handles: Iterable[Any]) -> None:
    """Put one legend for all panels under the figure, in as many columns as its longest label allows."""
    handles = list(handles)
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    room = int(figure.get_figwidth() * 14 / (longest + 8))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=max(1, min(room, len(handles), 6)), frameon=False, fontsize=8,
        handlelength=3.2,
    )  # fmt: skip


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG. Raises RecordError when the folder cannot be written to."""
    import matplotlib

    canvas: Any = figure.canvas
    figure.set_dpi(DPI)
    try:
        with matplotlib.rc_context(_SETTINGS):
            # savefig would draw twice, the first time for the layout.
            canvas.print_png(path, metadata={"Software": None})
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}") from error
    return path
