"""How a data set is prepared: in parts that survive a kill, by any number of processes, to the same bytes.

A recipe lists its parts and makes each by a pure function. A part is written to `FOLDER/.parts` under a temporary name and moved
into place, so that whatever lies there is whole; a second start takes it from there. The finished arrays are written from the
parts in their order, the manifest last, and the parts are removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spectral_conditioning.errors import DataError
from spectral_conditioning.files import atomic_file
from spectral_conditioning.tasks.lra.token_store import (
    SPLITS,
    Ragged,
    content_digest,
    damaged_files,
    read_manifest,
    write_store,
)

PARTS = ".parts"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One data set to write.

    dataset: its name. options: everything its content depends on, paths and machine left out. jobs: the parts in order,
    possibly without end. make: one part from its job, a pure function at module level. assemble: parts → splits; it may
    stop early.
    classes, symbols, pads: see `token_store.write_store`. total: samples expected, for the progress bar.
    """

    dataset: str
    options: Mapping[str, Any]
    jobs: Iterable[Any]
    make: Callable[[Any], Ragged]
    assemble: Callable[[Iterator[Ragged]], Mapping[str, Ragged]]
    classes: int
    symbols: int
    pads: bool = True
    total: int | None = None


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Outcome: the manifest, and whether the folder was there already."""

    manifest: Mapping[str, Any]
    existed: bool


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time prepare `folder`; the others wait and then find it finished."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror}; choose another folder with --output") from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _options_text(recipe: Recipe) -> str:
    return json.dumps({"dataset": recipe.dataset, **recipe.options}, sort_keys=True)


def existing(folder: Path, recipe: Recipe) -> Mapping[str, Any] | None:
    """Return the manifest of a folder that already holds what the recipe makes, every checksum verified.

    None where nothing is finished. DataError where other data lies there, or files were damaged.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    found = {"dataset": manifest["dataset"], **manifest["options"]}
    wanted = json.loads(_options_text(recipe))
    if found != wanted:
        differing = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
        details = ", ".join(f"{k} {found.get(k)!r} there, {wanted.get(k)!r} wanted" for k in differing)
        raise DataError(
            f"{folder} holds other data ({details}); choose another --output, or delete the folder. Nothing was changed"
        )
    damaged = damaged_files(folder, manifest)
    if damaged:
        raise DataError(f"{folder} is damaged: {'; '.join(damaged)}. Delete the folder and prepare it again")
    return manifest


def _read_part(path: Path) -> Ragged | None:
    """Return a stored part, None when it is not there or cannot be read (it is then made again)."""
    try:
        with np.load(path) as stored:
            pairs = stored.get("pairs", None)
            return Ragged(stored["tokens"], stored["lengths"], stored["labels"], pairs)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        path.unlink(missing_ok=True)
        return None


def _write_part(path: Path, part: Ragged) -> None:
    arrays = {"tokens": part.tokens, "lengths": part.lengths, "labels": part.labels}
    if part.pairs is not None:
        arrays["pairs"] = part.pairs
    with atomic_file(path, error=DataError, advice="free some space and start again, finished parts are kept") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _stored_part(make: Callable[[Any], Ragged], job: Any, path: Path) -> None:
    _write_part(path, make(job))


def _end_with_parent() -> None:
    """Let this worker end when the process that started it was killed; it would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _finish(future: Future[None]) -> None:
    try:
        future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was killed (too little memory?); start again with fewer --workers, finished parts are kept"
        ) from error


def iterate_parts(recipe: Recipe, parts: Path, workers: int) -> Generator[Ragged]:
    """Yield the parts in order, made by `workers` processes at most a few ahead, or read when they lie there already."""
    numbered = ((parts / f"{number:06d}.npz", job) for number, job in enumerate(recipe.jobs))
    if workers <= 1:
        for path, job in numbered:
            part = _read_part(path)
            if part is None:
                part = recipe.make(job)
                _write_part(path, part)
            yield part
        return
    # Fresh interpreters: a fork would inherit the locks of this process's threads.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        ahead: list[tuple[Path, Any, Future[None] | None]] = []
        try:
            while True:
                for path, job in itertools.islice(numbered, 2 * workers - len(ahead)):
                    ready = _read_part(path) is not None
                    ahead.append((path, job, None if ready else pool.submit(_stored_part, recipe.make, job, path)))
                if not ahead:
                    return
                path, job, future = ahead.pop(0)
                if future is not None:
                    _finish(future)
                part = _read_part(path)
                yield part if part is not None else recipe.make(job)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _with_progress(parts: Iterator[Ragged], recipe: Recipe, shown: bool) -> Iterator[Ragged]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not shown) as progress:
        task = progress.add_task(recipe.dataset, total=recipe.total)
        for part in parts:
            progress.update(task, advance=len(part.labels))
            yield part


def prepare(recipe: Recipe, folder: Path, *, workers: int = 1, progress: bool = False) -> Prepared:
    """Write `recipe` to `folder`, or verify it when it is there.

    Stopped at any point and called again, it ends with the same files. Raises DataError for other or damaged data in the folder.
    """
    with folder_lock(folder):
        manifest = existing(folder, recipe)
        if manifest is not None:
            return Prepared(manifest, existed=True)
        # Parts of other options must not be taken for ours.
        key = hashlib.sha256(_options_text(recipe).encode()).hexdigest()[:16]
        parts = folder / PARTS / key
        parts.mkdir(parents=True, exist_ok=True)
        made = contextlib.closing(iterate_parts(recipe, parts, workers))
        with made as stream:
            splits = recipe.assemble(_with_progress(stream, recipe, progress))
        manifest = write_store(
            folder,
            splits,
            dataset=recipe.dataset,
            options=recipe.options,
            classes=recipe.classes,
            symbols=recipe.symbols,
            pads=recipe.pads,
        )
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        return Prepared(manifest, existed=False)


def report(folder: Path, prepared: Prepared) -> str:
    """Return what the user is told: where, how much, and the hash of the content."""
    manifest = prepared.manifest
    lines = [f"{manifest['dataset']} in {folder}: {'verified, nothing to do' if prepared.existed else 'written'}"]
    for split in (name for name in SPLITS if name in manifest["splits"]):
        entry = manifest["splits"][split]
        lines.append(
            f"  {split:5} {entry['samples']:>7,} samples, {entry['shortest']}-{entry['longest']} tokens, labels {entry['labels']}"
        )
    lines.append(f"  content sha256 {content_digest(manifest)}")
    return "\n".join(lines)
