"""Files of a comparison: CSV, Markdown, LaTeX, figures, and one index.html that holds everything and needs no network."""

from __future__ import annotations

import base64
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.configurations import safe_name
from spectral_conditioning.results.curves import Logs
from spectral_conditioning.results.describe import describe
from spectral_conditioning.results.lambda_curve import plot_lambda_curve
from spectral_conditioning.results.markup import latex, markdown
from spectral_conditioning.results.output_folder import OutputFolder
from spectral_conditioning.results.spectra_figures import plot_spectra
from spectral_conditioning.results.summary import Table
from spectral_conditioning.results.sweep import Sweep, arranged
from spectral_conditioning.results.sweep_figure import plot_sweep
from spectral_conditioning.results.sweep_table import sweep_csv, sweep_grid
from spectral_conditioning.results.tables import Grid, grid, is_loud
from spectral_conditioning.results.tidy import arms_csv, runs_csv
from spectral_conditioning.results.training_curves import plot_training_curves

if TYPE_CHECKING:
    from spectral_conditioning.results.compare import Comparison

Pictures = list[tuple[Path, str]]


@dataclass(frozen=True)
class Written:
    """The report, and earlier files of the folder that were removed, or kept because somebody changed them."""

    index: Path
    removed: list[str]
    kept: list[str]


