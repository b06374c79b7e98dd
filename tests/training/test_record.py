"""Files of a run are whole or not there."""

import fcntl
import json
import math
import threading
from pathlib import Path

import pytest
import torch

from spectral_conditioning.errors import RecordError
from spectral_conditioning.files import write_atomically
from spectral_conditioning.training.record import (
    LOCK_PAUSE,
    MetricsFile,
    RunFolder,
    hash_tensors,
    read_lines,
    write_json,
)


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path):
    write_json(tmp_path / "r.json", {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}, "e": (1, 2)})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": None, "b": [None, 1.5], "c": {"d": None}, "e": [1, 2]}


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "r.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RecordError, match=r"cannot write .*r\.json: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, keep_until=0)
    for step in (1, 2, 3):
        first.write({"step": step, "loss": step / 10})
    first.close()
    again = MetricsFile(path, keep_until=2)
    again.write({"step": 3, "loss": 9.0})
    again.close()
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(1, 0.1), (2, 0.2), (3, 9.0)]


def test_a_last_line_cut_short_is_dropped_and_a_broken_one_before_is_an_error(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_lines(path) == [{"step": 1}]
    path.write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(RecordError, match="line 1"):
        read_lines(path)


def test_a_broken_record_is_named(tmp_path: Path):
    with RunFolder(tmp_path / "run") as folder:
        folder.result.write_text("{")
        with pytest.raises(RecordError, match=r"result\.json.*move it away"):
            folder.read_result()


def test_a_folder_is_in_use_while_a_run_owns_it_and_a_look_keeps_no_run_out(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    assert not folder.in_use()
    with folder:
        assert RunFolder(folder.path).in_use()
        with pytest.raises(RecordError, match="is in use by process"):
            RunFolder(folder.path).__enter__()
    assert not folder.in_use()
    with open(folder.path / ".lock") as look:
        fcntl.flock(look, fcntl.LOCK_SH)  # what in_use holds, for longer
        threading.Timer(LOCK_PAUSE, look.close).start()
        with RunFolder(folder.path):
            assert folder.in_use()


def test_a_record_that_is_no_object_is_named(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.result.write_text("[1]")
    with pytest.raises(RecordError, match=r"result\.json: the record is a list, expected a JSON object; copy the file"):
        folder.read_result()


def test_the_hash_sees_names_shapes_types_and_values():
    base = [("w", torch.zeros(2, 3))]
    others = [
        [("v", torch.zeros(2, 3))],
        [("w", torch.zeros(3, 2))],
        [("w", torch.zeros(2, 3, dtype=torch.float64))],
        [("w", torch.tensor([[0.0, 0, 0], [0, 0, 1e-30]]))],
        [("w", torch.zeros(2, 3)), ("s", torch.tensor(1.0))],
    ]
    hashes = [hash_tensors(named) for named in [base, *others]]
    assert len(set(hashes)) == len(hashes)
    assert hash_tensors([("w", torch.zeros(3, 2).T)]) == hashes[0]
