"""A learning-rate sweep in every arm: one more table, fair to each arm, in every output."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from rich.console import Console

from spectral_conditioning.results.markup import latex, markdown
from spectral_conditioning.results.pairing import pair_runs
from spectral_conditioning.results.records import run_from_record
from spectral_conditioning.results.summary import Table, build_tables
from spectral_conditioning.results.sweep import Sweep, arranged, build_sweeps
from spectral_conditioning.results.sweep_table import COLUMNS, print_sweep, sweep_csv, sweep_grid, sweep_notes

Values = Mapping[Any, Mapping[float, list[float | None]]]
Build = Callable[..., list[Table]]

GOLDEN = """\
### imagenet/small over optim.lr

| arm | optim.lr=0.0003 | 0.001 | 0.003 | best | Δ points, best to best |
| --- | --- | --- | --- | --- | --- |
| baseline | 80.00 ± 1.41 (2) | **91.00 ± 1.41 (2)** | 85.00 (1 of 2) | 91.00 at 0.001 | – |
| identity λ=1 (full, qkv) | 82.00 ± 1.41 (2) | 90.00 ± 0.00 (2) | **93.00 ± 0.00 (2)** | 93.00 at 0.003 | +2.00 ± 1.41 |
| identity λ=10 (full, qkv) | at chance (2) | **50.00 (1 of 2)** | – | 50.00 at 0.001 | −40.00 (1 of 2) |

- val/accuracy (%) at the tested checkpoint, mean ± standard deviation (seeds); higher is better. Bold: each arm's best \
optim.lr, by the mean among the values with the smallest share of failed seeds.
- Δ: every arm at its own best optim.lr minus the baseline at the baseline's best, paired by seed. Each best was chosen by \
the result that is shown, so it is overstated: repeat it with new seeds.
- Runs that diverged or ended at chance are in no mean or difference; (2 of 3) says how many are.
- Best at an end of the range, which may be too short: identity λ=1 (full, qkv) (0.003).
"""
RATES: Values = {
    0.003: {0: [0.85, None], 1: [0.93, 0.93]},
    0.0003: {0: [0.79, 0.81], 1: [0.81, 0.83], 10: [0.1, 0.1]},
    0.001: {0: [0.90, 0.92], 1: [0.90, 0.90], 10: [0.5, 0.1]},
}


@pytest.fixture
def tables(make_record: Callable[..., dict[str, Any]]) -> Build:
    """tables({value: {λ: values by seed}}, key=…) builds the tables of a sweep over a dotted configuration key."""

    def build(swept: Values, *, key: str = "optim.lr", **changes: Any) -> list[Table]:
        section, _, name = key.partition(".")
        runs = []
        for value, arms in swept.items():
            same = {
                "hashes__pair": f"p{value}",
                "config": {section: {name: value}, "budget": {"steps": 400}},
                **changes,
            }
            for lam, results in arms.items():
                for seed, result in enumerate(results):
                    failed = {} if result is not None else {"status": "diverged", "diverged_at": 120, "steps": 120}
                    built = make_record(result, seed=seed, lam=float(lam), **{**same, **failed})
                    runs.append(run_from_record(built, source=f"{value}/{lam}/{seed}"))
        return build_tables(pair_runs(runs), [])

    return build


def only(tables: list[Table]) -> Sweep:
    (sweep,) = build_sweeps(tables)
    return sweep


def test_golden_markdown_stands_before_the_tables_it_holds(tables: Build) -> None:
    built = tables(RATES)
    text = markdown(built, build_sweeps(built))
    assert text.startswith(GOLDEN)
    assert [line for line in text.splitlines() if line.startswith("###")][1:] == [
        f"### imagenet/small · optim.lr={rate}" for rate in ("0.0003", "0.001", "0.003")
    ]
    assert markdown(built) == text[len(GOLDEN) + 1 :]


def test_golden_csv(tables: Build) -> None:
    lines = list(csv.DictReader(io.StringIO(sweep_csv(build_sweeps(tables(RATES))))))
    assert list(lines[0]) == COLUMNS
    wanted = (
        "value",
        "lam",
        "seeds",
        "learned",
        "diverged",
        "collapsed",
        "mean",
        "best",
        "best_pairs",
        "best_difference",
    )
    assert [[line[key] for key in wanted] for line in lines] == [
        ["0.0003", "0", "2", "2", "0", "0", "80", "False", "", ""],
        ["0.001", "0", "2", "2", "0", "0", "91", "True", "", ""],
        ["0.003", "0", "2", "1", "1", "0", "85", "False", "", ""],
        ["0.0003", "1", "2", "2", "0", "0", "82", "False", "", ""],
        ["0.001", "1", "2", "2", "0", "0", "90", "False", "", ""],
        ["0.003", "1", "2", "2", "0", "0", "93", "True", "2", "2"],
        ["0.0003", "10", "2", "0", "0", "2", "", "False", "", ""],
        ["0.001", "10", "2", "1", "0", "1", "50", "True", "1", "-40"],
    ]


def test_latex_has_one_table_more_with_the_best_in_bold(tables: Build) -> None:
    built = tables(RATES)
    text = latex(built, build_sweeps(built))
    assert text.count(r"\begin{table}") == 4
    assert text.count(r"\textbf{") == 3
    assert r"\textbf{91.00 $\pm$ 1.41 (2)}" in text
    assert latex(built).count(r"\textbf{") == 0


@pytest.mark.parametrize("width", [60, 80, 160])
def test_terminal_of_any_width_shows_every_cell_whole(tables: Build, width: int) -> None:
    sweep = only(tables(RATES))
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_sweep(sweep, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    laid = sweep_grid(sweep)
    assert all(cell in text for row in laid.rows for cell in row[1:])
    assert all(name in text for name in laid.columns)


def test_a_seed_that_failed_weighs_before_the_mean(tables: Build) -> None:
    """Without this rule a rate at which most runs diverge would win by the one that did not."""
    sweep = only(tables({0.001: {0: [0.9, 0.9], 1: [0.9, 0.9]}, 0.01: {0: [0.99, None], 1: [0.95, 0.95]}}))
    assert [row.best for row in sweep.rows] == [0, 1]
    assert sweep.best_differences(sweep.rows[1]) == pytest.approx([5.0, 5.0])


def test_lower_is_better_and_ties_go_to_the_smaller_value(tables: Build) -> None:
    loss = {"primary__name": "val/loss", "primary__mode": "min", "chance": None}
    sweep = only(tables({0.1: {0: [2.0], 1: [1.5]}, 0.2: {0: [1.0], 1: [1.5]}}, **loss))
    assert [row.best for row in sweep.rows] == [1, 0]
    assert sweep_grid(sweep).rows[1][-1] == "+0.5000"


def test_no_baseline_that_learned_gives_no_difference(tables: Build) -> None:
    sweep = only(tables({0.1: {0: [0.1], 1: [0.9]}, 0.2: {0: [None], 1: [0.8]}}))
    assert sweep.baseline.best is None
    assert sweep_grid(sweep).rows[0][1:] == ["at chance (1)", "diverged (1)", "–", "–"]
    assert sweep_grid(sweep).rows[1][-2:] == ["90.00 at 0.1", "–"]


def test_bests_are_paired_by_seed(tables: Build) -> None:
    """Seed 0 is missing at the conditioned arm's best value: the difference holds the seeds that both have."""
    swept = {0.1: {0: [0.8, 0.9, 0.7], 1: [0.2, 0.2, 0.2]}, 0.2: {0: [0.3, 0.3], 1: [0.95, 0.93]}}
    sweep = only(tables(swept))
    assert sweep.best_differences(sweep.rows[1]) == pytest.approx([15.0, 3.0])


