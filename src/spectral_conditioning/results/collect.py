"""Finding and reading run records below the given folders.

A run folder holds result.json, or metrics.jsonl, or config.yaml in a folder named seed<k>. Every one of them is accounted
for: read, broken (named with the reason), or unfinished (no result yet; named with its last step).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.metric_log import FILE as LOG
from spectral_conditioning.results.metric_log import last_step
from spectral_conditioning.results.records import Run, read_record

RESULT = "result.json"
_SKIP = frozenset(["checkpoints", "wandb", ".hydra", ".git", "__pycache__"])
_SEED_FOLDER = re.compile(r"seed-?\d+")


@dataclass(frozen=True)
class Fault:
    """A run folder without a usable record, and why."""

    source: str
    reason: str


@dataclass
class Collection:
    """What was found: usable runs, broken records, and folders of runs that have not ended."""

    runs: list[Run] = field(default_factory=list)
    broken: list[Fault] = field(default_factory=list)
    unfinished: list[Fault] = field(default_factory=list)


def collect(paths: Sequence[str | Path]) -> Collection:
    """Read every record at or below `paths` (folders, run folders or result.json files), in sorted order.

    Raises RecordError when a path does not exist or no run folder is found at all.
    """
    missing = [str(path) for path in paths if not Path(path).exists()]
    if missing:
        raise RecordError(f"no such file or folder: {', '.join(missing)}")
    collection = Collection()
    for folder in sorted({folder for path in paths for folder in _run_folders(Path(path))}):
        _read_into(collection, folder)
    if not (collection.runs or collection.broken or collection.unfinished):
        searched = ", ".join(str(path) for path in paths)
        raise RecordError(
            f"no run folder below {searched}: looked for {RESULT} and {LOG}. Give the folder that `spectral train` wrote to."
        )
    return collection


def _read_into(collection: Collection, folder: Path) -> None:
    if (folder / RESULT).is_file():
        try:
            collection.runs.append(read_record(folder / RESULT))
        except RecordError as error:
            collection.broken.append(Fault(str(folder), _without_prefix(str(error), folder)))
        return
    step = last_step(folder)
    where = "nothing logged yet" if step is None else f"logged up to step {step}"
    collection.unfinished.append(Fault(str(folder), f"no {RESULT} ({where}): still running, or stopped before its end"))


def _without_prefix(message: str, folder: Path) -> str:
    for prefix in (f"{folder / RESULT}: ", f"{folder}: "):
        message = message.removeprefix(prefix)
    return message


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield the run folders at or below `path`; symbolic links are followed once."""
    if path.is_file():
        yield path.resolve().parent
        return
    seen: set[str] = set()
    for root, folders, files in os.walk(path, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders[:] = []
            continue
        seen.add(real)
        folders[:] = [name for name in folders if name not in _SKIP]
        named_seed = _SEED_FOLDER.match(os.path.basename(real)) is not None
        if RESULT in files or LOG in files or ("config.yaml" in files and named_seed):
            yield Path(real)