# (file name, caption, drawing function that returns the files it wrote)
_FIGURES: tuple[tuple[str, str, Callable[[Table, Path, Logs], list[Path]]], ...] = (
    ("lambda", "Final value over λ. Every dot is one seed.", lambda table, path, _: plot_lambda_curve(table, path)),
    ("training", "Training curves.", plot_training_curves),
    ("spectra", "Spectra of W + C, κ(J) and the saturation of attention through training.", plot_spectra),
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5a5a5a; --line: #d5d5d5; --back: #ffffff; --warn: #8a3b00;
  --best: #e2eef7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --soft: #a8a8a8; --line: #444; --back: #161616; --warn: #ffb27a;
    --best: #22384a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 88rem; padding: 1.2rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--soft); vertical-align: bottom; } td.number, th.number { text-align: right; }
td.arm, td.number { white-space: nowrap; } td.each, td.remarks { min-width: 12rem; }
tbody tr:first-child td.arm { font-weight: 600; } td.best { font-weight: 700; background: var(--best); }
ul { padding-left: 1.2rem; color: var(--soft); font-size: .9rem; } li { overflow-wrap: anywhere; }
a { color: inherit; } .loud { color: var(--warn); font-weight: 600; } .say { max-width: 60rem; }
figure { margin: 1.2rem 0; } img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
@media (max-width: 45rem) { figure { overflow-x: auto; } img { max-width: none; width: 46rem; } }
figcaption { color: var(--soft); font-size: .88rem; }
""".strip()


def write_outputs(comparison: Comparison, out: Path, *, meanwhile: Callable[[], None] = lambda: None) -> Written:
    """Write every file of the comparison below `out`; remove what an earlier comparison wrote there and this one did not.

    `meanwhile` is called once, while the figures are drawn.

    compare.csv, compare_arms.csv, compare.md, compare.tex, index.html, and for each table <experiment>-lambda.png,
    -training.png and -spectra.png (the last when spectra were logged), with the setting in the name where an experiment has
    several; compare_sweep.csv and <experiment>-sweep.png where an experiment's tables are a sweep of one value. Raises
    RecordError when `out` cannot be written to.
    """
    try:
        with OutputFolder(out, "the comparison") as folder:
            named = _named(arranged(comparison.tables, comparison.sweeps))
            drawn = _draw_all(named, out, comparison.logs, meanwhile)
            for path, _ in (picture for pictures in drawn for picture in pictures):
                folder.add(path)
            left_out = comparison.left_out()
            folder.write("compare.csv", runs_csv(comparison.tables, comparison.pairings, comparison.faults))
            folder.write("compare_arms.csv", arms_csv(comparison.tables))
            folder.write("compare.md", markdown(comparison.tables, comparison.sweeps, left_out))
            folder.write("compare.tex", latex(comparison.tables, comparison.sweeps, left_out))
            if comparison.sweeps:
                folder.write("compare_sweep.csv", sweep_csv(comparison.sweeps))
            sections = [_section(each, pictures, comparison) for (each, _), pictures in zip(named, drawn, strict=True)]
            index = folder.write("index.html", _page(comparison, sections))
    except OSError as error:
        raise RecordError(
            f"cannot write the comparison to {out}: {error}. Choose another folder with --out."
        ) from error
    return Written(index, folder.removed, folder.kept)


def _named(shown: list[Table | Sweep]) -> list[tuple[Table | Sweep, str]]:
    """Give each a file name of its own: experiment and setting; two that would still have one name are numbered."""
    taken: set[tuple[bool, str]] = set()
    named = []
    for each in shown:
        is_table = isinstance(each, Table)
        setting = each.configuration.file_part if isinstance(each, Table) else ""
        base = name = safe_name(each.experiment) + (f"-{setting}" if setting else "")
        number = 1
        while (is_table, name.lower()) in taken:  # some file systems do not tell a from A
            number += 1
            name = f"{base}-{number}"
        taken.add((is_table, name.lower()))
        named.append((each, name))
    return named


@dataclass(frozen=True)
class _Job:
    """Figures of one kind for one table (or a sweep's only ones), to be written to `path` and names derived from it."""

    shown: Table | Sweep
    path: Path
    caption: str
    draw: Callable[[Table, Path, Logs], list[Path]] | None = None

    def run(self, logs: Logs) -> Pictures:
        if isinstance(self.shown, Sweep):
            return [(path, self.caption) for path in plot_sweep(self.shown, self.path)]
        assert self.draw is not None
        return [(path, self.caption) for path in self.draw(self.shown, self.path, logs)]


def _jobs(shown: Table | Sweep, name: str, out: Path) -> list[_Job]:
    if isinstance(shown, Sweep):
        return [_Job(shown, out / f"{name}-sweep.png", f"Final value over {shown.key}. Every dot is one seed.")]
    return [_Job(shown, out / f"{name}-{kind}.png", caption, draw) for kind, caption, draw in _FIGURES]


def _draw_all(
    named: list[tuple[Table | Sweep, str]], out: Path, logs: Logs, meanwhile: Callable[[], None]
) -> list[Pictures]:
    """Draw the figures of every table and run `meanwhile`; return them table by table.

    Several are drawn at once where a fork can hand the records on without copying them.
    """
    jobs = [_jobs(each, name, out) for each, name in named]
    # The last of a table's figures takes longest: all of those first.
    order = [job for place in reversed(range(len(_FIGURES))) for each in jobs for job in each[place : place + 1]]
    alone = sys.platform == "linux" and threading.active_count() == 1
    workers = min(len(order), len(os.sched_getaffinity(0)) if alone else 1)
    if workers < 2:
        meanwhile()
        done = [job.run(logs) for job in order]
    else:
        sys.stdout.flush()
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=fork, initializer=_inherit, initargs=(order, logs)) as pool:
            drawn = pool.map(_draw_inherited, range(len(order)))
            meanwhile()
            done = list(drawn)
    pictures = dict(zip(map(id, order), done, strict=True))
    return [[picture for job in each for picture in pictures[id(job)]] for each in jobs]


# What a forked worker was born with.
_inherited: list[tuple[list[_Job], Logs]] = []


def _inherit(jobs: list[_Job], logs: Logs) -> None:
    _inherited[:] = [(jobs, logs)]


def _draw_inherited(index: int) -> Pictures:
    jobs, logs = _inherited[0]
    return jobs[index].run(logs)


@dataclass(frozen=True)
class _Section:
    """One part of the page: its title as text, and the HTML below it."""

    title: str
    body: str


def _page(comparison: Comparison, sections: list[_Section]) -> str:
    parts = list(sections)
    for heading, lines in comparison.left_out().items():
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(_Section(f"{heading} ({len(lines)})", f"<ul>{items}</ul>"))
    links = "".join(f'<li><a href="#part-{place}">{escape(part.title)}</a></li>' for place, part in enumerate(parts))
    contents = [f"<nav><ul>{links}</ul></nav>"] if len(parts) > 1 else []
    titled = [f'<h2 id="part-{place}">{escape(part.title)}</h2>\n{part.body}' for place, part in enumerate(parts)]
    body = "\n".join(["<h1>Spectral conditioning: comparison</h1>", *contents, *titled])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Spectral conditioning: comparison</title>\n<style>\n{_STYLE}\n</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _section(shown: Table | Sweep, pictures: Pictures, comparison: Comparison) -> _Section:
    laid = sweep_grid(shown) if isinstance(shown, Sweep) else grid(shown)
    paragraph = [] if isinstance(shown, Sweep) else [f'<p class="say">{escape(describe(shown, comparison.logs))}</p>']
    images = [
        f'<figure><img alt="{escape(laid.title)}: {escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}"><figcaption>{escape(caption)}</figcaption></figure>'
        for path, caption in pictures
    ]
    notes = "".join(
        f'<li class="loud">{escape(note)}</li>' if is_loud(note) else f"<li>{escape(note)}</li>" for note in laid.notes
    )
    return _Section(laid.title, "\n".join([*paragraph, _html_table(laid), f"<ul>{notes}</ul>", *images]))


def _html_table(laid: Grid) -> str:
    kinds = [{"arm": "arm", "remarks": "remarks", "each seed": "each"}.get(name, "number") for name in laid.columns]
    head = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(laid.columns, kinds, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}{" best" if (index, column) in laid.marked else ""}">{escape(cell)}</td>'
            for column, (cell, kind) in enumerate(zip(row, kinds, strict=True))
        )
        + "</tr>"
        for index, row in enumerate(laid.rows)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
