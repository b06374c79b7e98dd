"""Reading records: what is broken is named, what is unfinished is named, nothing is skipped in silence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.collect import collect
from spectral_conditioning.results.records import chance_margin, run_from_record
from spectral_conditioning.training.record import RunFolder

Record = Callable[..., dict[str, Any]]


def test_value_is_that_of_the_tested_checkpoint(make_record: Record, write: Callable[..., Path], runs: Path) -> None:
    """Accuracy .9 at step 200, .5 at the end: the record says which was tested, and the log does not change it."""
    log = [{"step": 200, "split": "val", "accuracy": 0.9}, {"step": 400, "split": "val", "accuracy": 0.5}]
    write(0.9, primary__step=200, primary__rule="best", log=log)
    run = collect([runs]).runs[0]
    assert (run.value, run.value_step, run.rule, run.steps) == (0.9, 200, "best", 400)
    assert run.read_log() == log


def test_diverged_run_has_no_value(make_record: Record) -> None:
    run = run_from_record(make_record(0.7, status="diverged", diverged_at=120, steps=120), source="x")
    assert run.diverged
    assert run.value is None
    assert not run.learned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema 2; this version reads schema 1"),
        ({"status": "running"}, "status 'running'; allowed: finished, diverged"),
        ({"seed": "0"}, "key 'seed' is '0', expected int"),
        ({"seed": True}, "key 'seed' is True, expected int"),
        ({"primary__mode": "up"}, "primary.mode 'up'; allowed: max, min"),
        ({"primary__value": None}, "status is finished but val/accuracy is None"),
        ({"primary__value": math.nan}, "status is finished but val/accuracy is nan"),
        ({"primary__value": 81.7}, "val/accuracy is 81.7; records hold it as a fraction"),
        ({"primary__name": None}, "key 'primary.name' is missing (expected str)"),
        ({"hashes": None}, "key 'hashes' is missing (expected dict)"),
        ({"lam": 10.0}, "lam 10.0 without conditioning settings"),
        ({"scale__val_samples": "many"}, "key 'scale.val_samples' is 'many', expected int"),
        ({"scale__val_samples": -5}, "scale.val_samples is -5; it must be at least 0"),
        ({"scale__train_samples": math.nan}, "key 'scale.train_samples' is nan, expected int"),
        ({"scale__parameters": [1]}, "key 'scale.parameters' is [1], expected int"),
        ({"chance": math.nan}, "chance is nan, expected a finite number, or null where it is not known"),
        ({"chance": math.inf}, "chance is inf, expected a finite number"),
        ({"chance": 10}, "chance is 10; that of val/accuracy is a fraction between -1 and 1"),
        ({"chance": "low"}, "key 'chance' is 'low', expected int or float"),
        ({"hashes__order": 7}, "key 'hashes.order' is 7, expected str"),
        ({"metrics": {"val/accuracy": "0.9"}}, "metrics.val/accuracy is '0.9', expected a number or null"),
        ({"saturation": {"saturated": "6"}}, "key 'saturation.saturated' is '6', expected int"),
        ({"code": {"sources": 1}}, "key 'code.sources' is 1, expected str"),
        ({"conditioning": {"lam": 1.0, "correction": "identity", "targets": [1]}}, "conditioning.targets is [1]"),
    ],
)
def test_bad_record_is_an_error_that_names_it(make_record: Record, changes: dict[str, Any], message: str) -> None:
    record = make_record(0.9)
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        record[outer] = {**record[outer], inner: value} if inner else value
    with pytest.raises(RecordError, match="some/run") as caught:
        run_from_record(record, source="some/run")
    assert message in str(caught.value)
    assert "leave this run out, or repeat its spectral train command" in str(caught.value)


def test_every_fault_of_a_record_is_listed_at_once(make_record: Record) -> None:
    record = make_record(0.9, seed=None, steps="many")
    del record["metrics"]
    with pytest.raises(RecordError) as caught:
        run_from_record(record, source="x")
    assert all(f"'{key}'" in str(caught.value) for key in ("seed", "steps", "metrics"))
    assert str(caught.value).endswith("\n  To mend them: leave this run out, or repeat its spectral train command")


def test_what_stands_inside_a_missing_key_is_not_listed_too(make_record: Record) -> None:
    record = make_record(0.9)
    del record["primary"]
    with pytest.raises(RecordError, match=r"^x: key 'primary' is missing \(expected dict\); leave this run out"):
        run_from_record(record, source="x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "the record is a list, expected a JSON object"),
        ('{"schema": 2}', "record schema 2; this version reads schema 1"),
        ('{"schema": 1}', "key 'status' is missing"),
        ("", "is empty"),
    ],
)
def test_every_broken_file_says_what_to_do(write: Callable[..., Path], runs: Path, text: str, reason: str) -> None:
    (write(0.9) / "result.json").write_text(text)
    (fault,) = collect([runs]).broken
    assert reason in fault.reason
    assert fault.reason.endswith("copy the file again, or move it away and repeat the run's spectral train command")


def test_broken_and_unfinished_folders_are_named(write: Callable[..., Path], runs: Path) -> None:
    write(0.9, seed=0)
    half = write(0.9, seed=1)
    text = (half / "result.json").read_text()
    (half / "result.json").write_text(text[: len(text) // 2])
    empty = write(0.9, seed=2)
    (empty / "result.json").write_text("")
    stopped = write(0.9, seed=3, log=[{"step": 10, "split": "train", "loss": 1.0}])
    (stopped / "result.json").unlink()
    with (stopped / "metrics.jsonl").open("a") as log:
        log.write('{"step": 20, "split": "tr')
    found = collect([runs])
    assert [run.seed for run in found.runs] == [0]
    reasons = {Path(fault.source).name: fault.reason for fault in found.broken}
    assert "not complete JSON" in reasons["seed1"]
    assert reasons["seed2"].startswith("is empty")
    for folder in (half, empty):  # `spectral train` on that folder advises the same.
        with pytest.raises(RecordError) as told:
            RunFolder(folder).read_result()
        advice = "copy the file again, or move it away and repeat the run's spectral train command"
        assert reasons[folder.name].endswith(advice)
        assert str(told.value).endswith(advice)
    assert [Path(fault.source).name for fault in found.unfinished] == ["seed3"]
    assert "logged up to step 10" in found.unfinished[0].reason


def test_nothing_found_and_missing_path_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no run folder below .*result\.json"):
        collect([tmp_path])
    with pytest.raises(RecordError, match=r"no such file or folder: .*nowhere"):
        collect([tmp_path / "nowhere"])


def test_one_folder_given_in_many_ways_counts_once(write: Callable[..., Path], runs: Path, tmp_path: Path) -> None:
    folder = write(0.9)
    (runs / "loop").symlink_to(runs, target_is_directory=True)
    (tmp_path / "elsewhere").symlink_to(runs, target_is_directory=True)
    found = collect([runs, folder, folder / "result.json", tmp_path / "elsewhere"])
    assert len(found.runs) == 1


def test_settings_beside_runs_do_not_hide_them(write: Callable[..., Path], runs: Path) -> None:
    folder = write(0.9)
    (runs / "config.yaml").write_text("a study's own file\n")
    (folder / "checkpoints" / "seed9").mkdir(parents=True)
    (folder / "checkpoints" / "seed9" / "result.json").write_text("{}")
    found = collect([runs])
    assert (len(found.runs), found.broken, found.unfinished) == (1, [], [])


def test_chance_margin_is_three_standard_errors(make_record: Record) -> None:
    run = run_from_record(make_record(0.13), source="x")
    assert chance_margin(run) == pytest.approx(3 * (0.1 * 0.9 / 500) ** 0.5)
    assert run.at_chance
    assert not run_from_record(make_record(0.15), source="x").at_chance
    assert run_from_record(make_record(0.03), source="x").at_chance
    assert not run_from_record(make_record(0.03, chance=None), source="x").at_chance


def test_chance_of_a_loss_counts_downwards(make_record: Record) -> None:
    loss = {"primary__name": "val/loss", "primary__mode": "min", "chance": 2.3}
    assert run_from_record(make_record(2.295, **loss), source="x").at_chance
    assert run_from_record(make_record(5.0, **loss), source="x").at_chance
    assert not run_from_record(make_record(1.9, **loss), source="x").at_chance


def test_of_many_runs_none_is_lost(make_record: Record, tmp_path: Path) -> None:
    """How long thousands of folders take is measured by benchmarks/compare.py."""
    from spectral_conditioning.results.compare import compare

    for index in range(400):
        arm, seed = divmod(index, 50)
        record = make_record(0.9 + seed / 1000, seed=seed, lam=float(arm))
        folder = tmp_path / record["experiment"] / record["arm_id"] / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(record))
    comparison = compare([tmp_path])
    assert len(comparison.tables[0].arms) == 7
    assert all(len(arm.pairs) == 50 for arm in comparison.tables[0].arms)
    assert comparison.left_out() == {}
