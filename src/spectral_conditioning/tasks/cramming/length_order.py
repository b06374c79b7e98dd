"""Sort sequences by a small whole number with memory for one run of them: write sorted runs, then copy their blocks in order.

Every run is sorted by key, so the sequences of a key are neighbours in it; the result takes, key by key, each run's block.
The order is stable: equal keys keep the order of arrival. Only one run, and a table of runs × keys, is ever in memory.
"""

# S sequences, N tokens.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np


class LengthOrder:
    """Collect (sequences, keys) and give them back in the order of keys."""

    def __init__(self, folder: Path, *, length: int, memory: int) -> None:
        """memory: bytes of a run in memory; sorting it takes as much again."""
        self.folder = folder
        self.capacity = max(1, memory // (2 * 2 * length))
        self._blocks: list[np.ndarray] = []
        self._keys: list[np.ndarray] = []
        self.waiting = 0

    def add(self, sequences_SN: np.ndarray, keys_S: np.ndarray) -> None:
        """Take sequences (S, N) with their keys (S,)."""
        self._blocks.append(sequences_SN)
        self._keys.append(keys_S.astype(np.uint16))
        self.waiting += len(sequences_SN)

    @property
    def full(self) -> bool:
        """Whether what is waiting should be written."""
        return self.waiting >= self.capacity

    def flush(self, run: int) -> None:
        """Write what is waiting as run number `run`."""
        keys_S = np.concatenate(self._keys)
        order = np.argsort(keys_S, kind="stable")
        sequences_SN = np.concatenate(self._blocks)[order]
        np.save(self.folder / f"run-{run:05d}.keys.npy", keys_S[order])
        np.save(self.folder / f"run-{run:05d}.npy", sequences_SN)
        self._blocks, self._keys, self.waiting = [], [], 0

    def merged(self, runs: int) -> Iterator[np.ndarray]:
        """Yield blocks of sequences in the order of keys, over runs 0 … runs − 1."""
        maps = [np.load(self.folder / f"run-{run:05d}.npy", mmap_mode="r") for run in range(runs)]
        edges = []
        for run in range(runs):
            keys_S = np.load(self.folder / f"run-{run:05d}.keys.npy")
            found, first = np.unique(keys_S, return_index=True)
            ends = np.append(first[1:], len(keys_S))
            edges.append({int(key): (int(a), int(b)) for key, a, b in zip(found, first, ends, strict=True)})
        for key in sorted({key for table in edges for key in table}):
            for sequences, table in zip(maps, edges, strict=True):
                if key in table:
                    start, end = table[key]
                    yield sequences[start:end]
