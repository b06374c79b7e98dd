"""Records and logs read from Weights & Biases: the same table as from run folders.

Each W&B run's config holds the record under `record` (written when the run ended); its history holds the log's lines with
`split/` before each name and the optimizer step under `step`. The tests use a hand-written fake of W&B's public API, not the
service: what the fake does not know (paging, rate limits, permissions) is untested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.collect import Collection, Fault
from spectral_conditioning.results.records import LogLines, run_from_record


def collect_wandb(project: str, *, api: Any = None) -> Collection:
    """Read every run of `project` ("ENTITY/PROJECT") through `api`, by default `wandb.Api()`.

    Raises RecordError when the name has another form, wandb is not installed, or the project cannot be read or is empty.
    """
    if project.count("/") != 1 or not all(project.split("/")):
        raise RecordError(f"--wandb {project!r}: expected ENTITY/PROJECT, e.g. my-team/spectral-conditioning")
    try:
        runs = list((api or _public_api()).runs(project))
    except RecordError:
        raise
    except Exception as error:  # the client raises its own, requests' and ValueError, by version
        raise RecordError(
            f"W&B project {project!r} cannot be read: {error}. Is it spelt right, and are you logged in?"
        ) from error
    collection = Collection()
    for remote in sorted(runs, key=lambda each: str(each.id)):
        _read_into(collection, remote, project)
    if not runs:
        raise RecordError(f"W&B project {project!r} holds no runs")
    return collection


def _public_api() -> Any:
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise RecordError("--wandb needs the package wandb: pip install 'spectral-conditioning[train]'") from error
    return wandb.Api()


def _read_into(collection: Collection, remote: Any, project: str) -> None:
    source = f"wandb:{project}/{remote.id}"
    record = _plain(remote.config).get("record")
    if record is None:
        reason = f"no record in its config (state {remote.state}): still running, or stopped before its end"
        collection.unfinished.append(Fault(source, reason))
        return
    try:
        collection.runs.append(run_from_record(record, source=source, read_log=lambda: history_lines(remote)))
    except RecordError as error:
        collection.broken.append(Fault(source, str(error).removeprefix(f"{source}: ")))


def history_lines(remote: Any) -> LogLines:
    """Return a W&B run's history as lines of metrics.jsonl: one for each step and split."""
    lines: LogLines = []
    for row in remote.scan_history():
        step = row.get("step", row.get("_step"))
        if step is None:
            continue
        by_split: dict[str, dict[str, Any]] = {}
        for name, value in row.items():
            split, slash, key = name.partition("/")
            if slash and value is not None:
                by_split.setdefault(split, {})[key] = value
        lines += [{"step": int(step), "split": split, **values} for split, values in by_split.items()]
    return lines


def _plain(config: Any) -> Mapping[str, Any]:
    """A run's config is a mapping, or JSON text of one in which each value stands under `value`."""
    if isinstance(config, str):
        config = {
            key: held.get("value") if isinstance(held, dict) else held for key, held in json.loads(config).items()
        }
    return config if isinstance(config, Mapping) else {}