def test_values_in_words_keep_their_names(tables: Build) -> None:
    sweep = only(tables({"swin": {0: [0.8], 1: [0.9]}, "deit": {0: [0.7], 1: [0.6]}}, key="task.name"))
    assert (sweep.key, sweep.values, sweep.numeric) == ("task.name", ["deit", "swin"], False)
    assert not any("end of the range" in note for note in sweep_notes(sweep))


def test_pairs_that_share_a_seed_only_are_told(make_record: Callable[..., dict[str, Any]], tables: Build) -> None:
    assert not any("Warning" in note for note in sweep_notes(only(tables(RATES))))
    runs = [
        make_record(
            value, lam=lam, hashes__pair=str(size), hashes__order=f"o{size}", config={"data": {"batch_size": size}}
        )
        for size, results in ((32, {0.0: 0.9, 1.0: 0.8}), (64, {0.0: 0.8, 1.0: 0.9}))
        for lam, value in results.items()
    ]
    built = build_tables(pair_runs([run_from_record(each, source="x") for each in runs]), [])
    assert sweep_notes(only(built))[-1] == "Warning: the pairs behind Δ share a seed, but not order."


def test_no_sweep_without_one_single_value_that_differs(
    make_record: Callable[..., dict[str, Any]], tables: Build
) -> None:
    assert build_sweeps(tables({0.1: {0: [0.8], 1: [0.9]}})) == []
    assert build_sweeps(tables({"a": {0: [0.8], 1: [0.9]}, "b": {0: [0.8], 1: [0.9]}}, key="init.weights")) == []
    runs = [
        make_record(0.9, lam=lam, hashes__pair=f"{lr}{wd}", config={"optim": {"lr": lr, "weight_decay": wd}})
        for lr, wd in ((0.1, 0.0), (0.2, 0.1))
        for lam in (0.0, 1.0)
    ]
    two = build_tables(pair_runs([run_from_record(each, source="x") for each in runs]), [])
    assert len(two) == 2
    assert build_sweeps(two) == []


def test_each_experiment_has_its_own_sweep(tables: Build) -> None:
    built = [*tables(RATES), *tables({0.1: {0: [0.8], 1: [0.9]}}, experiment="lra/listops")]
    shown = arranged(built, build_sweeps(built))
    assert [type(each).__name__ for each in shown] == ["Sweep", "Table", "Table", "Table", "Table"]
