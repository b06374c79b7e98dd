"""Reading from W&B, against a hand-written fake of its public API (`Api.runs`, `Run.config`, `Run.scan_history`).

The fake returns what the client's documentation promises; the service itself is never asked, so paging, permissions and
rate limits are untested.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.collect import collect
from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.describe import describe
from spectral_conditioning.results.markup import markdown
from spectral_conditioning.results.wandb_source import collect_wandb

Record = Callable[..., dict[str, Any]]


class FakeRun:
    def __init__(self, name: str, config: Any, rows: list[dict[str, Any]], state: str = "finished") -> None:
        self.id, self.config, self.rows, self.state = name, config, rows, state

    def scan_history(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


class FakeApi:
    def __init__(self, projects: dict[str, list[FakeRun]]) -> None:
        self.projects = projects

    def runs(self, path: str) -> list[FakeRun]:
        if path not in self.projects:
            raise ValueError(f"Could not find project {path}")
        return self.projects[path]


def rows_of(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log's lines as the run path sends them: `split/` before each name, and W&B's own columns beside them."""
    rows = []
    for index, line in enumerate(log):
        named = {
            f"{line['split']}/{key}": value for key, value in line.items() if key not in ("step", "split", "epoch")
        }
        rows.append({"_step": index, "_runtime": 1.0 * index, "step": line["step"], "epoch": 0.5, **named})
    return rows


def test_same_table_as_from_folders(make_record: Record, write: Callable[..., Path], runs: Path) -> None:
    remote = []
    for seed in range(3):
        for lam in (0.0, 10.0):
            value = 0.90 + seed / 100 + lam / 1000
            log = [
                {"step": step, "split": split, "epoch": 0.5, **values}
                for step in (200, 400)
                for split, values in (("train", {"loss": 1.0}), ("val", {"accuracy": value * step / 400}))
            ]
            write(value, seed=seed, lam=lam, log=log)
            record = make_record(value, seed=seed, lam=lam)
            config = {"seed": seed, "record": record}
            text = json.dumps({key: {"value": held} for key, held in config.items()})
            remote.append(FakeRun(f"id{seed}{lam}", text if seed == 1 else config, rows_of(log)))
    local = compare(collection=collect([runs]))
    online = compare(collection=collect_wandb("team/project", api=FakeApi({"team/project": remote})))
    assert markdown(online.tables) == markdown(local.tables)
    assert describe(online.tables[0]) == describe(local.tables[0])
    assert "at step 400" in describe(online.tables[0])
    assert online.tables[0].runs[0].source.startswith("wandb:team/project/id0")


def test_summary_is_never_read(make_record: Record) -> None:
    """The record's value counts, whatever W&B keeps as last or best."""
    run = FakeRun("a", {"record": make_record(0.9, primary__step=200)}, [{"step": 400, "val/accuracy": 0.5}])
    run.summary = {"val/accuracy": 0.5}  # type: ignore[attr-defined]
    found = collect_wandb("t/p", api=FakeApi({"t/p": [run]})).runs[0]
    assert (found.value, found.value_step) == (0.9, 200)


def test_runs_without_or_with_a_broken_record_are_named(make_record: Record) -> None:
    broken = make_record(0.9)
    del broken["hashes"]
    remote = [FakeRun("a", {"seed": 0}, [], state="running"), FakeRun("b", {"record": broken}, [])]
    found = collect_wandb("t/p", api=FakeApi({"t/p": remote}))
    assert [(fault.source, "state running" in fault.reason) for fault in found.unfinished] == [("wandb:t/p/a", True)]
    assert [(fault.source, "'hashes' is missing" in fault.reason) for fault in found.broken] == [("wandb:t/p/b", True)]


def test_history_with_gaps_and_several_splits_in_a_row(make_record: Record) -> None:
    rows = [
        {"step": 1, "train/loss": 2.0, "val/accuracy": 0.5, "val/loss": None, "lr": 0.1},
        {"train/loss": 1.0},
        {"_step": 7, "spectra/kappa_w/q": 3.0},
    ]
    found = collect_wandb("t/p", api=FakeApi({"t/p": [FakeRun("a", {"record": make_record(0.9)}, rows)]}))
    assert found.runs[0].read_log() == [
        {"step": 1, "split": "train", "loss": 2.0},
        {"step": 1, "split": "val", "accuracy": 0.5},
        {"step": 7, "split": "spectra", "kappa_w/q": 3.0},
    ]


@pytest.mark.parametrize("name", ["project", "a/b/c", "/b", "a/"])
def test_name_of_another_form(name: str) -> None:
    with pytest.raises(RecordError, match="expected ENTITY/PROJECT"):
        collect_wandb(name, api=FakeApi({}))


def test_project_that_cannot_be_read_or_is_empty() -> None:
    with pytest.raises(RecordError, match="cannot be read: Could not find project t/q"):
        collect_wandb("t/q", api=FakeApi({}))
    with pytest.raises(RecordError, match="holds no runs"):
        collect_wandb("t/p", api=FakeApi({"t/p": []}))
