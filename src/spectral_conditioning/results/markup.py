"""Tables as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spectral_conditioning.results.summary import Table
from spectral_conditioning.results.tables import TEXT_COLUMNS, grid


def markdown(tables: Iterable[Table]) -> str:
    """Return the tables as GitHub Markdown."""
    parts = []
    for table in tables:
        laid = grid(table)
        lines = [f"### {laid.title}", "", _markdown_row(laid.columns), _markdown_row(["---"] * len(laid.columns))]
        lines += [_markdown_row(row) for row in laid.rows]
        lines += ["", *(f"- {note}" for note in laid.notes)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("*", r"\*") for cell in cells) + " |"


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


def latex(tables: Iterable[Table]) -> str:
    """Return the tables as LaTeX; needs booktabs."""
    parts = [r"% needs \usepackage{booktabs}"]
    for table in tables:
        laid = grid(table)
        # A page has no room for every seed or for remarks: what a reader must know of an arm goes to the caption.
        remarks = [f"{arm.label}: {'; '.join(arm.flags())}." for arm in table.all_arms if arm.flags()]
        caption = " ".join([f"{laid.title}.", *laid.notes, *remarks])
        laid = laid.only([name for name in laid.columns if name not in ("each seed", "remarks")])
        align = "".join("l" if name in TEXT_COLUMNS else "r" for name in laid.columns)
        body = [" & ".join(latex_text(cell) for cell in row) + r" \\" for row in laid.rows]
        parts += [
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
    return "\n".join(parts) + "\n"
