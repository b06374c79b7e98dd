"""Preparing data: the same bytes whatever happens on the way."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra import listops, token_store
from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions
from spectral_conditioning.tasks.lra.preparation import Recipe, prepare, report
from spectral_conditioning.tasks.lra.token_store import Ragged, content_digest, read_manifest


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir()) if p.is_file()}


made: list[int] = []


def make(job: int) -> Ragged:
    made.append(job)
    return Ragged.of([bytes([job % 7] * (job + 1)), b"\1"], [job % 2, 1])


def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
    whole = Ragged.joined(list(parts))
    return {split: whole.take(np.arange(i, len(whole.labels), 3)) for i, split in enumerate(("train", "val", "test"))}


def recipe(**changes: Any) -> Recipe:
    given = {"dataset": "text", "options": {"origin": "test"}, "jobs": range(6), "make": make, "assemble": assemble}
    return Recipe(**{**given, "classes": 2, "symbols": 256, **changes})


def test_twice_gives_the_same_files_and_does_nothing(tmp_path: Path) -> None:
    first = prepare(recipe(), tmp_path / "d")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "d").glob("*.npy")}
    made.clear()
    second = prepare(recipe(), tmp_path / "d")
    assert (first.existed, second.existed) == (False, True)
    assert made == []
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "d").glob("*.npy")} == before
    assert "verified, nothing to do" in report(tmp_path / "d", second)
    assert content_digest(first.manifest) in report(tmp_path / "d", first)
    prepare(recipe(), tmp_path / "again")
    assert digests(tmp_path / "again") == digests(tmp_path / "d")


def test_manifest_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    manifest = prepare(recipe(), tmp_path / "d").manifest
    listed = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    found = digests(tmp_path / "d")
    assert listed == {name: found[name] for name in listed}
    assert set(found) == {*listed, "manifest.json", ".lock"}


@pytest.mark.parametrize("stop", range(1, 6))
def test_stopped_anywhere_and_started_again_gives_the_same_files(tmp_path: Path, stop: int) -> None:
    prepare(recipe(), tmp_path / "whole")

    def dies(job: int) -> Ragged:
        if job == stop:
            raise KeyboardInterrupt
        return make(job)

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(make=dies), tmp_path / "d")
    assert read_manifest(tmp_path / "d") is None
    made.clear()
    prepare(recipe(), tmp_path / "d")
    assert made == list(range(stop, 6))
    assert digests(tmp_path / "d") == digests(tmp_path / "whole")


@pytest.mark.parametrize("failing", ["val.tokens.npy", "test.labels.npy"])
def test_full_disk_is_one_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    prepare(recipe(), tmp_path / "whole")
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == failing:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DataError, match=f"{failing}: No space left on device"):
        prepare(recipe(), tmp_path / "d")
    assert not list((tmp_path / "d").rglob("*.partial"))
    monkeypatch.undo()
    made.clear()
    prepare(recipe(), tmp_path / "d")
    assert made == []  # every part had been kept
    assert digests(tmp_path / "d") == digests(tmp_path / "whole")


def test_damaged_part_is_made_again(tmp_path: Path) -> None:
    prepare(recipe(), tmp_path / "whole")

    def dies(job: int) -> Ragged:
        if job == 4:
            raise KeyboardInterrupt
        return make(job)

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(make=dies), tmp_path / "d")
    parts = sorted((tmp_path / "d" / ".parts").rglob("*.npz"))
    parts[1].write_bytes(parts[1].read_bytes()[:100])
    raw = bytearray(parts[2].read_bytes())
    raw[70] ^= 255
    parts[2].write_bytes(raw)
    prepare(recipe(), tmp_path / "d")
    assert digests(tmp_path / "d") == digests(tmp_path / "whole")


def test_other_options_and_damage_are_refused(tmp_path: Path) -> None:
    prepare(recipe(), tmp_path / "d")
    with pytest.raises(DataError, match=r"holds other data \(origin 'test' there, 'other' wanted\)"):
        prepare(recipe(options={"origin": "other"}), tmp_path / "d")
    path = tmp_path / "d" / "train.tokens.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"damaged: train\.tokens\.npy has another checksum"):
        prepare(recipe(), tmp_path / "d")
    path.unlink()
    with pytest.raises(DataError, match=r"train\.tokens\.npy is missing"):
        prepare(recipe(), tmp_path / "d")
    (tmp_path / "d" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        prepare(recipe(), tmp_path / "d")


def test_parts_of_other_options_are_not_taken(tmp_path: Path) -> None:
    def dies(job: int) -> Ragged:
        if job == 3:
            raise KeyboardInterrupt
        return Ragged.of([b"wrong", b"wrong"], [0, 0])

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(options={"origin": "other"}, make=dies), tmp_path / "d")
    prepare(recipe(), tmp_path / "d")
    prepare(recipe(), tmp_path / "whole")
    assert digests(tmp_path / "d") == digests(tmp_path / "whole")


def test_those_who_start_together_wait_for_the_first(tmp_path: Path) -> None:
    made.clear()
    results = []
    threads = [threading.Thread(target=lambda: results.append(prepare(recipe(), tmp_path / "d"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.existed for r in results) == [False, True, True, True]
    assert made == list(range(6))


def test_unwritable_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another folder with --output"):
        prepare(recipe(), tmp_path / "file" / "d")


PROGRAM = """
import sys
from pathlib import Path
from spectral_conditioning.tasks.lra import listops
from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions
from spectral_conditioning.tasks.lra.preparation import prepare
if __name__ == "__main__":
    options = ListopsOptions(train=60000, val=100, test=100, min_length=10, max_length=60, max_depth=5, max_args=5)
    prepare(listops.generated(options), Path(sys.argv[1]), workers=2)
