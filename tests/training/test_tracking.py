"""What lands in an offline W&B run is read back from its file."""

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the records of a .wandb file: after a header of 7 bytes, LevelDB's log format in blocks of 32 KiB."""
    data, position, parts = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<xxxxHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def read_back(folder: Path) -> dict[str, Any]:
    """Read the one offline run below `folder`; W&B's own process may still be writing when `finish` returns."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    for _ in range(300):
        found = read_file(path)
        if "exit" in found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def read_file(path: Path) -> dict[str, Any]:
    """Return id, group, job type, tags, config, history, summary and exit code of an offline run."""
    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}}
    for data in blocks(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found |= {"id": run.run_id, "group": run.run_group, "job_type": run.job_type, "tags": sorted(run.tags)}
            found["config"] |= {item.key: json.loads(item.value_json) for item in run.config.update}
        elif kind == "config":
            found["config"] |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
        elif kind == "history":
            items = {
                (".".join(item.nested_key) or item.key): json.loads(item.value_json) for item in record.history.item
            }
            found["history"].append(items)
        elif kind == "summary":
            for item in record.summary.update:
                found["summary"][".".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return found


def test_two_runs_in_one_process_stay_apart_and_hold_what_they_measured(train: Callable[..., Any]):
    outcomes = [train("logger=wandb_offline", f"conditioning={arm}") for arm in ("none", "identity")]
    seen = [read_back(outcome.folder) for outcome in outcomes]
    assert seen[0]["id"] != seen[1]["id"]
    for outcome, run in zip(outcomes, seen, strict=True):
        assert run["group"] == "imagenet/small"
        assert run["job_type"] == outcome.record["arm_id"]
        assert {"imagenet", "seed0", outcome.record["arm_id"]} <= set(run["tags"])
        assert run["config"]["record"]["hashes"] == outcome.record["hashes"]
        accuracies = [line["val/accuracy"] for line in run["history"] if "val/accuracy" in line]
        assert len(accuracies) == 3
        assert accuracies[-1] == outcome.record["primary"]["value"]
        assert run["summary"]["val/accuracy"] == outcome.record["primary"]["value"]
