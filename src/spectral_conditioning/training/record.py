"""The files of a run: its folder and lock, the configuration, metrics.jsonl and result.json.

JSON files are written to a neighbour and renamed, so a reader finds the old file or the new one and never half of one.
metrics.jsonl is append-only within a run; a resumed run first cuts it back to its checkpoint.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from spectral_conditioning.errors import RecordError, broken_record
from spectral_conditioning.files import write_atomically

SCHEMA = 1
LOCK_TRIES, LOCK_PAUSE = 5, 0.02
PACKAGES = ("spectral-conditioning", "torch", "lightning", "hydra-core", "timm", "transformers", "numpy")


def plain(value: Any) -> Any:
    """Turn numbers that JSON does not know (NaN, infinity) into null, and tuples into lists, throughout."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file that is either whole or not there."""
    text = json.dumps(plain(values), indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode())


class RunFolder:
    """A run's folder, owned by one process at a time.

    The lock is held by the open file, so the death of its owner, however sudden, frees it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.heartbeat = path / "progress.json"
        self.checkpoints = path / "checkpoints"
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a+")
        except OSError as error:
            raise RecordError(
                f"cannot write the run folder {self.path}: {error.strerror}; choose another with paths.runs=…"
            ) from error
        try:
            self._take(self._lock)
        except BlockingIOError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "another process"
            self._lock.close()
            raise RecordError(f"{self.path} is in use by {owner}; wait for it or stop it first") from error
        except OSError as error:
            self._lock.close()
            raise RecordError(
                f"the file system of {self.path} cannot lock files ({error.strerror}); choose another with paths.runs=…"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {platform.node()}")
        self._lock.flush()
        for left in (*self.path.glob(".*.partial"), *self.checkpoints.glob(".*.partial")):
            left.unlink()  # A writer that was killed half-way; nobody else writes here now.
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    @staticmethod
    def _take(lock: IO[str]) -> None:
        """Lock the open file; `in_use` holds it for an instant, so a few refusals say nothing."""
        for _ in range(LOCK_TRIES - 1):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(LOCK_PAUSE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def in_use(self) -> bool:
        """Whether a process of this machine, or of another on a file system that shares locks, is training here now."""
        try:
            with open(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def read_result(self) -> dict[str, Any] | None:
        """Return result.json of a finished run, None while there is none."""
        try:
            found = json.loads(self.result.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise broken_record(self.result, f"cannot be read ({error})") from error
        if not isinstance(found, dict):
            raise broken_record(self.result, f"the record is a {type(found).__name__}, expected a JSON object")
        return found


class MetricsFile:
    """metrics.jsonl: one JSON object a line, in the order of steps."""

    def __init__(self, path: Path, *, keep_until: int) -> None:
        """Open for appending after dropping every line past step `keep_until`, and a last line cut short by a crash."""
        kept = [line for line in read_lines(path) if line["step"] <= keep_until]
        write_atomically(path, "".join(_line(item) for item in kept).encode())
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (closed with the run)

    def write(self, values: Mapping[str, Any]) -> None:
        self._file.write(_line(values))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(plain(values), ensure_ascii=False) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl, without a last one that a crash cut short; [] where there is no file."""
    if not path.exists():
        return []
    lines = []
    texts = path.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            if number < len(texts):
                raise RecordError(f"{path}, line {number}, is not JSON: {text[:60]!r}") from error
    return lines


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return a hash over names, shapes, types and values."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        value = tensor.detach().cpu().contiguous()
        state.update(f"{name}|{tuple(value.shape)}|{value.dtype}|".encode())
        state.update(value.view(torch.uint8).numpy().tobytes() if value.ndim else str(value.item()).encode())
    return state.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def source_digest() -> str:
    """Return a hash of this package's Python sources, which tells two versions of the code apart without git."""
    root = Path(__file__).parents[1]
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        state.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return state.hexdigest()


def code_state() -> dict[str, Any]:
    """Return the commit of the checkout that runs, whether files differ from it, and the hash of the sources."""
    root = Path(__file__).parents[3]
    state: dict[str, Any] = {"sources": source_digest(), "commit": None, "dirty": None}
    if (root / ".git").exists():
        state["commit"] = _git(root, "rev-parse", "HEAD")
        state["dirty"] = bool(_git(root, "status", "--porcelain", "--", "src", "conf"))
    return state


def _git(root: Path, *words: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def machine() -> dict[str, Any]:
    """Return what the run was computed on, without names of people or hosts."""
    described: dict[str, Any] = {
        "system": platform.system(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        described["gpu"] = torch.cuda.get_device_name(0)
        described["gpus"] = torch.cuda.device_count()
    return described
