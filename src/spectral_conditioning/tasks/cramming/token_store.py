"""A prepared folder: a tokenizer, packed sequences in memory-mapped shards, and meta.json, which says what they are."""

# S sequences, N tokens.

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from spectral_conditioning.errors import DataError
from spectral_conditioning.files import write_atomically

FORMAT = "spectral-conditioning/tokens/1"
META, TOKENIZER = "meta.json", "tokenizer.json"
SHARD_BYTES = 1 << 29
TOKEN = np.dtype("<u2")


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file that is either whole or not there."""
    write_atomically(path, json.dumps(values, indent=1).encode(), error=DataError)


class ShardWriter:
    """Write blocks of sequences as `<split>-00000.bin`, …, each of at most SHARD_BYTES, with a hash over each."""

    def __init__(self, folder: Path, split: str, *, length: int, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder, self.split = folder, split
        self.per_shard = max(1, shard_bytes // (length * TOKEN.itemsize))
        self.shards: list[dict[str, Any]] = []

    def write(self, blocks: Iterable[np.ndarray]) -> list[dict[str, Any]]:
        """Write all blocks (S, N) and return the entries of meta.json."""
        waiting: list[np.ndarray] = []
        count = 0
        for block in blocks:
            while len(block):
                taken = block[: self.per_shard - count]
                waiting.append(np.ascontiguousarray(taken, dtype=TOKEN))
                block, count = block[len(taken) :], count + len(taken)
                if count == self.per_shard:
                    self._append(waiting, last=True)
                    waiting, count = [], 0
                elif sum(map(len, waiting)) >= 1 << 14:
                    self._append(waiting, last=False)
                    waiting = []
        if count:
            self._append(waiting, last=True)
        return self.shards

    def _append(self, blocks: list[np.ndarray], *, last: bool) -> None:
        if not self.shards or self.shards[-1].get("closed", True):
            name = f"{self.split}-{len(self.shards):05d}.bin"
            (self.folder / name).write_bytes(b"")
            self.shards.append({"file": name, "sequences": 0, "closed": False})
            self._hash = hashlib.blake2b(digest_size=16)
        entry = self.shards[-1]
        with open(self.folder / entry["file"], "ab") as file:
            for block in blocks:
                file.write(block.tobytes())
                self._hash.update(block.tobytes())
                entry["sequences"] += len(block)
            if last:
                file.flush()
                os.fsync(file.fileno())
        if last:
            entry["hash"] = self._hash.hexdigest()
            del entry["closed"]


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """A prepared folder that was opened and checked."""

    folder: Path
    meta: dict[str, Any]

    @property
    def length(self) -> int:
        """Tokens per sequence."""
        return int(self.meta["length"])

    @property
    def vocabulary(self) -> int:
        """Words of the tokenizer."""
        return int(self.meta["vocabulary"])

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the token frequencies of the training split, in nats: the loss of the best constant prediction."""
        return float(self.meta["unigram_entropy"])

    @property
    def fingerprint(self) -> str:
        """A hash over every sequence and the tokenizer."""
        parts = [self.meta["tokenizer"]] + [
            shard["hash"] for split in ("train", "val") for shard in self.meta["splits"][split]
        ]
        return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()

    def split(self, name: str) -> Sequences:
        """Open the sequences of `train` or `val`."""
        return Sequences(self.folder, self.meta["splits"][name], length=self.length)


class Sequences:
    """The sequences of one split, by number; nothing is read before it is asked for."""

    def __init__(self, folder: Path, shards: list[dict[str, Any]], *, length: int) -> None:
        self._maps = [
            np.memmap(folder / shard["file"], dtype=TOKEN, mode="r", shape=(shard["sequences"], length))
            for shard in shards
        ]
        self._ends = np.cumsum([len(part) for part in self._maps]).tolist()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect.bisect_right(self._ends, index)
        row: np.ndarray = self._maps[shard][index - (self._ends[shard - 1] if shard else 0)]
        return row


def find_store(path: Path) -> Path:
    """Return the prepared folder at `path`: itself, or the only one inside. Raises DataError when there is none or several."""
    if (path / META).is_file():
        return path
    inside = sorted(meta.parent for meta in path.glob(f"[!.]*/{META}")) if path.is_dir() else []
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise DataError(f"{path} holds {len(inside)} prepared folders; name one: {', '.join(map(str, inside))}")
    raise DataError(f"{path} is not a prepared folder (no {META}); run spectral prepare pile --input … --output {path}")


def open_store(path: str | Path) -> TokenStore:
    """Open a prepared folder. Raises DataError for a missing, foreign or shortened one."""
    folder = find_store(Path(path))
    try:
        meta = json.loads((folder / META).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / META} cannot be read: {error}") from error
    if meta.get("format") != FORMAT:
        raise DataError(f"{folder / META} has format {meta.get('format')!r}; this version reads {FORMAT!r}")
    for shard in (*meta["splits"]["train"], *meta["splits"]["val"]):
        file = folder / shard["file"]
        wanted = shard["sequences"] * meta["length"] * TOKEN.itemsize
        found = file.stat().st_size if file.is_file() else None
        if found != wanted:
            state = "is missing" if found is None else f"has {found} bytes"
            raise DataError(f"{file} {state}, expected {wanted} bytes; prepare the folder again")
    return TokenStore(folder, meta)


def entropy(counts: np.ndarray) -> float:
    """Return −Σ p log p of token counts, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum()) if len(p) else math.nan