"""


@pytest.mark.slow
def test_killed_with_its_workers_at_work_it_goes_on_to_the_same_files_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (tmp_path / "program.py").write_text(PROGRAM)
    # Another hash seed and another number of workers than here: neither may show in the files.
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    process = subprocess.Popen([sys.executable, "program.py", str(folder)], env=environment, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while len(list(folder.rglob("0*.npz"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    children = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert children
    assert read_manifest(folder) is None
    while any(alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [child for child in children if alive(child)]
    kept = sorted(folder.rglob("0*.npz"))
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    options = ListopsOptions(train=60000, val=100, test=100, min_length=10, max_length=60, max_depth=5, max_args=5)
    chunks = Counter(read_while_going_on(folder, options, stamps))
    assert chunks["kept"] >= 2
    assert chunks["made"] >= 2
    prepare(listops.generated(options), tmp_path / "whole")
    assert digests(folder) == digests(tmp_path / "whole")


def read_while_going_on(folder: Path, options: ListopsOptions, stamps: dict[Path, int]) -> Iterator[str]:
    """Prepare `folder` to its end and yield "kept" or "made" for each part, by whether it lay there before."""
    whole = listops.generated(options)
    numbered = itertools.count()
    seen: list[str] = []

    def assemble(parts: Iterator[Ragged]) -> Any:
        def watched() -> Iterator[Ragged]:
            for part in parts:
                path = next(iter(folder.rglob(f"{next(numbered):06d}.npz")))
                seen.append("kept" if stamps.get(path) == path.stat().st_mtime_ns else "made")
                yield part

        return whole.assemble(watched())

    prepare(dataclasses.replace(whole, assemble=assemble), folder)
    yield from seen


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_take_and_join_agree_with_python_lists() -> None:
    texts = [b"abc", b"", b"de", b"f" * 300]
    whole = Ragged.joined([Ragged.of(texts[:2], [0, 1]), Ragged.of(texts[2:], [2, 3])])
    picked = whole.take(np.array([3, 0, 1, 0]))
    offsets = picked.offsets
    assert [picked.tokens[offsets[i] : offsets[i + 1]].tobytes() for i in range(4)] == [texts[i] for i in (3, 0, 1, 0)]
    assert picked.labels.tolist() == [3, 0, 1, 0]


def test_content_digest_names_the_content(tmp_path: Path) -> None:
    first = prepare(recipe(), tmp_path / "a").manifest
    other = prepare(recipe(jobs=range(5)), tmp_path / "b").manifest
    assert content_digest(first) == content_digest(json.loads((tmp_path / "a" / "manifest.json").read_text()))
    assert content_digest(first) != content_digest(other)
    assert token_store.damaged_files(tmp_path / "a", first) == []
