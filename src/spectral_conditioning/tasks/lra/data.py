"""Token arrays as data sets, and sequences as padded batches."""

# B samples, N positions.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.base import TaskData
from spectral_conditioning.tasks.lra.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.lra.stand_ins import ensure
from spectral_conditioning.tasks.lra.token_store import SPLITS, content_digest, damaged_files, read_manifest

Sample = tuple[tuple[NDArray[np.uint8], ...], int]
# Data whose sequences lose their meaning when they are cut.
WHOLE = ("listops", "image", "pathfinder")


class SequenceDataset(Dataset[Sample]):
    """One split of a folder: sample i is its sequences (one, or two documents), cut to `length`, and its label.

    The arrays stay on disk and are mapped again in each loader process.
    """

    deterministic = True

    def __init__(self, folder: Path, split: str, *, length: int, paired: bool) -> None:
        self.folder, self.split, self.length, self.paired = folder, split, length, paired
        self._open()

    def _open(self) -> None:
        self.tokens = np.load(self.folder / f"{self.split}.tokens.npy", mmap_mode="r")
        self.offsets = np.load(self.folder / f"{self.split}.offsets.npy")
        self.labels = np.load(self.folder / f"{self.split}.labels.npy")
        self.pairs = np.load(self.folder / f"{self.split}.pairs.npy") if self.paired else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("folder", "split", "length", "paired")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self.labels)

    def _sequence(self, number: int) -> NDArray[np.uint8]:
        start = int(self.offsets[number])
        stop = min(int(self.offsets[number + 1]), start + self.length)
        return np.asarray(self.tokens[start:stop])

    def __getitem__(self, index: int) -> Sample:
        numbers = (index,) if self.pairs is None else self.pairs[index]
        return tuple(self._sequence(int(n)) for n in numbers), int(self.labels[index])


class JoinedDataset(ConcatDataset[Sample]):
    """Several splits, one after the other."""

    deterministic = True

    @property
    def labels(self) -> NDArray[np.uint8]:
        return np.concatenate([part.labels for part in self.datasets])  # type: ignore[attr-defined]


class PadBatch:
    """Collate samples: {"ids": (B, N) or (B, 2, N) int64, "labels": (B,), "lengths": (B,) or (B, 2) where there is padding}.

    N is `positions`, or the longest sequence of the batch when that is None. shift: added to stored values, so that 0 pads.
    """

    def __init__(self, *, positions: int | None, shift: int, padded: bool) -> None:
        self.positions, self.shift, self.padded = positions, shift, padded

    def __call__(self, samples: list[Sample]) -> dict[str, Tensor]:
        lengths = np.array([[len(sequence) for sequence in sequences] for sequences, _ in samples])
        width = self.positions or max(1, int(lengths.max()))
        ids = np.zeros((*lengths.shape, width), dtype=np.int64)
        for row, (sequences, _) in zip(ids, samples, strict=True):
            for line, sequence in zip(row, sequences, strict=True):
                line[: len(sequence)] = sequence
                line[: len(sequence)] += self.shift
        single = lengths.shape[1] == 1
        batch = {
            "ids": torch.from_numpy(ids[:, 0] if single else ids),
            "labels": torch.tensor([label for _, label in samples]),
        }
        if self.padded:
            batch["lengths"] = torch.from_numpy(lengths[:, 0] if single else lengths)
        return batch


def open_folder(data: DataConfig) -> dict[str, Any]:
    """Return the manifest of `data.source`, every file verified; writes the stand-in first when one is named."""
    folder = Path(data.source)
    if data.stand_in is not None:
        ensure(data.stand_in, folder)
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(
            f"no prepared data in {folder} (data.source); run: spectral prepare {data.dataset} --output {folder}"
            " (add --input for data that is not generated)"
        )
    if manifest["dataset"] != data.dataset:
        raise DataError(
            f"{folder} holds {manifest['dataset']}, data.dataset asks for {data.dataset}; set data.source or data.dataset"
        )
    damaged = damaged_files(folder, manifest, checksums=data.stand_in in (None, "text"))
    if damaged:
        raise DataError(f"{folder} is damaged: {'; '.join(damaged)}. Delete the folder and prepare it again")
    return manifest


def _check_fit(model: ModelConfig, data: DataConfig, manifest: Mapping[str, Any]) -> None:
    longest = max(entry["longest"] for entry in manifest["splits"].values())
    if manifest["vocabulary"] > model.vocabulary:
        raise DataError(
            f"{data.source} uses {manifest['vocabulary']} token ids, task.model.vocabulary is {model.vocabulary}; "
            f"set it to {manifest['vocabulary']} or more"
        )
    if data.dataset in WHOLE and longest > data.length:
        raise DataError(
            f"{data.source} holds sequences of up to {longest} tokens, data.length is {data.length}: cutting "
            f"{data.dataset} changes its answers; set data.length={longest} or more"
        )
    cut = manifest["options"].get("length")
    if cut is not None and longest == cut < data.length:
        raise DataError(
            f"{data.source} was prepared with --length {cut}, data.length is {data.length}; prepare it again with "
            f"--length {data.length}, or set data.length={cut}"
        )


def constant_prediction(labels: NDArray[np.uint8], seen: NDArray[np.uint8], classes: int) -> dict[str, float]:
    """Return what one answer for every sample scores: the share of the most frequent class, and the frequencies' loss."""
    shares = np.bincount(labels, minlength=classes) / len(labels)
    # One sample more of each class, so that a class absent from a small training set costs something finite.
    known = (np.bincount(seen, minlength=classes) + 1) / (len(seen) + classes)
    return {"accuracy": float(shares.max()), "loss": float(-(shares * np.log(known)).sum())}


def load_sequences(model: ModelConfig, data: DataConfig) -> TaskData:
    """Open the three splits and check that they fit the model."""
    manifest = open_folder(data)
    _check_fit(model, data, manifest)
    folder, paired = Path(data.source), data.dataset == "retrieval"
    splits = {split: SequenceDataset(folder, split, length=data.length, paired=paired) for split in SPLITS}
    train: SequenceDataset | JoinedDataset = splits["train"]
    val, test = splits["val"], splits["test"]
    if data.select_on_test:
        train, val = JoinedDataset([splits["train"], splits["val"]]), splits["test"]
    shortest = min(entry["shortest"] for entry in manifest["splits"].values())
    longest = max(entry["longest"] for entry in manifest["splits"].values())
    padded = not (shortest == longest == data.padded_length)
    selected = "selected on test" if data.select_on_test else f"{len(val):,} validation"
    return TaskData(
        train=train,
        val=val,
        test=test,
        fingerprint=f"{content_digest(manifest)[:32]}-{data.length}"
        + ("-selected-on-test" if data.select_on_test else ""),
        chance=constant_prediction(test.labels, train.labels, manifest["classes"]),
        outputs=manifest["classes"],
        description=(
            f"{data.dataset} ({manifest['options'].get('origin')}): {len(train):,} training, {selected}, "
            f"{len(test):,} test samples, {shortest}-{longest} tokens"
        ),
        collate=PadBatch(
            positions=data.padded_length if data.padding == "fixed" else None, shift=manifest["shift"], padded=padded
        ),
        tokens_per_sample=data.padded_length * (2 if paired else 1),
    )
