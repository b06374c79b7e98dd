"""Tables as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from spectral_conditioning.errors import one_line
from spectral_conditioning.results.summary import Table
from spectral_conditioning.results.sweep import Sweep, arranged
from spectral_conditioning.results.sweep_table import sweep_grid
from spectral_conditioning.results.tables import TEXT_COLUMNS, Grid, grid

# {heading: lines} of runs that are in no table.
LeftOut = Mapping[str, Sequence[str]]


def markdown(tables: Sequence[Table], sweeps: Sequence[Sweep] = (), left_out: LeftOut | None = None) -> str:
    """Return the tables as GitHub Markdown, an experiment's sweep before its tables; below them what is in none, and why."""
    shown = arranged(tables, sweeps)
    parts = [_markdown(sweep_grid(each) if isinstance(each, Sweep) else grid(each)) for each in shown]
    for heading, lines in (left_out or {}).items():
        parts.append("\n".join([f"**{heading} ({len(lines)})**", "", *(f"- {one_line(line)}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def _markdown(laid: Grid) -> str:
    lines = [f"### {laid.title}", "", _markdown_row(laid.columns), _markdown_row(["---"] * len(laid.columns))]
    for index, row in enumerate(laid.rows):
        lines.append(_markdown_row(row, bold=[column for line, column in laid.marked if line == index]))
    return "\n".join([*lines, "", *(f"- {note}" for note in laid.notes)])


def _markdown_row(cells: Sequence[str], *, bold: Iterable[int] = ()) -> str:
    escaped = [cell.replace("|", r"\|").replace("*", r"\*") for cell in cells]
    for column in bold:
        escaped[column] = f"**{escaped[column]}**"
    return "| " + " | ".join(escaped) + " |"


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "λ": r"$\lambda$",
    "Δ": r"$\Delta$",
    "σ": r"$\sigma$",
    "κ": r"$\kappa$",
    "±": r"$\pm$",
    "−": r"$-$",
    "→": r"$\to$",
    "α": r"$\alpha$",
    "<": r"$<$",
    ">": r"$>$",
    "–": "--",
    "·": r"$\cdot$",
    "|": r"$|$",
    "∞": r"$\infty$",
    "×": r"$\times$",
}


def latex_text(text: str) -> str:
    """Escape text for LaTeX, Greek letters included."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex(tables: Sequence[Table], sweeps: Sequence[Sweep] = (), left_out: LeftOut | None = None) -> str:
    """Return the tables as LaTeX, an experiment's sweep before its tables, and what is in none; needs booktabs."""
    shown = arranged(tables, sweeps)
    laid = [sweep_grid(each) if isinstance(each, Sweep) else _for_a_page(each) for each in shown]
    below = [_latex_list(f"{heading} ({len(lines)})", lines) for heading, lines in (left_out or {}).items()]
    return "\n".join([r"% needs \usepackage{booktabs}", *map(_latex, laid), *below]) + "\n"


def _latex_list(heading: str, lines: Sequence[str]) -> str:
    items = [rf"  \item {latex_text(one_line(line))}" for line in lines]
    return "\n".join([rf"\paragraph{{{latex_text(heading)}}}", r"\begin{itemize}", *items, r"\end{itemize}"])


def _for_a_page(table: Table) -> Grid:
    """A page has no room for every seed or for remarks: what a reader must know of an arm goes to the caption."""
    laid = grid(table)
    remarks = [f"{arm.label}: {'; '.join(arm.flags())}." for arm in table.all_arms if arm.flags()]
    kept = laid.only([name for name in laid.columns if name not in ("each seed", "remarks")])
    return replace(kept, notes=[*laid.notes, *remarks])


def _latex(laid: Grid) -> str:
    caption = " ".join([f"{laid.title}.", *laid.notes])
    align = "".join("l" if name in TEXT_COLUMNS else "r" for name in laid.columns)
    body = [
        " & ".join(_latex_cell(cell, bold=(index, column) in laid.marked) for column, cell in enumerate(row)) + r" \\"
        for index, row in enumerate(laid.rows)
    ]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_text(caption)}}}",
            rf"  \begin{{tabular}}{{{align}}}",
            r"    \toprule",
            "    " + " & ".join(latex_text(name) for name in laid.columns) + r" \\",
            r"    \midrule",
            *(f"    {line}" for line in body[:1]),
            r"    \midrule",
            *(f"    {line}" for line in body[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _latex_cell(cell: str, *, bold: bool) -> str:
    return rf"\textbf{{{latex_text(cell)}}}" if bold else latex_text(cell)
