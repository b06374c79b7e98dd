"""One summary as text: columns and cells shared by the terminal (rich), Markdown and LaTeX; and the notes below a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral_conditioning.results import statistics
from spectral_conditioning.results.summary import Arm, Table

if TYPE_CHECKING:
    from rich.console import Console

DASH = "–"


@dataclass(frozen=True)
class Grid:
    """Cells of one table as plain text. The first row is the baseline's."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def grid(table: Table) -> Grid:
    """Lay a table out; a column that would be empty for every arm is left out and the reason stands in the notes."""
    metric = table.metric
    paired = max((len(arm.differences) for arm in table.arms), default=0)
    columns = ["arm", "seeds", metric.label, "median", "each seed", f"Δ {metric.difference_unit}", "each Δ"]
    optional = {
        "95 % interval": paired >= statistics.BOOTSTRAP_PAIRS,
        "p t (Holm)": paired >= statistics.T_TEST_PAIRS,
        "p sign-flip (Holm)": paired >= statistics.SIGN_FLIP_PAIRS,
        "seeds needed": any(arm.seeds_needed for arm in table.arms),
        "remarks": any(arm.flags() for arm in table.all_arms),
    }
    columns += [name for name, shown in optional.items() if shown]
    rows = [[_cells(arm, table)[name] for name in columns] for arm in table.all_arms]
    return Grid(table.title, columns, rows, notes(table))


def _cells(arm: Arm, table: Table) -> dict[str, str]:
    metric = arm.metric
    return {
        "arm": arm.label,
        "seeds": str(len(arm.runs)),
        metric.label: mean_text(arm),
        "median": metric.number(arm.median) if arm.median is not None else "diverged",
        "each seed": " ".join(_seed_text(arm, index) for index in range(len(arm.runs))),
        f"Δ {metric.difference_unit}": difference_text(arm),
        "each Δ": " ".join(metric.number(d, signed=True) for d in arm.differences) or DASH,
        "95 % interval": _interval_text(arm),
        "p t (Holm)": _p_text(arm.p_t, arm.p_t_holm),
        "p sign-flip (Holm)": _p_text(arm.p_flip, arm.p_flip_holm),
        "seeds needed": _needed_text(arm, table),
        "remarks": "; ".join(arm.flags()),
    }


def mean_text(arm: Arm) -> str:
    """`92.80 ± 1.24`, with `(2 of 3)` when some seeds failed and are not in the mean; `at chance` when all did."""
    if arm.mean is None:
        return "diverged" if len(arm.diverged) == len(arm.runs) else "at chance"
    text = arm.metric.number(arm.mean)
    if arm.std is not None:
        text += f" ± {arm.metric.number(arm.std)}"
    return text if not arm.failures else f"{text} ({len(arm.values)} of {len(arm.runs)})"


def difference_text(arm: Arm) -> str:
    """Mean paired difference ± its standard deviation, with the number of pairs when some are missing."""
    if arm.difference_mean is None:
        return DASH
    text = arm.metric.number(arm.difference_mean, signed=True)
    if arm.difference_std is not None:
        text += f" ± {arm.metric.number(arm.difference_std)}"
    return text if len(arm.differences) == len(arm.pairs) else f"{text} ({len(arm.differences)} of {len(arm.pairs)})"


def _seed_text(arm: Arm, index: int) -> str:
    run = arm.runs[index]
    if run.value is None:
        return f"{run.seed}:diverged"
    mark = "*" if run.at_chance else ""
    return f"{run.seed}:{arm.metric.number(arm.metric.shown(run.value))}{mark}"


def _interval_text(arm: Arm) -> str:
    if arm.interval is None:
        return DASH
    low, high = arm.interval
    return f"[{arm.metric.number(low, signed=True)}, {arm.metric.number(high, signed=True)}]"


def _p_text(p: float | None, adjusted: float | None) -> str:
    if p is None or adjusted is None:
        return DASH
    return f"{_p(p)} ({_p(adjusted)})"


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _needed_text(arm: Arm, table: Table) -> str:
    if arm.is_baseline or len(arm.differences) < statistics.T_TEST_PAIRS or table.reference is None:
        return DASH
    return str(arm.seeds_needed) if arm.seeds_needed else f"> {statistics.SEEDS_SEARCHED:,}"


def notes(table: Table) -> list[str]:
    """Everything that must be read with the table: scale, the paper, what was allowed, what the marks mean."""
    metric = table.metric
    found = [f"These runs: {table.scale_text()}. {metric.name} at the tested checkpoint; {metric.direction}."]
    if table.reference:
        seeds = {row.seeds for row in table.reference.rows}
        count = f", {seeds.pop()} seeds" if len(seeds) == 1 and None not in seeds else ""
        whose = "this experiment" if table.reference.exact else "its family"
        found.append(f"The paper on {whose} (percent{count}): {table.reference.text()}.")
    found.append(table.standing())
    if any(arm.failures for arm in table.all_arms):
        found.append(
            "Runs that diverged or ended at chance (*) are named and enter no mean, difference or test, which can flatter their "
            "arm; the median counts them."
        )
    if any(len(arm.runs) != len(table.baseline.runs) for arm in table.arms if table.baseline):
        found.append("Arms differ in their seeds: compare by Δ, which takes only seeds that both arms have.")
    if any(arm.seeds_needed for arm in table.arms) and table.reference:
        found.append(
            f"Seeds needed: pairs at which a paired t-test would see the paper's gain of {table.reference.gain:+.2f} points with 80 % "
            "power at α = .05, given the spread of the differences seen here."
        )
    if table.allowed:
        found.append(f"COMPARED ALTHOUGH UNEQUAL, by request: {'; '.join(table.allowed)}.")
    return found + [f"Warning: {warning}." for warning in table.pairing.warnings]


def print_table(table: Table, console: Console) -> None:
    """Print one table and its notes to a terminal of any width."""
    from rich.table import Table as RichTable
    from rich.text import Text

    laid = grid(table)
    view = RichTable(title=laid.title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False)
    for name in laid.columns:
        numeric = name not in ("arm", "remarks", "each seed", "each Δ")
        view.add_column(name, justify="right" if numeric else "left", overflow="fold", ratio=None)
    for index, row in enumerate(laid.rows):
        view.add_row(*(Text(cell) for cell in row), end_section=index == 0)
    console.print(view)
    for note in laid.notes:
        loud = note.startswith(("COMPARED", "Warning"))
        console.print(Text(note, style="bold" if loud else "dim"))
    console.print()


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
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$", "Δ": r"$\Delta$", "σ": r"$\sigma$",
    "κ": r"$\kappa$", "±": r"$\pm$", "−": r"$-$", "→": r"$\to$", "α": r"$\alpha$", "<": r"$<$", ">": r"$>$",
    "–": "--", "·": r"$\cdot$", "|": r"$|$", "∞": r"$\infty$", "×": r"$\times$",
}


def latex_text(text: str) -> str:
    """Escape text for LaTeX, Greek letters included."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex(tables: Iterable[Table]) -> str:
    """Return the tables as LaTeX; needs booktabs."""
    parts = [r"% needs \usepackage{booktabs}"]
    for table in tables:
        laid = grid(table)
        align = "".join("l" if name in ("arm", "remarks", "each seed", "each Δ") else "r" for name in laid.columns)
        body = [" & ".join(latex_text(cell) for cell in row) + r" \\" for row in laid.rows]
        parts += [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_text(laid.title)}. {latex_text(' '.join(laid.notes))}}}",
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
