"""scikit-learn's handwritten digits: 1,797 grey images of 8×8 pixels that come with the library, so a run needs no download."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset

from spectral_conditioning.tasks.imagenet.sources import ImageSource

HELD_OUT = 500


class DigitSource(ImageSource):
    """One part of the digits, in memory. The split is fixed: 1,297 for training, 500 held out, each class in its share."""

    def __init__(self, *, split: str, held_out: bool) -> None:
        pixels, labels = load_digits(return_X_y=True)
        parts = train_test_split(np.arange(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=0)
        self.positions: NDArray[np.int64] = np.sort(parts[1] if held_out else parts[0])
        # Pixels are counts from 0 to 16.
        self.pixels: NDArray[np.uint8] = pixels[self.positions].reshape(-1, 8, 8).astype(np.uint8)
        super().__init__(
            origin="scikit-learn's digits",
            split=split,
            classes=[str(digit) for digit in range(10)],
            labels=labels[self.positions],
        )

    def name(self, index: int) -> str:
        return f"digit {self.positions[index]}"

    def read(self, index: int) -> bytes:
        return bytes(self.pixels[index])

    def listing(self) -> list[str]:
        return [f"{self.positions[i]}|{self.read(i).hex()}|{self.labels[i]}" for i in range(len(self))]


class DigitDataset(Dataset[tuple[Tensor, Tensor]]):
    """Digits as (1, 8, 8) tensors in [-1, 1], unaugmented."""

    deterministic = True

    def __init__(self, source: DigitSource) -> None:
        self.images = torch.from_numpy(source.pixels).unsqueeze(1).float() / 8 - 1
        self.labels = torch.from_numpy(source.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]
