"""Laws of the GLUE table: medians, the nine-way average as published, collapsed seeds, and equal seeds for all arms."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.glue import build_suites, table_lines
from spectral_conditioning.results.metric import Metric
from spectral_conditioning.results.records import Run
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS, NINE

# The first release's row (v1): MNLI m/mm 83.9/84.1, QQP 87.3, QNLI 89.5, SST-2 92.2, CoLA 44.5, STS-B 84.6, MRPC 87.5, RTE 53.8.
FIRST_RELEASE = {
    "cola": {"matthews": 0.445},
    "sst2": {"accuracy": 0.922},
    "mrpc": {"f1": 0.875},
    "stsb": {"pearson": 0.846},
    "qqp": {"f1": 0.873},
    "mnli": {"accuracy": 0.839, "mismatched_accuracy": 0.841},
    "qnli": {"accuracy": 0.895},
    "rte": {"accuracy": 0.538},
}
IDENTITY = {"correction": "identity", "lam": 10.0, "placement": "full", "targets": ["q", "k", "v"]}


def made(
    task: str,
    metrics: Mapping[str, float | None],
    *,
    seed: int = 0,
    conditioning: Mapping[str, Any] | None = None,
    chance: float = 0.0,
    **changes: Any,
) -> Run:
    name = GLUE_TASKS[task].metric
    run = Run(
        source=f"{task}/{seed}",
        experiment=f"cramming/glue/{task}",
        arm="baseline" if conditioning is None else "identity λ=10",
        arm_id="none" if conditioning is None else "identity-10",
        seed=seed,
        conditioning=conditioning,
        lam=0.0 if conditioning is None else 10.0,
        status="finished",
        metric=Metric(f"val/{name}", "max"),
        value=metrics[name],
        value_step=1,
        weights="raw",
        rule="last",
        steps=1,
        hashes={"initial_weights": f"w{seed}", "order": f"o{seed}", "data": "d", "pair": "p"},
        chance=chance,
        metrics={f"val/{key}": value for key, value in metrics.items()},
        config={"task": {"name": "cramming", "model": {"glue_task": task}}},
    )
    return dataclasses.replace(run, **changes)


def cola(values: Sequence[float | None], *, seeds: Sequence[int] = (0, 1, 2), **more: Any) -> list[Run]:
    return [made("cola", {"matthews": value}, seed=seed, **more) for seed, value in zip(seeds, values, strict=True)]


def test_average_is_that_of_the_published_row() -> None:
    (suite,) = build_suites(made(task, metrics) for task, metrics in FIRST_RELEASE.items())
    assert suite.average("baseline", NINE, "median") == pytest.approx(0.786, abs=5e-4)
    text = "\n".join(table_lines(suite))
    assert "| 9-way average (as published) | 78.6 |" in text
    assert "| 8-way average (without MNLI mismatched) | 77.9 |" in text


def test_a_collapsed_seed_is_marked_and_the_median_stands() -> None:
    (suite,) = build_suites(cola([0.55, 0.56, 0.0]))
    cell = suite.arms["baseline"]["cola", "matthews"]
    assert (cell.median, cell.collapsed) == (0.55, 1)
    assert cell.mean == pytest.approx(0.37)
    text = "\n".join(table_lines(suite))
    assert "55.0 (mean 37.0; 55.0 56.0 0.0; 1 collapsed)" in text
    assert "collapsed: the run scores no more than a constant prediction." in text


def test_a_run_without_a_value_has_collapsed_and_a_score_of_the_majority_too() -> None:
    (suite,) = build_suites(cola([0.5, None, 0.4]))
    assert suite.arms["baseline"]["cola", "matthews"].collapsed == 1
    (suite,) = build_suites([made("mrpc", {"f1": 0.8122}, chance=0.8122)])
    assert suite.arms["baseline"]["mrpc", "f1"].collapsed == 1


def test_missing_tasks_give_no_published_average() -> None:
    (suite,) = build_suites([*cola([0.5] * 3), *[made("rte", {"accuracy": 0.7}, seed=seed) for seed in range(3)]])
    assert suite.average("baseline", NINE, "median") is None
    text = "\n".join(table_lines(suite))
    assert "| 9-way average (as published) of medians | – |" in text
    assert "| average of the 2 numbers here | 60.0 |" in text
    assert "No published average without SST-2 accuracy, MRPC f1," in text


def test_a_part_that_was_not_measured_is_no_collapse() -> None:
    """Local data may lack MNLI's mismatched part; a run that diverged lacks a value, and that does count."""
    (suite,) = build_suites([made("mnli", {"accuracy": 0.5}, chance=0.34)])
    assert set(suite.arms["baseline"]) == {("mnli", "accuracy")}
    text = "\n".join(table_lines(suite))
    assert "MNLI mismatched accuracy |" not in text
    assert "MNLI mismatched accuracy" in text  # named as missing
    (suite,) = build_suites([made("mnli", {"accuracy": None}, chance=0.34)])
    assert suite.arms["baseline"]["mnli", "accuracy"].collapsed == 1


def test_arms_stand_side_by_side_and_the_baseline_first() -> None:
    (suite,) = build_suites([*cola([0.6] * 3, conditioning=IDENTITY), *cola([0.5] * 3)])
    assert next(iter(suite.arms)) == "baseline"
    assert len(suite.arms) == 2


def test_unequal_seeds_are_refused() -> None:
    runs = [*cola([0.5] * 3), *cola([0.6] * 2, seeds=(0, 1), conditioning=IDENTITY)]
    with pytest.raises(RecordError, match=r"cola: the arms have different seeds .*\[0, 1, 2\].*\[0, 1\]"):
        build_suites(runs)
    with pytest.raises(RecordError, match="hold one twice"):
        build_suites(cola([0.5] * 3, seeds=(0, 1, 1)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 100}, r"steps differ \(1 \| 100\)"),
        ({"hashes": {"initial_weights": "w0", "order": "o0", "data": "e", "pair": "p"}}, "data differ"),
    ],
)
def test_arms_that_are_no_pair_are_refused(changes: dict[str, Any], reason: str) -> None:
    base = made("cola", {"matthews": 0.5})
    arm = made("cola", {"matthews": 0.6}, conditioning=IDENTITY, **changes)
    with pytest.raises(RecordError, match=rf"cramming/glue: cramming/glue/cola, identity λ=10, seed 0: {reason}"):
        build_suites([base, arm])


def test_another_version_of_the_code_is_no_reason_to_print_no_table() -> None:
    other = made("cola", {"matthews": 0.6}, conditioning=IDENTITY, code={"sources": "x"}, versions={"torch": "3"})
    (suite,) = build_suites([made("cola", {"matthews": 0.5}), other])
    assert len(suite.arms) == 2


def test_runs_of_other_tasks_are_left_out() -> None:
    with pytest.raises(RecordError, match="no GLUE runs found"):
        build_suites([])
