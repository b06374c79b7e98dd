"""Golden tables from fixed records, and what must never be missing from a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from spectral_conditioning.results.describe import describe
from spectral_conditioning.results.markup import latex, latex_text, markdown
from spectral_conditioning.results.pairing import pair_runs
from spectral_conditioning.results.published import read_published
from spectral_conditioning.results.records import run_from_record
from spectral_conditioning.results.summary import Table, build_tables
from spectral_conditioning.results.tables import grid, notes, print_table
from spectral_conditioning.results.tidy import ARM_COLUMNS, RUN_COLUMNS, arms_csv, runs_csv

Record = Callable[..., dict[str, Any]]
Build = Callable[..., Table]

GOLDEN = """\
### imagenet/small

| arm | seeds | val/accuracy (%) | median | Δ points | ahead | 95 % t-interval | p t (Holm) | seeds needed | each seed | \
remarks |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| baseline | 3 | 91.00 ± 1.00 | 91.00 | – | – | – | – | – | 90.00  91.00  92.00 |  |
| identity λ=1 (full, qkv) | 3 | 92.00 ± 2.00 | 92.00 | +1.00 ± 1.00 | 2 of 3 | [−1.48, +3.48] | .225 (.225) | 10 | \
90.00  92.00  94.00 |  |
| identity λ=10 (full, qkv) | 3 | 51.40 ± 1.70 (2 of 3) | 50.20 | −40.10 ± 0.99 (2 of 3) | 0 of 3 | – | – | – | \
8.00\\*  50.20  52.60 | 1 collapsed to chance (seed 0) |

