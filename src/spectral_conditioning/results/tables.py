"""One summary as text: columns and cells shared by the terminal (rich), Markdown and LaTeX; and the notes below a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spectral_conditioning.results import statistics
from spectral_conditioning.results.records import Run
from spectral_conditioning.results.summary import Arm, Table

if TYPE_CHECKING:
    from rich.console import Console

DASH = "–"


# Columns of text; all others hold numbers.
TEXT_COLUMNS = ("arm", "each seed", "remarks")


@dataclass(frozen=True)
class Grid:
    """Cells of one table as plain text. The first row is the baseline's; `marked` are (row, column) to print bold."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]
    marked: frozenset[tuple[int, int]] = frozenset()

    def only(self, columns: Sequence[str]) -> Grid:
        """The same table with some of its columns."""
        kept = [index for index, name in enumerate(self.columns) if name in columns]
        rows = [[row[index] for index in kept] for row in self.rows]
        marked = frozenset((row, kept.index(column)) for row, column in self.marked if column in kept)
        return Grid(self.title, [self.columns[index] for index in kept], rows, self.notes, marked)


def grid(table: Table) -> Grid:
    """Lay a table out; a statistic that has too few pairs in every arm has no column."""
    metric = table.metric
    paired = max((len(arm.differences) for arm in table.arms), default=0)
    shown = {
        "arm": True,
        "seeds": True,
        metric.label: True,
        "median": True,
        f"Δ {metric.difference_unit}": True,
        "ahead": True,
        "95 % t-interval": paired >= statistics.T_TEST_PAIRS,
        "p t (Holm)": paired >= statistics.T_TEST_PAIRS,
        "p sign-flip (Holm)": paired >= statistics.SIGN_FLIP_PAIRS,
        "seeds needed": table.reference is not None and paired >= statistics.T_TEST_PAIRS and metric.percent,
        "each seed": True,
        "remarks": any(arm.flags() for arm in table.all_arms),
    }
    columns = [name for name, wanted in shown.items() if wanted]
    cells = [_cells(arm, table) for arm in table.all_arms]
    return Grid(table.title, columns, [[each[name] for name in columns] for each in cells], notes(table))


def _cells(arm: Arm, table: Table) -> dict[str, str]:
    metric = arm.metric
    one_seed_set = len({tuple(run.seed for run in each.runs) for each in table.all_arms}) == 1
    return {
        "arm": arm.label,
        "seeds": str(len(arm.runs)),
        metric.label: mean_text(arm),
        "median": metric.number(arm.median) if arm.median is not None else "diverged",
        "each seed": "  ".join(_seed_text(arm, run, named=not one_seed_set) for run in arm.runs),
        f"Δ {metric.difference_unit}": difference_text(arm),
        "ahead": f"{arm.wins} of {len(arm.pairs)}" if arm.pairs else DASH,
        "95 % t-interval": _interval_text(arm),
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


def _seed_text(arm: Arm, run: Run, *, named: bool) -> str:
    value = "diverged" if run.value is None else arm.metric.number(arm.metric.shown(run.value))
    return (f"{run.seed}:" if named else "") + value + ("*" if run.at_chance else "")


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
    if arm.seeds_needed:
        return str(arm.seeds_needed)
    # With a known spread and no number, the search went to its end.
    return f"> {statistics.SEEDS_SEARCHED:,}" if arm.spread_known and table.reference is not None else DASH


def notes(table: Table) -> list[str]:
    """Everything that must be read with the table: scale, the paper, what was allowed, what the marks mean."""
    metric, reference = table.metric, table.reference
    seeds = sorted({run.seed for run in table.runs})
    found = [
        f"These runs: {table.scale_text()}. {metric.name} at the tested checkpoint, mean ± standard deviation; "
        f"{metric.direction}; seeds {', '.join(map(str, seeds))}."
    ]
    if table.configuration.short != table.setting:
        found.append(f"This configuration: {table.setting}.")
    if reference:
        count = {row.seeds for row in reference.rows}
        means = f", means over {count.pop()} seeds" if len(count) == 1 and None not in count else ""
        found.append(f"{reference.heading()} (percent{means}): {reference.text()}.")
    found.append(table.standing())
    if any(arm.failures for arm in table.all_arms):
        found.append(
            "Runs that diverged or ended at chance (*) are named and enter no mean, difference or test, which can flatter their "
            "arm; the median and the seeds ahead count them."
        )
    if table.baseline and table.baseline.failures:
        base = table.baseline
        found.append(
            "The baseline learned in no seed: nothing here says how an arm stands to a baseline that works."
            if not base.values
            else f"The baseline failed in {base.failures} of {len(base.runs)} seeds, which no difference or test has: that "
            "flatters the baseline."
        )
    if any(len(arm.runs) != len(table.baseline.runs) for arm in table.arms if table.baseline):
        found.append("Arms differ in their seeds: compare by Δ, which takes only seeds that both arms have.")
    if any(arm.interval for arm in table.arms):
        found.append("t-interval: Student's, of Δ, for each arm by itself; Holm's correction is in the p in brackets.")
    if reference and any(arm.seeds_needed for arm in table.arms):
        found.append(
            f"Seeds needed: pairs at which a paired t-test would see the paper's gain of {reference.gain:+.2f} points with 80 % "
            "power at α = .05, given the spread of the differences seen here."
        )
    if table.allowed:
        found.append(f"COMPARED ALTHOUGH UNEQUAL, by request: {'; '.join(table.allowed)}.")
    return found + [f"Warning: {warning}." for warning in table.pairing.warnings]


def is_loud(note: str) -> bool:
    """True for a note that no reader may miss."""
    return note.startswith(("COMPARED", "Warning"))


def print_table(table: Table, console: Console) -> None:
    """Print one table and its notes; where it is wider than the terminal, as two tables: values, then differences."""
    laid = grid(table)
    views = [rich_table(laid)]
    if not fits(views[0], console):
        values = ("arm", "seeds", table.metric.label, "median", "each seed", "remarks")
        differences = ["arm", *(name for name in laid.columns if name not in values)]
        views = [rich_table(laid.only(values)), rich_table(laid.only(differences), title="paired differences")]
    print_views(views, laid.notes, console)


def print_views(views: Sequence[Any], below: Sequence[str], console: Console) -> None:
    """Print the parts of one table and the notes below it."""
    from rich.text import Text

    for view in views:
        console.print(view)
    for note in below:
        console.print(Text(note, style="bold" if is_loud(note) else "dim"))
    console.print()


def fits(view: Any, console: Console) -> bool:
    """True when the console is wide enough for the whole of a rich table."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=10_000), view).maximum <= console.width


def rich_table(laid: Grid, *, title: str | None = None) -> Any:
    """Return the table as rich draws it; numbers are never broken."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(
        title=title or laid.title, title_justify="left", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD,
        pad_edge=False,
    )  # fmt: skip
    for name in laid.columns:
        numeric = name not in TEXT_COLUMNS
        widest = {"each seed": 48, "remarks": 44}.get(name)
        view.add_column(
            name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold", max_width=widest
        )
    for index, row in enumerate(laid.rows):
        cells = [Text(cell, style="bold" if (index, column) in laid.marked else "") for column, cell in enumerate(row)]
        view.add_row(*cells, end_section=index == 0)
    return view
