"""The paragraph says what the numbers say, and the curves it rests on are read right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.results.compare import Comparison, compare
from spectral_conditioning.results.curves import (
    MOST_POINTS,
    Logs,
    arm_curve,
    curve_name,
    middle_curve,
    steps_to_baseline,
    thin,
)
from spectral_conditioning.results.describe import describe
from spectral_conditioning.results.metric_log import curve, first_step_at_least, read_metric_log

Write = Callable[..., Path]


def accuracy_log(values: list[float], every: int = 100, split: str = "val") -> list[dict[str, Any]]:
    return [{"step": every * (i + 1), "split": split, "accuracy": value} for i, value in enumerate(values)]


@pytest.fixture
def two_seeds(write: Write, runs: Path) -> Comparison:
    for seed, final in enumerate((0.90, 0.92)):
        write(final, seed=seed, log=accuracy_log([0.5, 0.7, 0.8, final]))
        write(final + 0.02, seed=seed, lam=1.0, log=accuracy_log([0.7, final, 0.93, final + 0.02]))
        saturated = {"layers": [], "saturated": 5, "total": 6}
        value = (0.08, 0.5)[seed]
        write(value, seed=seed, lam=10.0, log=accuracy_log([0.1, 0.1, 0.2, value]), saturation=saturated)
    return compare([runs])


def test_paragraph_in_full(two_seeds: Comparison) -> None:
    assert describe(two_seeds.tables[0]) == (
        "imagenet/small, 2 seeds: the baseline ended at 91.00 % val/accuracy. "
        "Better than the baseline by the mean paired difference (in points): "
        "identity λ=1 (full, qkv) by 2.00 (ahead in 2 of 2 pairs). "
        "Worse than the baseline by the mean paired difference (in points): "
        "identity λ=10 (full, qkv) by 42.00 (ahead in 0 of 2 pairs; 1 failed). "
        "1 of 2 runs of identity λ=10 (full, qkv) ended at chance. Those runs are in no mean or difference. "
        "Started with saturated attention (close to the identity, so almost no gradient reaches Q and K): "
        "identity λ=10 (full, qkv) (5 of 6 layers). "
        "The baseline's final value was first reached (median over seeds) by the baseline itself at step 400 and "
        "identity λ=1 (full, qkv) at step 200; never by identity λ=10 (full, qkv). "
        "With at most 2 pairs an arm these differences are leads, not results: too few seeds to tell a small gain from "
        "chance. "
        "Not a reproduction of the paper's figures: another scale (1,297 training samples; the paper's: 1,281,167)."
    )


def test_certainty_follows_the_adjusted_p(write: Write, runs: Path) -> None:
    for seed in range(6):
        base = 0.90 + 0.01 * seed
        write(base, seed=seed)
        write(base + 0.010 + 0.001 * (seed % 2), seed=seed, lam=1.0)
        write(base + 0.010 * (-1) ** seed, seed=seed, lam=10.0)
    text = describe(compare([runs]).tables[0])
    assert "at the 5 % level after Holm's correction (paired t-test): identity λ=1 (full, qkv) (better)." in text
    assert "Level to the digits shown: identity λ=10 (full, qkv)." in text
    assert "leads, not results" not in text
    assert "first reached" not in text  # nothing was logged
    assert "never" not in text


def test_nothing_clear_is_said_so(write: Write, runs: Path) -> None:
    for seed in range(5):
        write(0.90, seed=seed)
        write(0.90 + 0.01 * (seed - 1.8), seed=seed, lam=1.0)
    assert "After Holm's correction no difference is told from chance" in describe(compare([runs]).tables[0])


def test_baseline_that_never_learned(write: Write, runs: Path) -> None:
    write(0.1)
    write(0.9, lam=1.0)
    text = describe(compare([runs]).tables[0])
    assert "no baseline run learned, so there is nothing to compare with" in text
    assert "No pair learned in both arms" in text


def test_the_best_of_many_is_called_that(write: Write, runs: Path) -> None:
    write(0.9)
    for index in range(8):
        write(0.9 + index / 1000, lam=1.0 + index)
    text = describe(compare([runs]).tables[0])
    assert "The best of 8 arms was chosen by its result" in text
    assert "and 2 more" in text  # seven better arms, five named
    assert "Level to the digits shown: identity λ=1 (full, qkv)." in text


def test_no_best_is_praised_where_none_gained(write: Write, runs: Path) -> None:
    """Seven arms behind or level (to the digits shown), one failed: there is no gain to overstate."""
    write(0.9)
    for index in range(7):
        write(0.90001 - index / 1000, lam=1.0 + index)
    write(0.1, lam=9.0)
    text = describe(compare([runs]).tables[0])
    assert "Level to the digits shown: identity λ=1 (full, qkv)." in text
    assert "best of" not in text
    assert "overstated" not in text


def test_step_of_the_baselines_value_is_counted_per_pair(two_seeds: Comparison) -> None:
    table = two_seeds.tables[0]
    reached = [steps_to_baseline(table, arm, Logs()) for arm in table.all_arms]
    assert [(each.step, each.reached, each.of) for each in reached] == [(400, 2, 2), (200, 2, 2), (None, 0, 2)]


def test_test_metric_is_followed_on_validation(write: Write, runs: Path) -> None:
    """The target is the baseline's validation value at the tested step, not its test value."""
    test = {"primary__name": "test/accuracy", "primary__step": 200}
    write(0.95, log=accuracy_log([0.6, 0.7, 0.65]), metrics={"test/accuracy": 0.95}, **test)
    write(0.96, lam=1.0, log=accuracy_log([0.69, 0.7, 0.8]), metrics={"test/accuracy": 0.96}, **test)
    table = compare([runs]).tables[0]
    assert curve_name(table.runs[0]) == "val/accuracy"
    assert steps_to_baseline(table, table.arms[0], Logs()).step == 200