- These runs: 0.3 M parameters, 1,297 training samples, 500 validation samples, 400 steps. val/accuracy at the tested \
checkpoint, mean ± standard deviation; higher is better; seeds 0, 1, 2.
- The paper's nearest row (percent, means over 5 seeds): ViT-B accuracy 80.7 ± 0.41 → 81.7 ± 0.38 (+1.0).
- Not a reproduction of the paper's figures: another scale (1,297 training samples; the paper's: 1,281,167).
- Runs that diverged or ended at chance (*) are named and enter no mean, difference or test, which can flatter their arm; \
the median and the seeds ahead count them.
- t-interval: Student's, of Δ, for each arm by itself; Holm's correction is in the p in brackets.
- Seeds needed: pairs at which a paired t-test would see the paper's gain of +1.00 points with 80 % power at α = .05, given \
the spread of the differences seen here.
"""


@pytest.fixture
def table(make_record: Record) -> Build:
    """table({0: baseline values, λ: values, …}, allow=…, **changes to every record) builds the one table."""

    def build(values: dict[float, list[float | None]], *, allow: tuple[str, ...] = (), **changes: Any) -> Table:
        runs = [
            run_from_record(
                make_record(value, seed=seed, lam=lam, **changes, **({} if value is not None else DIVERGED)), source="x"
            )
            for lam, arm in values.items()
            for seed, value in enumerate(arm)
        ]
        (built,) = build_tables(pair_runs(runs, allow=allow), read_published())
        return built

    return build


DIVERGED = {"status": "diverged", "diverged_at": 120, "steps": 120}


def fixed(table: Build) -> Table:
    return table({0: [0.90, 0.91, 0.92], 1: [0.90, 0.92, 0.94], 10: [0.08, 0.502, 0.526]})


def test_golden_markdown(table: Build) -> None:
    assert markdown([fixed(table)]) == GOLDEN


def test_golden_arm_csv(table: Build) -> None:
    lines = list(csv.DictReader(io.StringIO(arms_csv([fixed(table)]))))
    assert list(lines[0]) == ARM_COLUMNS
    wanted = (
        "arm",
        "lam",
        "seeds",
        "learned",
        "collapsed",
        "mean",
        "std",
        "median",
        "pairs",
        "seeds_ahead",
        "difference",
        "paper_gain",
    )
    assert [[line[key] for key in wanted] for line in lines] == [
        ["baseline", "0", "3", "3", "0", "91", "1", "91", "0", "", "", "1"],
        ["identity λ=1 (full, qkv)", "1", "3", "3", "0", "92", "2", "92", "3", "2", "1", "1"],
        ["identity λ=10 (full, qkv)", "10", "3", "2", "1", "51.4", "1.6970563", "50.2", "2", "0", "-40.1", "1"],
    ]
    assert float(lines[1]["p_t"]) == pytest.approx(0.22540, abs=1e-5)  # t = √3 on two degrees of freedom
    assert float(lines[1]["interval_high"]) == pytest.approx(1 + 4.30265 / 3**0.5, abs=1e-5)


def test_arm_csv_holds_both_intervals(table: Build) -> None:
    base = [0.90, 0.91, 0.92, 0.93, 0.94]
    gains = [0.002, 0.011, 0.004, -0.003, 0.009]
    built = table({0: base, 1: [value + gain for value, gain in zip(base, gains, strict=True)]})
    line = list(csv.DictReader(io.StringIO(arms_csv([built]))))[1]
    student, bootstrap = (
        [float(line[f"{name}_{end}"]) for end in ("low", "high")] for name in ("interval", "bootstrap")
    )
    assert student[0] < bootstrap[0] < float(line["difference"]) < bootstrap[1] < student[1]
    # The interval and the p beside it say the same.
    assert student[0] < 0 < float(line["p_t"]) - 0.05


def test_seeds_ahead_count_failures_and_say_whose(table: Build) -> None:
    """Seeds: ahead, arm failed, baseline failed, both failed, behind."""
    built = table({0: [0.90, 0.91, 0.10, 0.10, 0.93], 1: [0.92, 0.10, 0.92, 0.10, 0.92]})
    (arm,) = built.arms
    assert (arm.wins, len(arm.pairs), len(arm.differences), arm.failures, arm.lost_to_baseline) == (2, 5, 2, 2, 1)
    assert grid(built).rows[1][grid(built).columns.index("ahead")] == "2 of 5"
    assert any(
        "The baseline failed in 2 of 5 seeds" in note and "flatters the baseline" in note for note in notes(built)
    )
    assert "(ahead in 2 of 5 pairs; 2 failed; the baseline failed in 1)" in describe(built)
    assert any("learned in no seed" in note for note in notes(table({0: [0.1], 1: [0.9]})))
    assert not any("The baseline failed" in note for note in notes(table({0: [0.9], 1: [0.1]})))


def test_no_seeds_are_promised_without_a_spread_or_from_the_seeds_that_learned(table: Build) -> None:
    def needed(arm: list[float | None]) -> str:
        built = table({0: [0.90, 0.91, 0.92, 0.93], 1: arm})
        return grid(built).rows[1][grid(built).columns.index("seeds needed")]

    assert needed([0.91, 0.93, 0.93, 0.95]).isdigit()
    assert needed([0.91, 0.92, 0.93, 0.94]) == "–"  # one gain in every seed
    assert needed([0.90, 0.91, 0.92, 0.93]) == "–"
    assert needed([0.91, 0.93, 0.93, 0.1]) == "–"
    assert needed([0.91, 0.93, 0.93, None]) == "–"


def test_run_csv_holds_every_run_left_out_ones_too(make_record: Record) -> None:
    runs = [
        run_from_record(make_record(value, seed=seed, lam=lam, **changes), source=f"{lam}-{seed}")
        for value, seed, lam, changes in (
            (0.90, 0, 0.0, {}), (0.92, 0, 10.0, {}), (0.93, 0, 1.0, {"hashes__order": "x"}), (0.95, 7, 1.0, {}),
        )
    ]  # fmt: skip
    pairings = pair_runs(runs)
    lines = list(csv.DictReader(io.StringIO(runs_csv(build_tables(pairings, []), pairings))))
    assert list(lines[0]) == RUN_COLUMNS
    assert {line["source"]: (line["comparison"], line["value"], line["difference"]) for line in lines} == {
        "0.0-0": ("paired", "0.9", ""),
        "10.0-0": ("paired", "0.92", "0.02"),
        "1.0-0": ("refused", "0.93", ""),
        "1.0-7": ("unpaired", "0.95", ""),
    }
    assert "order differ" in next(line["reason"] for line in lines if line["source"] == "1.0-0")


def test_collapsed_seed_is_named_and_the_median_stands(table: Build) -> None:
    """Matthews correlations .55 .56 0: median .55, one collapse, and the mean is not decided by it."""
    metric = {"primary__name": "val/matthews", "chance": 0.0}
    built = table({0: [0.54, 0.55, 0.56], 10: [0.55, 0.56, 0.0]}, **metric)
    arm = built.arms[0]
    assert (arm.median, arm.values) == (pytest.approx(55.0), pytest.approx([55.0, 56.0]))
    assert arm.flags() == ["1 collapsed to chance (seed 2)"]
    assert arm.differences == pytest.approx([1.0, 1.0])


def test_arm_at_chance_has_no_mean(table: Build) -> None:
    built = table({0: [0.9, 0.9], 10: [0.1, 0.09]})
    row = dict(zip(grid(built).columns, grid(built).rows[1], strict=True))
    assert row["val/accuracy (%)"] == "at chance"
    assert row["each seed"] == "10.00*  9.00*"
    assert row["Δ points"] == "–"
    assert row["remarks"] == "at chance in every seed"


def test_diverged_run_stays_in_the_table(table: Build) -> None:
    built = table({0: [0.9, 0.91], 10: [0.92, None]})
    row = dict(zip(grid(built).columns, grid(built).rows[1], strict=True))
    assert row["val/accuracy (%)"] == "92.00 (1 of 2)"
    assert row["each seed"] == "92.00  diverged"
    assert row["median"] == "diverged"
    assert row["remarks"] == "seed 1 diverged at step 120"
    assert any("can flatter their arm" in note for note in notes(built))
    assert "120 steps" not in built.scale_text()


def test_saturated_start_is_named_with_its_seeds(make_record: Record) -> None:
    def label(*saturated: int) -> list[str]:
        records = [make_record(0.9, seed=seed, saturation=None) for seed in range(len(saturated))]
        records += [
            make_record(0.9, seed=seed, lam=10.0, saturation={"layers": [], "saturated": count, "total": 6})
            for seed, count in enumerate(saturated)
        ]
        (built,) = build_tables(pair_runs([run_from_record(each, source="x") for each in records]), [])
        return built.arms[0].flags()

    assert label(0, 0) == []
    assert label(5, 6) == ["started saturated (6 of 6 layers)"]
    assert label(0, 1) == ["started saturated (up to 1 of 6 layers, in 1 of 2 seeds)"]


def test_unequal_seed_sets_are_compared_by_pairs_only(table: Build) -> None:
    built = table({0: [0.90, 0.91, 0.80], 1: [0.91, 0.92], 10: [0.91, 0.92, 0.81]})
    assert built.arms[0].difference_mean == pytest.approx(1.0)
    assert any("Arms differ in their seeds" in note for note in notes(built))
    assert grid(built).rows[1][grid(built).columns.index("each seed")] == "0:91.00  1:92.00"


def test_lower_is_better(table: Build) -> None:
    loss = {"primary__name": "val/loss", "primary__mode": "min", "chance": 2.3}
    built = table({0: [1.0, 1.1], 10: [0.9, 2.299]}, **loss)
    arm = built.arms[0]
    assert (arm.wins, arm.differences) == (1, [pytest.approx(-0.1)])
    assert arm.flags() == ["1 collapsed to chance (seed 1)"]
    assert "lower is better" in notes(built)[0]
    assert built.metric.label == "val/loss"
    assert "The paper gives no number for val/loss" in built.standing()


def test_allowed_difference_is_printed_on_the_table(make_record: Record) -> None:
    runs = [make_record(0.90), make_record(0.92, lam=10.0, versions={"torch": "2.13"})]
    (built,) = build_tables(pair_runs([run_from_record(r, source="x") for r in runs], allow=["versions"]), [])
    loud = "COMPARED ALTHOUGH UNEQUAL, by request: versions differ (torch 2.14.1 | 2.13)."
    assert loud in notes(built)
    assert loud in markdown([built])
    assert latex_text(loud) in latex([built])


def test_small_scale_is_never_called_a_reproduction(table: Build) -> None:
    assert "Not a reproduction" in table({0: [0.9], 10: [0.91]}).standing()
    assert "Not a reproduction" in table({0: [0.9], 10: [0.91]}, experiment="imagenet/vit_b").standing()
    full = {"experiment": "imagenet/vit_b", "scale__train_samples": 1281167}
    assert table({0: [0.9], 10: [0.91]}, **full).standing() == "Trained on as many samples as the paper's."


def test_statistics_appear_with_enough_pairs(table: Build) -> None:
    def columns(count: int) -> set[str]:
        base = [0.90 + 0.003 * seed for seed in range(count)]
        return set(grid(table({0: base, 10: [value + 0.01 for value in base]})).columns)

    assert columns(2).isdisjoint({"p t (Holm)", "95 % t-interval", "p sign-flip (Holm)", "seeds needed"})
    assert columns(3) >= {"p t (Holm)", "95 % t-interval"}
    assert columns(5).isdisjoint({"p sign-flip (Holm)"})
    assert columns(6) >= {"p sign-flip (Holm)"}


def test_holm_runs_over_the_arms_of_a_table(table: Build) -> None:
    base = [0.90, 0.91, 0.92, 0.93]
    one = table({0: base, 1: [0.91, 0.925, 0.93, 0.945]})
    two = table({0: base, 1: [0.91, 0.925, 0.93, 0.945], 10: [0.91, 0.90, 0.93, 0.92]})
    assert one.arms[0].p_t_holm == one.arms[0].p_t
    assert two.arms[0].p_t_holm == pytest.approx(2 * (one.arms[0].p_t or 0))


def test_arms_stand_by_correction_then_lambda(
    make_record: Record, make_settings: Callable[..., dict[str, Any]]
) -> None:
    arms = [
        make_settings("polar", lam=1.0), make_settings(lam=10.0), make_settings("orthogonal", lam=0.5), make_settings(lam=0.3),
        make_settings(lam=10.0, placement="fused"), make_settings("scaled_identity", lam=10.0), make_settings("svd", lam=1.0),
        make_settings(lam=10.0, targets=["q"]), make_settings(lam=0.1, relative=True),
    ]  # fmt: skip
    records = [make_record(0.9), *(make_record(0.91, conditioning=arm) for arm in arms)]
    (built,) = build_tables(pair_runs([run_from_record(each, source="x") for each in records]), [])
    assert [arm.label for arm in built.all_arms] == [
        "baseline", "identity λ=0.3 (full, qkv)", "identity λ=10 (full, qkv)", "identity λ=10 (full, q)",
        "identity λ=10 (fused, qkv)", "identity λ=0.1 (full, qkv)", "polar λ=1 (full, qkv)", "svd λ=1 (full, qkv)",
        "scaled_identity λ=10 (full, qkv)",
        "orthogonal λ=0.5 (full, qkv)",
    ]  # fmt: skip


def test_missing_paper_files_are_not_taken_for_silence_of_the_paper(make_record: Record) -> None:
    runs = [run_from_record(make_record(0.9, lam=lam), source="x") for lam in (0.0, 10.0)]
    (built,) = build_tables(pair_runs(runs), [])
    assert "were not found" in built.standing()


@pytest.mark.parametrize("width", [80, 100, 160, 400])
def test_terminal_of_any_width_shows_every_number_whole(table: Build, width: int) -> None:
    built = table({0: [0.90, 0.91, 0.92, 0.93, 0.94, 0.95], 10: [0.91, 0.9255, 0.08, 0.94, 0.95, 0.96], 1: [0.95] * 6})
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_table(built, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for arm in built.all_arms:
        assert all(f"{value:.2f}" in text for value in arm.values)
        for wanted in (arm.metric.number(arm.mean), arm.metric.number(arm.difference_mean, signed=True)):
            assert wanted in text
    assert "8.00*" in text


def test_latex_is_escaped_and_names_failures(table: Build) -> None:
    text = latex([fixed(table)])
    rows = text[text.index(r"\toprule") : text.index(r"\bottomrule")].splitlines()
    assert text.count(r"\midrule") == 2
    assert len({row.count("&") for row in rows if "&" in row}) == 1
    assert r"val/accuracy (\%)" in text
    assert r"1 collapsed to chance (seed 0)" in text
    assert not set("λΔ±−→–") & set(text)
    assert latex_text(r"a_b & 5% {x} \y") == r"a\_b \& 5\% \{x\} \textbackslash{}y"
