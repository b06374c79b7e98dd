"""`spectral compare`: records in; table, figures and report out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spectral_conditioning.errors import RecordError, problems_message
from spectral_conditioning.files import silence_stdout
from spectral_conditioning.results.collect import Collection, Fault, collect
from spectral_conditioning.results.curves import Logs
from spectral_conditioning.results.pairing import REASONS, Excluded, Pairing, pair_runs
from spectral_conditioning.results.published import read_published
from spectral_conditioning.results.records import shown_source
from spectral_conditioning.results.summary import Table, build_tables
from spectral_conditioning.results.sweep import Sweep, arranged, build_sweeps


@dataclass
class Comparison:
    """Everything that was found: tables to show, and every run or folder that is in none of them."""

    tables: list[Table]
    pairings: list[Pairing]
    broken: list[Fault] = field(default_factory=list)
    unfinished: list[Fault] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    sweeps: list[Sweep] = field(init=False)

    def __post_init__(self) -> None:
        self.sweeps = build_sweeps(self.tables)

    @property
    def refused(self) -> list[Excluded]:
        return [excluded for pairing in self.pairings for excluded in pairing.refused]

    @property
    def unpaired(self) -> list[Excluded]:
        return [excluded for pairing in self.pairings for excluded in pairing.unpaired]

    @property
    def faults(self) -> dict[str, list[Fault]]:
        """Runs without a usable record, by what is wrong."""
        return {"broken": self.broken, "unfinished": self.unfinished}

    def left_out(self) -> dict[str, list[str]]:
        """Return {heading: lines} of everything that entered no table and, once the logs were read, no curve."""
        found = {
            "Refused pairs": [f"{_name(each)}: {'; '.join(each.reasons)}" for each in self.refused],
            "Unpaired runs": [f"{_name(each)}: {'; '.join(each.reasons)}" for each in self.unpaired],
            "Broken records": [f"{shown_source(fault.source)}: {fault.reason}" for fault in self.broken],
            "Unfinished runs": [f"{shown_source(fault.source)}: {fault.reason}" for fault in self.unfinished],
            "Damaged logs": [
                f"{shown_source(source)}: {count} line{'s' if count != 1 else ''} of metrics.jsonl cannot be read and "
                f"{'are' if count != 1 else 'is'} in no curve"
                for source, count in self.logs.damaged.items()
            ],
        }
        return {heading: lines for heading, lines in found.items() if lines}


def compare(
    paths: Sequence[str | Path] = (),
    *,
    collection: Collection | None = None,
    allow: Sequence[str] = (),
    experiments: Path | None = None,
) -> Comparison:
    """Collect the records below `paths` (or take a `collection` read elsewhere), pair them and build the tables.

    `allow` names differences to compare in spite of (`pairing.REASONS`); `experiments` is the folder of paper.csv files.
    Raises RecordError when a path or a reason is wrong, or nothing at all is found.
    """
    collection = collection or collect(paths)
    pairings = pair_runs(collection.runs, allow=allow)
    tables = build_tables(pairings, read_published(experiments))
    return Comparison(tables, pairings, collection.broken, collection.unfinished)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral compare`."""
    parser.add_argument("runs", nargs="*", metavar="RUNS", help="folders with runs, run folders or result.json files")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where compare.csv, compare_arms.csv, compare_sweep.csv, compare.md, compare.tex, the figures and index.html go "
        "(default: 'compare' in the folder that holds all RUNS). Figures that an earlier comparison wrote there and this one "
        "does not are removed; no other file is touched",
    )
    parser.add_argument(
        "--allow-unequal",
        nargs="+",
        action="extend",
        default=[],
        metavar="REASON",
        choices=list(REASONS),
        help=f"compare pairs although these differ, and say so on the table: {', '.join(REASONS)}",
    )
    parser.add_argument(
        "--wandb", metavar="ENTITY/PROJECT", help="read the records from Weights & Biases instead of folders"
    )
    parser.add_argument(
        "--experiments",
        type=Path,
        metavar="DIR",
        help="folder of <family>/paper.csv (default: the one that belongs to this program)",
    )
    parser.add_argument("--table-only", action="store_true", help="print the table; write no files")


def run(args: argparse.Namespace) -> int:
    """Run `spectral compare`. Returns 0, or 1 when a record was broken or a pair refused (what could be compared is shown).

    Raises RecordError when nothing can be compared.
    """
    if bool(args.runs) == bool(args.wandb):
        raise RecordError("give either run folders or --wandb ENTITY/PROJECT")
    if args.wandb:
        from spectral_conditioning.results.wandb_source import collect_wandb

        comparison = compare(
            collection=collect_wandb(args.wandb), allow=args.allow_unequal, experiments=args.experiments
        )
    else:
        comparison = compare(args.runs, allow=args.allow_unequal, experiments=args.experiments)
    if not comparison.tables:
        print_comparison(comparison)
        lines = [line for lines in comparison.left_out().values() for line in lines]
        raise RecordError(problems_message("no pair of baseline and conditioned run can be compared", lines[:20]))
    if args.table_only:
        print_comparison(comparison)
    else:
        from spectral_conditioning.results.report import write_outputs

        out = args.out or default_out(args.runs)
        written = write_outputs(comparison, out, meanwhile=lambda: _print_unless_unread(comparison))
        print(f"Written: {written.index} (with tables and figures beside it)")
        if written.removed:
            print(f"Removed, of an earlier comparison in that folder: {', '.join(written.removed)}")
        if written.kept:
            print(f"Left, because changed since an earlier comparison wrote them: {', '.join(written.kept)}")
    return 1 if comparison.broken or comparison.refused else 0


def _print_unless_unread(comparison: Comparison) -> None:
    """Print the comparison; when the reader (head, less) has left, go on without: the files are still to be written."""
    try:
        print_comparison(comparison)
    except BrokenPipeError:
        silence_stdout()


def print_comparison(comparison: Comparison) -> None:
    """Print every table with its paragraph, then everything left out. Raises BrokenPipeError when the reader has left."""
    print(_rendered(comparison), end="", flush=True)


def _rendered(comparison: Comparison) -> str:
    from rich.console import Console

    from spectral_conditioning.results.describe import describe
    from spectral_conditioning.results.sweep_table import print_sweep
    from spectral_conditioning.results.tables import print_table

    # A file or pipe has no width of its own; rich would assume 80 and break every number.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    # Not printed piece by piece: rich would end the process when the reader leaves.
    with console.capture() as text:
        for shown in arranged(comparison.tables, comparison.sweeps):
            if isinstance(shown, Sweep):
                print_sweep(shown, console)
                continue
            print_table(shown, console)
            console.print(describe(shown, comparison.logs), markup=False)
            console.print()
        for heading, lines in comparison.left_out().items():
            console.print(f"{heading} ({len(lines)})", style="bold")
            for line in lines:
                console.print(f"  {line}", markup=False)
    return text.get()


def default_out(runs: Sequence[str | Path]) -> Path:
    """Return `compare` in the innermost folder that holds all of `runs`, or in the working folder."""
    folders = [path.parent if path.is_file() else path for path in map(Path, runs)]
    return Path(os.path.commonpath([path.absolute() for path in folders])) / "compare" if folders else Path("compare")


def _name(excluded: Excluded) -> str:
    run = excluded.run
    return f"{run.experiment}, {run.arm}, seed {run.seed} ({shown_source(run.source)})"