def test_middle_curve_leaves_failed_runs_out(two_seeds: Comparison) -> None:
    table = two_seeds.tables[0]
    lines = arm_curve(table.arms[1], "val/accuracy", Logs(), shown=table.metric.shown)
    assert lines.middle == [(100, 10.0), (200, 10.0), (300, 20.0), (400, 50.0)]
    assert [points[-1] for points in lines.failed] == [(400, 8.0)]


def test_mean_is_over_steps_that_all_seeds_logged() -> None:
    assert middle_curve([[(1, 1.0), (2, 3.0)], [(2, 5.0), (3, 9.0)]]) == [(2, 4.0)]
    assert middle_curve([]) == []


@pytest.mark.parametrize(
    ("values", "median"),
    [([2.0, 3.0, 1e12], 3.0), ([1e2, 1e4], 1e3), ([1.0, 4.0, 9.0, 1e12], 6.0), ([0.0, 4.0], 2.0), ([-1.0, 3.0], 1.0),
     ([1e300, 1e300], 1e300)],
)  # fmt: skip
def test_median_is_not_drawn_by_one_seed_decades_away(values: list[float], median: float) -> None:
    ((step, found),) = middle_curve([[(7, value)] for value in values], "median")
    assert (step, found) == (7, pytest.approx(median, rel=1e-12))


def test_step_at_which_the_baseline_is_reached_was_evaluated(write: Write, runs: Path) -> None:
    for seed, reaching in enumerate(([0.95], [0.5, 0.95], [0.1])):
        write(0.9 if seed < 2 else 0.1, seed=seed, log=accuracy_log([0.9]))
        write(0.95, seed=seed, lam=1.0, log=accuracy_log(reaching))
    table = compare([runs]).tables[0]
    assert steps_to_baseline(table, table.arms[0], Logs()).step == 100  # of 100 and 200; 150 was no evaluation
    text = describe(table)
    assert "first reached (median over the seeds whose baseline learned) by" in text
    assert "identity λ=1 (full, qkv) at step 100" in text


def test_thinning_keeps_mean_and_end() -> None:
    points = [(step, float(step)) for step in range(1, 10 * MOST_POINTS + 1)]
    thinned = thin(points)
    assert len(thinned) == MOST_POINTS
    assert thinned[0] == (10, 5.5)
    assert thinned[-1][0] == points[-1][0]
    assert sum(y for _, y in thinned) / MOST_POINTS == pytest.approx(sum(y for _, y in points) / len(points))


def test_log_after_a_crash_and_a_resume(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "split": "val", "accuracy": 0.1}\n'
        '{"step": 2, "split": "val", "accuracy": null}\n'
        '{"step": 3, "split": "val", "accuracy": 0.3}\n'
        '{"step": 3, "split": "val", "accuracy": 0.4}\n'
        '{"step": 3, "split": "train", "accuracy": 0.9}\n'
        '{"step": 4, "split": "v'
    )
    assert curve(read_metric_log(tmp_path), "val/accuracy") == [(1, 0.1), (3, 0.4)]
    assert read_metric_log(tmp_path).damaged == 0  # only its end was cut off
    assert read_metric_log(tmp_path / "none") == []


def test_whole_log_is_read_as_one_and_a_line_of_two_values_is_none(tmp_path: Path) -> None:
    whole = [{"step": 1, "split": "val", "loss": 0.5}, {"step": 2, "split": "val", "loss": 0.25}]
    texts = list(map(json.dumps, whole))
    (tmp_path / "metrics.jsonl").write_text("\n".join([*texts, "[1]", '{"step": "3"}', ""]))
    assert read_metric_log(tmp_path) == whole
    assert read_metric_log(tmp_path).damaged == 2  # the last line is empty, not damaged
    (tmp_path / "metrics.jsonl").write_text(",".join(texts) + "\n" + texts[0])
    assert read_metric_log(tmp_path) == whole[:1]


def test_first_step_at_least_has_a_direction() -> None:
    points = [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert first_step_at_least(points, 2.0, sign=-1) == 2
    assert first_step_at_least(points, 2.0, sign=1) == 1
    assert first_step_at_least(points, 0.5, sign=-1) is None
