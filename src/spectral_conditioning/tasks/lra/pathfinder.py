"""Pathfinder: are two markers on one snake? Grey 32×32 pictures, 1,024 tokens; black is data.

The release holds three difficulties; the published numbers belong to the hard one, contour length 14. It is read from its folder,
or generated (`pathfinder_snakes.py`) on a machine that does not have it. Both are split 80 / 10 / 10 % by a fixed order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from spectral_conditioning.errors import DataError
from spectral_conditioning.randomness import derive
from spectral_conditioning.tasks.lra.image import pixels
from spectral_conditioning.tasks.lra.pathfinder_snakes import Scene, draw_pictures
from spectral_conditioning.tasks.lra.preparation import Recipe
from spectral_conditioning.tasks.lra.token_store import SPLITS, Ragged

HARD = "curv_contour_length_14"
CONTOUR_COLUMN, LABEL_COLUMN = 5, 3
RELEASED = 200_000
BLOCK = 500
GENERATOR = 1  # raised whenever the same seed would give other pictures
SIDE = 32


def split_80_10_10(parts: Iterator[Ragged]) -> dict[str, Ragged]:
    """Put everything into one fixed random order and cut it."""
    everything = Ragged.joined(list(parts))
    count = len(everything.labels)
    order = np.argsort(np.random.PCG64(derive(0, "lra pathfinder", count)).random_raw(count), kind="stable")
    edges = (0, count * 8 // 10, count * 9 // 10, count)
    if min(np.diff(edges)) < 1:
        raise DataError(f"{count} pictures are too few for three splits")
    return {split: everything.take(np.sort(order[edges[i] : edges[i + 1]])) for i, split in enumerate(SPLITS)}


def find_hard_folder(source: Path) -> Path:
    """Return the folder of contour length 14 at or below `source` (its release, pathfinder32, or itself); refuse any other."""
    candidates = (source, source / HARD, source / "pathfinder32" / HARD, source / "lra_release" / "pathfinder32" / HARD)
    for folder in candidates:
        if folder.name == HARD and (folder / "metadata").is_dir():
            return folder
    if (source / "metadata").is_dir():
        raise DataError(
            f"{source} is not {HARD}: the published Pathfinder numbers belong to contour length 14, the other difficulties are "
            f"other tasks; point --input at pathfinder32/{HARD}"
        )
    raise DataError(
        f"{source} holds no {HARD}/metadata; point --input at the release's folder pathfinder32, or leave it out to generate"
    )


def _metadata_lines(path: Path) -> list[list[str]]:
    """Return the columns of a metadata file: text in the release, whatever its ending .npy says; an array in other copies."""
    raw = path.read_bytes()
    if raw.startswith(b"\x93NUMPY"):
        return [[str(value) for value in row] for row in np.load(io.BytesIO(raw), allow_pickle=False)]
    return [line.split(" ") for line in raw.decode().splitlines() if line.strip()]


def _read_batch(job: tuple[Path, str]) -> Ragged:
    """Read the pictures that one metadata file lists; empty files, which the release has, are left out."""
    folder, name = job
    images, labels = [], []
    for number, columns in enumerate(_metadata_lines(folder / "metadata" / name), start=1):
        where = f"{folder / 'metadata' / name}, line {number}"
        if len(columns) <= CONTOUR_COLUMN or columns[LABEL_COLUMN] not in ("0", "1"):
            raise DataError(f"{where}: {' '.join(columns)[:80]!r} is not a line of Pathfinder metadata")
        if float(columns[CONTOUR_COLUMN]) != Scene().contour:
            raise DataError(f"{where}: contour length {columns[CONTOUR_COLUMN]}, but {HARD} has 14 everywhere")
        path = folder / columns[0] / columns[1]
        try:
            raw = path.read_bytes()
            if not raw:
                continue
            image = np.asarray(Image.open(io.BytesIO(raw)).convert("L"))
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{where}: {path} cannot be read: {error}") from error
        if image.shape != (SIDE, SIDE):
            raise DataError(
                f"{path} has {image.shape[1]}×{image.shape[0]} pixels, the benchmark's Pathfinder has 32×32"
            )
        images.append(image)
        labels.append(int(columns[LABEL_COLUMN]))
    return pixels(np.array(images, dtype=np.uint8).reshape(-1, SIDE, SIDE), np.array(labels, dtype=np.int64))


def official(source: Path) -> Recipe:
    """Return how to convert the release's folder."""
    folder = find_hard_folder(source)
    names = sorted((p.name for p in (folder / "metadata").glob("*.npy")), key=lambda n: (len(n), n))
    if not names:
        raise DataError(f"{folder / 'metadata'} holds no *.npy")
    listing = hashlib.sha256()
    for name in names:
        listing.update((folder / "metadata" / name).read_bytes())
    return Recipe(
        dataset="pathfinder",
        options={"origin": "release", "contour": 14, "metadata": listing.hexdigest()},
        jobs=[(folder, name) for name in names],
        make=_read_batch,
        assemble=split_80_10_10,
        classes=2,
        symbols=256,
        pads=False,
    )


def _draw_block(job: tuple[Scene, int, int, int]) -> Ragged:
    scene, seed, block, count = job
    pictures = draw_pictures(count, seed=seed, chunk=block, scene=scene)
    return pixels(pictures.images, pictures.labels)


def generated(*, samples: int = RELEASED, seed: int = 0, scene: Scene | None = None) -> Recipe:
    """Return how to generate `samples` pictures."""
    scene = scene or Scene()
    if samples < 10:
        raise DataError(f"{samples} pictures are too few for three splits; at least 10")
    return Recipe(
        dataset="pathfinder",
        options={
            "origin": "generated",
            "generator": GENERATOR,
            "samples": samples,
            "seed": seed,
            **dataclasses.asdict(scene),
        },
        jobs=[(scene, seed, i, min(BLOCK, samples - i * BLOCK)) for i in range(-(-samples // BLOCK))],
        make=_draw_block,
        assemble=split_80_10_10,
        classes=2,
        symbols=256,
        pads=False,
        total=samples,
    )
