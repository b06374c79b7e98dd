"""Token arrays on disk: ragged sequences of small integers, memory-mapped, with a manifest that names every byte.

A folder holds, for each split, `SPLIT.tokens.npy` (uint8, all sequences end to end), `SPLIT.offsets.npy` (int64, one more than
sequences), `SPLIT.labels.npy` (uint8) and, for pairs of documents, `SPLIT.pairs.npy` (int32, two sequence numbers a
sample). `manifest.json` is written last: a folder without it is not finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectral_conditioning.errors import DataError
from spectral_conditioning.files import atomic_file, write_atomically

SCHEMA = 1
SPLITS = ("train", "val", "test")
MANIFEST = "manifest.json"


@dataclasses.dataclass
class Ragged:
    """Sequences of different lengths, end to end.

    tokens: uint8 (total,). lengths: int64 (sequences,). labels: uint8 (samples,). pairs: int32 (samples, 2) of sequence
    numbers where a sample is two documents, else None and samples = sequences.
    """

    tokens: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    labels: NDArray[np.uint8]
    pairs: NDArray[np.int32] | None = None

    @classmethod
    def of(cls, sequences: Sequence[bytes], labels: Sequence[int]) -> Ragged:
        """Build from byte strings."""
        return cls(
            tokens=np.frombuffer(b"".join(sequences), dtype=np.uint8),
            lengths=np.array([len(s) for s in sequences], dtype=np.int64),
            labels=np.array(labels, dtype=np.uint8),
        )

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate sets of single sequences."""
        return cls(
            tokens=np.concatenate([p.tokens for p in parts]),
            lengths=np.concatenate([p.lengths for p in parts]),
            labels=np.concatenate([p.labels for p in parts]),
        )

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])

    def take(self, index: NDArray[np.integer[Any]]) -> Ragged:
        """Return the sequences at `index`, in that order."""
        offsets, lengths = self.offsets, self.lengths[index]
        starts = np.repeat(offsets[:-1][index] - np.cumsum(lengths) + lengths, lengths)
        return Ragged(self.tokens[starts + np.arange(len(starts))], lengths, self.labels[index])


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write one .npy file, whole or not at all, streaming the array."""
    with atomic_file(path, error=DataError) as file:
        np.save(file, np.ascontiguousarray(array))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split_arrays(split: str, data: Ragged) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {
        f"{split}.tokens.npy": data.tokens.astype(np.uint8, copy=False),
        f"{split}.offsets.npy": data.offsets,
        f"{split}.labels.npy": data.labels.astype(np.uint8, copy=False),
    }
    if data.pairs is not None:
        arrays[f"{split}.pairs.npy"] = data.pairs.astype(np.int32, copy=False)
    return arrays


def write_store(
    folder: Path,
    splits: Mapping[str, Ragged],
    *,
    dataset: str,
    options: Mapping[str, Any],
    classes: int,
    symbols: int,
    pads: bool,
) -> dict[str, Any]:
    """Write the splits and then the manifest, which it returns.

    options: everything that the content depends on. symbols: number of different stored values. pads: whether sequences
    get padding, in which case ids are the stored values plus 1 and 0 is the pad; pixels, which need none, are ids as they are.
    """
    files: dict[str, dict[str, Any]] = {}
    summary: dict[str, dict[str, Any]] = {}
    for split, data in splits.items():
        for name, array in _split_arrays(split, data).items():
            write_array(folder / name, array)
            files[name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
        counts = np.bincount(data.labels, minlength=classes)
        summary[split] = {
            "samples": len(data.labels),
            "labels": counts.tolist(),
            "tokens": int(data.lengths.sum()),
            "shortest": int(data.lengths.min()),
            "longest": int(data.lengths.max()),
        }
    manifest = {
        "schema": SCHEMA,
        "dataset": dataset,
        "options": dict(options),
        "classes": classes,
        "shift": 1 if pads else 0,
        "vocabulary": symbols + (1 if pads else 0),
        "splits": summary,
        "files": files,
    }
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    write_atomically(folder / MANIFEST, text.encode(), error=DataError)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a finished folder, None when there is none; a damaged one raises DataError."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        if manifest["schema"] != SCHEMA:
            raise DataError(
                f"{path} has schema {manifest['schema']}, this version reads {SCHEMA}; delete {folder}, prepare it again"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); delete {folder} and prepare it again") from error
    return manifest


def damaged_files(folder: Path, manifest: Mapping[str, Any], *, checksums: bool = True) -> list[str]:
    """Name every file of a folder that is missing, has another size or (with `checksums`) another SHA-256."""
    found = []
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != entry["bytes"]:
            found.append(f"{name} has {path.stat().st_size} bytes, not {entry['bytes']}")
        elif checksums and sha256(path) != entry["sha256"]:
            found.append(f"{name} has another checksum than the manifest")
    return found


def content_digest(manifest: Mapping[str, Any]) -> str:
    """Return one hash over the checksums of all files: it names the content, whoever wrote it."""
    lines = "".join(f"{entry['sha256']}  {name}\n" for name, entry in sorted(manifest["files"].items()))
    return hashlib.sha256(lines.encode()).hexdigest()
