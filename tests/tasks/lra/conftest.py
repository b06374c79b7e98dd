"""Tiny prepared folders and configurations for the Long Range Arena tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spectral_conditioning.tasks.lra.token_store import Ragged, write_store


def random_split(
    rng: np.random.Generator, *, samples: int, lengths: tuple[int, int], symbols: int, classes: int, paired: bool
) -> Ragged:
    """Return random tokens with labels that go round the classes."""
    documents = 2 * samples if paired else samples
    sizes = rng.integers(lengths[0], lengths[1] + 1, documents)
    return Ragged(
        tokens=rng.integers(0, symbols, int(sizes.sum())).astype(np.uint8),
        lengths=sizes.astype(np.int64),
        labels=(np.arange(samples) % classes).astype(np.uint8),
        pairs=np.arange(documents, dtype=np.int32).reshape(-1, 2) if paired else None,
    )


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a folder of random data in the shape of one of the five tasks."""

    def write(
        dataset: str,
        *,
        name: str = "folder",
        samples: tuple[int, int, int] = (12, 6, 5),
        lengths: tuple[int, int] | None = None,
    ) -> Path:
        pictures = dataset in ("image", "pathfinder")
        symbols = {"listops": 15}.get(dataset, 256)
        classes = {"listops": 10, "image": 10}.get(dataset, 2)
        span = lengths or {"listops": (501, 1999), "text": (60, 4000), "retrieval": (60, 4000)}.get(
            dataset, (1024, 1024)
        )
        rng = np.random.default_rng(0)
        splits = {
            split: random_split(
                rng, samples=count, lengths=span, symbols=symbols, classes=classes, paired=dataset == "retrieval"
            )
            for split, count in zip(("train", "val", "test"), samples, strict=True)
        }
        folder = tmp_path / name
        folder.mkdir()
        write_store(
            folder,
            splits,
            dataset=dataset,
            options={"origin": "test"},
            classes=classes,
            symbols=symbols,
            pads=not pictures,
        )
        return folder

    return write
