"""Only runs that differ in nothing but the conditioning are compared; everything else is named with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.pairing import REASONS, Pairing, config_differences, flat_config, pair_runs
from spectral_conditioning.results.records import Run, run_from_record
from spectral_conditioning.results.summary import build_tables

Record = Callable[..., dict[str, Any]]
CONFIG = {"optim": {"lr": 0.001}, "budget": {"steps": 400}}

# reason → (what the conditioned run's record says instead, words of the refusal)
UNEQUAL: dict[str, tuple[dict[str, Any], str]] = {
    "initial_weights": ({"hashes__initial_weights": "other"}, "initial weights differ (w0 | other)"),
    "order": ({"hashes__order": "other"}, "order differ (o0 | other)"),
    "data": ({"hashes__data": "other"}, "data differ (d | other)"),
    "pair": ({"hashes__pair": "other", "config": {"optim": {"lr": 0.003}}}, "optim.lr 0.001 | 0.003"),
    "steps": ({"steps": 300}, "steps differ (400 | 300)"),
    "code": ({"code__sources": "other"}, "code differs (sources s | other)"),
    "versions": ({"versions": {"torch": "2.13"}}, "versions differ (torch 2.14.1 | 2.13)"),
    "checkpoint": ({"primary__weights": "ema"}, "tested checkpoint differs (last raw weights | last ema weights)"),
}


@pytest.fixture
def run(make_record: Record) -> Callable[..., Run]:
    def build(value: float | None, **changes: Any) -> Run:
        return run_from_record(make_record(value, **changes), source=changes.pop("source", "here"))

    return build


def one(runs: list[Run], **options: Any) -> Pairing:
    (pairing,) = pair_runs(runs, **options)
    return pairing


def test_every_reason_is_covered() -> None:
    assert set(UNEQUAL) == set(REASONS)


@pytest.mark.parametrize("reason", list(UNEQUAL))
def test_unequal_pair_is_refused_with_its_reason(run: Callable[..., Run], reason: str) -> None:
    changes, words = UNEQUAL[reason]
    pairings = pair_runs([run(0.90), run(0.92, lam=10.0, **changes)])
    refused = [each for pairing in pairings for each in pairing.refused]
    assert not any(pairing.pairs for pairing in pairings)
    assert len(refused) == 1
    assert len(refused[0].reasons) == 1
    assert words in refused[0].reasons[0]
    assert f"[{reason}]" in refused[0].reasons[0]


@pytest.mark.parametrize("reason", list(UNEQUAL))
def test_named_reason_is_allowed_and_kept(run: Callable[..., Run], reason: str) -> None:
    changes, words = UNEQUAL[reason]
    pairing = one([run(0.90), run(0.92, lam=10.0, **changes)], allow=[reason])
    assert pairing.pairs[0].difference == pytest.approx(0.02)
    assert len(pairing.pairs[0].allowed) == 1
    assert words in pairing.pairs[0].allowed[0]


def test_allowing_one_reason_does_not_allow_another(run: Callable[..., Run]) -> None:
    pairing = one([run(0.90), run(0.92, lam=10.0, steps=300, hashes__order="x")], allow=["steps"])
    assert not pairing.pairs
    assert [("[order]" in reason) for reason in pairing.refused[0].reasons] == [True]


def test_every_reason_of_a_refusal_is_listed(run: Callable[..., Run]) -> None:
    pairing = one([run(0.90), run(0.92, lam=10.0, steps=300, hashes__order="x", hashes__data="y")])
    assert len(pairing.refused[0].reasons) == 3


@pytest.mark.parametrize("name", ["initial_weights", "order", "data"])
def test_hash_that_was_not_recorded_is_no_equality(run: Callable[..., Run], name: str) -> None:
    missing = {f"hashes__{name}": None}
    pairing = one([run(0.90, **missing), run(0.92, lam=10.0, **missing)])
    assert not pairing.pairs
    assert "not recorded" in pairing.refused[0].reasons[0]


def test_other_metric_cannot_be_allowed(run: Callable[..., Run]) -> None:
    pairing = one([run(0.90), run(0.92, lam=10.0, primary__name="val/f1")], allow=list(REASONS))
    assert not pairing.pairs
    assert "primary metric differs (val/accuracy | val/f1)" in pairing.refused[0].reasons[0]
    pairing = one([run(0.90), run(0.92, lam=10.0, primary__mode="min")])
    assert pairing.refused[0].reasons == ("primary metric differs (higher is better | lower is better)",)


def test_a_reason_is_said_once_with_every_name_that_allows_it(run: Callable[..., Run]) -> None:
    shorter = {"steps": 300, "hashes__pair": "q", "config": {**CONFIG, "budget": {"steps": 300}}}
    pairing = one([run(0.90, config=CONFIG), run(0.92, lam=10.0, **shorter)])
    assert pairing.refused[0].reasons == ("configuration differs: budget.steps 400 | 300 [pair, steps]",)
    pairing = one([run(0.90, config=CONFIG), run(0.92, lam=10.0, **shorter)], allow=["pair"])
    assert pairing.refused[0].reasons == ("steps differ (400 | 300) [steps]",)
    unknown = dict.fromkeys(f"hashes__{name}" for name in ("initial_weights", "order", "data", "pair"))
    pairing = one([run(0.90), run(0.92, lam=10.0, **unknown)])
    assert pairing.refused[0].reasons == (
        "initial weights, order, data, configuration hash: not recorded, so equality cannot be checked "
        "[initial_weights, order, data, pair]",
    )


def test_unknown_reason_names_the_allowed_ones() -> None:
    with pytest.raises(RecordError, match=r"unknown reason 'version'.*allowed: initial_weights.*Closest: versions"):
        pair_runs([], allow=["version"])


def test_runs_without_partner_are_unpaired_and_in_no_mean(run: Callable[..., Run]) -> None:
    """Two baselines and three conditioned runs: the third is no part of a mean over 3."""
    runs = [run(0.90, seed=0), run(0.92, seed=1), run(0.80, seed=9)]
    runs += [run(value, seed=seed, lam=10.0) for seed, value in enumerate([0.91, 0.95, 0.10])]
    pairings = pair_runs(runs)
    (table,) = build_tables(pairings, [])
    assert table.arms[0].values == pytest.approx([91.0, 95.0])
    assert table.baseline is not None
    assert table.baseline.values == pytest.approx([90.0, 92.0])
    assert sorted((each.run.is_baseline, each.run.seed) for each in pairings[0].unpaired) == [(False, 2), (True, 9)]


def test_lambda_zero_is_the_baseline_and_equal_repeats_count_once(
    run: Callable[..., Run], make_settings: Callable[..., dict[str, Any]]
) -> None:
    zero = run(0.90, conditioning=make_settings(lam=0.0))
    pairing = one([run(0.90), zero, run(0.92, lam=10.0)])
    assert zero.is_baseline
    assert len(pairing.pairs) == 1
    assert not pairing.unpaired
    assert "2 records with one result, counted once" in pairing.warnings[0]


def test_records_of_one_run_that_disagree_are_left_out(run: Callable[..., Run]) -> None:
    pairing = one([run(0.90), run(0.92, lam=10.0, source="a"), run(0.93, lam=10.0, source="b"), run(0.9, lam=1.0)])
    assert [pair.run.lam for pair in pairing.pairs] == [1.0]
    assert len(pairing.refused) == 2
    assert "2 records of this arm and seed disagree: a, b" in pairing.refused[0].reasons[0]


def test_same_recorded_name_with_other_settings_is_another_arm(
    run: Callable[..., Run], make_settings: Callable[..., dict[str, Any]]
) -> None:
    plain = run(0.91, conditioning=make_settings())
    shifted = run(0.93, conditioning=make_settings(decay_toward="zero"))
    (table,) = build_tables(pair_runs([run(0.90), plain, shifted]), [])
    assert sorted(arm.label.split("[")[1] for arm in table.arms) == ["decay_toward=correction]", "decay_toward=zero]"]
    assert [arm.values for arm in table.arms] == [[91.0], [93.0]]


def test_configurations_of_one_experiment_are_told_apart(run: Callable[..., Run]) -> None:
    """A learning-rate sweep in both arms: one table for each rate, never a pair across rates."""
    runs = []
    for rate, base, conditioned in ((0.001, 0.90, 0.91), (0.003, 0.80, 0.85)):
        sweep = {"hashes__pair": f"p{rate}", "config": {"optim": {"lr": rate}, "budget": {"steps": 400}}}
        runs += [run(base, **sweep), run(conditioned, lam=10.0, **sweep)]
    tables = build_tables(pair_runs(runs), [])
    assert [(table.setting, table.arms[0].differences) for table in tables] == [
        ("optim.lr=0.001", [pytest.approx(1.0)]),
        ("optim.lr=0.003", [pytest.approx(5.0)]),
    ]


def test_partner_is_found_by_the_configurations_hash(run: Callable[..., Run]) -> None:
    """The hash decides, also where the recorded configurations look alike."""
    runs = [run(0.80, hashes__pair="a"), run(0.90, hashes__pair="b"), run(0.91, lam=10.0, hashes__pair="b")]
    pairings = pair_runs(runs)
    assert [pair.difference for pairing in pairings for pair in pairing.pairs] == [pytest.approx(0.01)]
    assert [each.run.value for pairing in pairings for each in pairing.unpaired] == [0.80]


def test_diverged_run_stopped_early_and_is_still_a_pair(run: Callable[..., Run]) -> None:
    early = {
        "status": "diverged",
        "diverged_at": 120,
        "steps": 120,
        "samples_seen": 99,
        "hashes__order": "of 120 steps",
    }
    pairing = one([run(0.90), run(None, lam=10.0, **early)])
    assert len(pairing.pairs) == 1
    assert pairing.pairs[0].difference is None
    other_data = one([run(0.90), run(None, lam=10.0, **early, hashes__data="other")])
    assert not other_data.pairs


def test_code_is_compared_by_sources_else_by_commit(run: Callable[..., Run]) -> None:
    other_commit = {"code": {"sources": "s", "commit": "zzz", "dirty": True}}
    assert one([run(0.90), run(0.92, lam=10.0, **other_commit)]).pairs
    old = {"code": {"commit": "abc", "dirty": True}}
    pairing = one([run(0.90, **old), run(0.92, lam=10.0, **old)])
    assert pairing.pairs
    assert "equal commits do not prove equal code" in pairing.warnings[0]
    assert one([run(0.90, **old), run(0.92, lam=10.0, code={"commit": "zzz"})]).refused


def test_skipped_steps_are_told(run: Callable[..., Run]) -> None:
    pairing = one([run(0.90), run(0.92, lam=10.0, skipped_steps=3)])
    assert "skipped by the gradient scaler" in pairing.warnings[0]
    assert "seed 0: 3" in pairing.warnings[0]


def test_config_differences_ignore_what_arms_may_vary() -> None:
    a = {"seed": 0, "conditioning": {"lam": 0}, "paths": {"runs": "a"}, "optim": {"lr": 1}, "same": 5}
    b = {"seed": 1, "conditioning": {"lam": 10}, "paths": {"runs": "b"}, "optim": {"lr": 2, "warmup": 3}, "same": 5}
    assert config_differences(a, b) == ["optim.lr 1 | 2", "optim.warmup None | 3"]


def test_where_and_how_closely_a_run_was_watched_is_no_difference() -> None:
    """What stays out of a run's identity, and so out of its folder, cannot tell configurations apart either."""
    a = {"evaluate": {"spectra": 8, "every_steps": 1}, "trainer": {"devices": 1, "precision": "32-true"}, "data": {}}
    b = {
        "evaluate": {"spectra": 0, "every_steps": 2},
        "trainer": {"devices": 4, "precision": "64-true"},
        "data": {"workers": 3},
    }
    assert config_differences(a, b) == ["evaluate.every_steps 1 | 2", "trainer.precision 32-true | 64-true"]
    assert set(flat_config(b)) == {"evaluate.every_steps", "trainer.precision"}
