"""Open the images and annotations that a configuration names, check that both splits fit together, and describe them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import cv2

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.base import TaskData
from spectral_conditioning.tasks.coco.annotations import Split, check_files, read_split, select_for_training
from spectral_conditioning.tasks.coco.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.coco.pipeline import (
    InstanceDataset,
    Picture,
    collate,
    read_picture,
    training_transforms,
    validation_transforms,
)
from spectral_conditioning.tasks.coco.shapes import make_shapes


class FolderPictures:
    """Reads picture number i of a split from its folder."""

    def __init__(self, split: Split, folder: Path) -> None:
        self.images, self.folder = split.images, folder

    def __call__(self, position: int) -> Picture:
        image = self.images[position]
        return read_picture(self.folder / image["file_name"], image)


@dataclasses.dataclass
class Opened:
    """One split: its annotations, a reader of its pictures and a hash of both."""

    split: Split
    read: Callable[[int], Picture]
    fingerprint: str


@dataclasses.dataclass(kw_only=True)
class DetectionData(TaskData):
    """Task data with the validation annotations, which the evaluation needs."""

    truth: Split
    pictures: int


def open_split(data: DataConfig, *, part: str) -> Opened:
    """Open "train" or "val". Raises DataError that says what is missing or broken."""
    if data.source == "shapes":
        count = data.shapes_train if part == "train" else data.shapes_val
        split, pictures = make_shapes(data.shapes_seed, part, count=count, size=data.shapes_size)
        return Opened(split, pictures.__getitem__, split.digest)
    assert data.path is not None
    root = Path(data.path)
    if not root.is_dir():
        raise DataError(f"data.path {root} is not a folder; give one in COCO's format (data.path=...)")
    annotations, images = (getattr(data, f"{part}_{kind}") for kind in ("annotations", "images"))
    split, folder = read_split(root / annotations), root / images
    return Opened(split, FolderPictures(split, folder), check_files(split, folder))


def check_categories(train: Split, val: Split, *, wanted: int | None) -> None:
    """Raise DataError unless both splits have the same categories, as many as the model wants, and something to find."""
    if train.categories != val.categories:
        odd = [c for c in (*train.categories, *val.categories) if c not in train.categories or c not in val.categories]
        raise DataError(f"{train.origin} and {val.origin} differ in their categories: {odd[:5]}")
    if wanted is not None and wanted != len(train.categories):
        raise DataError(
            f"task.model.num_classes is {wanted} but {train.origin} has {len(train.categories)} categories; "
            f"set it to {len(train.categories)}, or to null to take it from the data"
        )
    if all(item["iscrowd"] or not item["segmentation"] for item in val.annotations()):
        raise DataError(f"{val.origin} has no object that could be found; its average precision is not defined")


def load_detection_data(model: ModelConfig, data: DataConfig) -> DetectionData:
    """Open both splits and return them checked. Raises DataError with one message."""
    # Processes that load share the cores already.
    cv2.setNumThreads(0)
    train, val = open_split(data, part="train"), open_split(data, part="val")
    check_categories(train.split, val.split, wanted=model.num_classes)
    learned = select_for_training(train.split, min_size=data.min_size, keep_empty=data.keep_empty)
    if not learned.positions:
        raise DataError(f"{train.split.origin}: no image is left to train on ({learned.describe()})")
    return DetectionData(
        train=InstanceDataset(
            train.split,
            train.read,
            training_transforms(data),
            positions=learned.positions,
            training=True,
            deterministic=not data.augment,
        ),
        val=InstanceDataset(
            val.split,
            val.read,
            validation_transforms(data),
            positions=range(len(val.split.images)),
            training=False,
            deterministic=True,
        ),
        fingerprint=f"{train.fingerprint}-{val.fingerprint}",
        chance={"bbox_mAP": 0.0, "segm_mAP": 0.0},
        outputs=len(train.split.categories),
        description=(
            f"{data.path or data.source}: {len(learned.positions):,} of {len(train.split.images):,} training images "
            f"({learned.describe()}), {len(val.split.images):,} validation images, {len(train.split.categories)} classes"
        ),
        collate=collate,
        truth=val.split,
        pictures=data.pictures,
    )
