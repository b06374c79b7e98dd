"""A probe for people: a table in the terminal, probe.json, and three figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectral_conditioning.analysis.probe_records import HeadProbe, LayerProbe, ProbePoint, ProbeReport, finite
from spectral_conditioning.errors import RecordError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLUMNS = (
    ("λ", "right"),
    ("layer", "left"),
    ("κ(W) stacked\nq / k / v", "right"),
    ("κ(W) of the head\nq / k / v", "right"),
    ("κ(J)", "right"),
    ("bound\nthat holds", "right"),
    ("Theorem 3.4\nas printed", "right"),
    ("entropy\n/ log N", "right"),
    ("self-\nweight", "right"),
    ("largest\nlogit", "right"),
    ("‖J_Q‖", "right"),
    ("‖∂L/∂W_Q‖", "right"),
    ("", "left"),
)
# Two tables for terminals that the whole one does not fit.
_NARROW = ((0, 1, 2, 3, 4, 5, 6), (0, 1, 4, 7, 8, 9, 10, 11, 12))


def print_report(report: ProbeReport, *, title: str, notes: Sequence[str] = ()) -> None:
    """Print one row for each λ, layer and head, and below it what has to be known to read it."""
    from rich.console import Console
    from rich.measure import Measurement

    # A file or pipe has no width of its own; rich would assume 80 and break every number.
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    whole = _table(report, title, tuple(range(len(_COLUMNS))))
    fits = Measurement.get(console, console.options.update(max_width=1000), whole).maximum <= console.width
    for view in (whole,) if fits else (_table(report, title, columns) for columns in _NARROW):
        console.print(view)
    for line in [*notes, *report.notes, *_reading(report)]:
        console.print(f"• {line}", markup=False, soft_wrap=not sys.stdout.isatty())
    _print_blocks(report, console)


def write_report(report: ProbeReport, folder: Path, *, facts: dict[str, Any]) -> list[Path]:
    """Write probe.json and the figures into `folder`; return what was written. Raises RecordError when it cannot be written."""
    from spectral_conditioning.results.probe_figures import plot_layers, plot_saturation, plot_spectra

    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "probe.json"
        path.write_text(
            json.dumps(finite(facts) | report.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise RecordError(f"cannot write the probe into {folder}: {error}") from error
    title = str(facts.get("model", ""))
    written = [path, plot_spectra(report, folder / "spectra.png", title=title)]
    written.append(plot_layers(report, folder / "layers.png", title=title))
    if len(report.points) > 1:
        written.append(plot_saturation(report, folder / "saturation.png", title=title))
    return written


def _table(report: ProbeReport, title: str, columns: Sequence[int]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index in columns:
        name, side = _COLUMNS[index]
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for point in report.points:
        first = True
        for layer in point.rows:
            for head in layer.heads:
                cells = [lam_label(point) if first else "", *_row(point, layer, head)]
                style = "bold yellow" if layer.saturation is not None and layer.saturation.saturated else None
                table.add_row(*(cells[index] for index in columns), style=style)
                first = False
        table.add_section()
    return table


def _row(point: ProbePoint, layer: LayerProbe, head: HeadProbe) -> list[str]:
    spectra = {role: point.spectrum(layer.name, role) for role in "qkv"}
    stacked = " / ".join(short(spectra[role].kappa) for role in "qkv")
    of_head = " / ".join(
        short(spectra[role].kappa_heads[head.head * len(spectra[role].heads_Hk) // _query_heads(spectra)])
        for role in "qkv"
    )
    saturation = layer.saturation
    name = "  random tokens" if layer.independent else layer.name
    return [
        name if len(layer.heads) == 1 else f"{name} head {head.head}",
        "" if layer.independent else stacked,
        "" if layer.independent else of_head,
        "none" if head.jacobian is None else _compact(head.jacobian.text),
        "" if head.valid is None or head.valid.gram is None else short(head.valid.gram),
        "" if head.published is None else short(head.published.value),
        "" if saturation is None or saturation.entropy is None else f"{saturation.entropy:.3f}",
        "" if saturation is None or saturation.self_weight is None else f"{saturation.self_weight:.2f}",
        "" if saturation is None or saturation.max_logit is None else short(saturation.max_logit),
        short(head.norms["q"]) if head.norms else "",
        short(layer.gradients["q"]) if "q" in layer.gradients else "",
        "" if saturation is None else "SATURATED" if saturation.saturated else "exempt" if saturation.exempt else "",
    ]


def _query_heads(spectra: dict[str, Any]) -> int:
    return len(spectra["q"].heads_Hk)


def _reading(report: ProbeReport) -> list[str]:
    """Return the sentences that keep the numbers from being misread."""
    heads = [head for point in report.points for layer in point.rows for head in layer.heads if head.jacobian]
    lines = []
    if heads:
        found = heads[0].jacobian
        assert found is not None
        lines.append(
            f"κ(J) is σ_max over σ number {found.rank} (generic rank) of the Jacobian of one head with respect to W_Q, W_K "
            f"and W_V; first layer: {heads[0].tokens} tokens, {found.size:,} {found.side}, float64 tells σ from zero above "
            f"{found.threshold / found.sigma_max:.0e} σ_max. '> ' marks a lower bound."
        )
    if any(head.published and head.jacobian and head.jacobian.kappa > head.published.value for head in heads):
        lines.append(
            "κ(J) exceeds the right side of Theorem 3.4 as printed in at least one row; see analysis/bounds.py."
        )
    saturated = [point for point in report.points if point.saturated]
    for point in saturated:
        lines.append(
            f"{lam_label(point, named=True)}: {point.saturated} of {len(point.saturation)} layers are saturated. Attention "
            "there is close to a hard maximum (of a token on itself, or on tokens like it), and W_Q and W_K get next to no "
            "gradient; a low κ(W) or κ(J) does not show that."
            + (f" λ²√d = {point.expected_logit:.0f} predicts the largest logits." if point.expected_logit else "")
        )
    if any(point.control for point in report.points):
        lines.append(
            "random tokens: the first layer with the same weights on layer-normed Gaussian tokens, without masks and "
            "biases. Tokens of a real input resemble each other, which alone makes P X nearly singular and κ(J) large."
        )
    if any(layer.exempt for point in report.points for layer in point.saturation):
        lines.append(
            "exempt: attention over channels or of normalised queries and keys, where λ cannot saturate the softmax."
        )
    return lines


def _print_blocks(report: ProbeReport, console: Console) -> None:
    from rich import box
    from rich.table import Table

    rows = [
        (lam_label(point), layer.label, str(head.head), f"J_{role.upper()}", found)
        for point in report.points
        for layer in point.rows
        for head in layer.heads
        for role, found in head.blocks.items()
    ]
    if not rows:
        return
    table = Table(title="Blocks of J alone", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("λ", "layer", "head", "block", "σ_max", "σ_min", "κ", "rank"):
        table.add_column(name, justify="left" if name in ("layer", "block") else "right")
    for *labels, found in rows:
        table.add_row(*labels, short(found.sigma_max), short(found.sigma_min), found.text, str(found.rank))
    console.print(table)


def lam_label(point: ProbePoint, *, named: bool = False) -> str:
    """`10`, or `as given` for the model as it was; named: `λ = 10`."""
    if point.lam is None:
        return "as given"
    return f"λ = {point.lam:g}" if named else f"{point.lam:g}"


def short(value: float) -> str:
    """Two significant digits, whole numbers up to 10,000: 1.3, 810, 4.2e6."""
    return _compact(f"{value:.2g}" if value < 100 or value >= 10_000 else f"{value:.0f}")


def _compact(number: str) -> str:
    """Write 4.2e+06 as 4.2e6."""
    return re.sub(r"e\+?(-?)0*(\d)", r"e\1\2", number)
