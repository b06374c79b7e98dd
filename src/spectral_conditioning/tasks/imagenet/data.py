"""Open the images that a configuration names, check that both splits and the model fit together, and describe them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.base import TaskData
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.digits import DigitDataset, DigitSource
from spectral_conditioning.tasks.imagenet.images import (
    ImageDataset,
    describe_inputs,
    evaluation_transform,
    input_config,
    training_transform,
)
from spectral_conditioning.tasks.imagenet.shards import ShardSource
from spectral_conditioning.tasks.imagenet.sources import ImageSource, fingerprint, open_images

TOP_K = 5


def open_source(data: DataConfig, *, part: str) -> ImageSource:
    """Open the split that `data.<part>_split` names ("train" or "val"). Raises DataError that says what is missing."""
    split = data.train_split if part == "train" else data.val_split
    if data.source == "digits":
        return DigitSource(split=split, held_out=part == "val")
    assert data.path is not None
    if data.source == "images":
        return open_images(data.path, split=split, part=part)
    if data.source == "shards":
        return ShardSource(data.path, split=split, part=part)
    # Imported here: `datasets` takes seconds to import and only tables need it.
    from spectral_conditioning.tasks.imagenet.tables import open_hub, open_parquet

    open_table = open_hub if data.source == "hub" else open_parquet
    return open_table(data.path, split=split, part=part, image=data.image_column, label=data.label_column)


def check_classes(train: ImageSource, val: ImageSource, *, wanted: int | None) -> None:
    """Raise DataError unless both splits have the same classes and as many as the model wants."""
    if train.classes != val.classes:
        missing, extra = set(train.classes) - set(val.classes), set(val.classes) - set(train.classes)
        told = [f"missing {sorted(missing)[:8]}"] * bool(missing) + [f"only there {sorted(extra)[:8]}"] * bool(extra)
        raise DataError(
            f"{train.origin}: the classes of {val.split!r} differ from the {len(train.classes)} of {train.split!r}: "
            f"{'; '.join(told) or 'another order'}"
        )
    if not len(val):
        raise DataError(f"{val.origin}: split {val.split!r} holds no image")
    unseen = np.flatnonzero(np.bincount(train.labels, minlength=len(train.classes)) == 0)
    if len(unseen):
        names = ", ".join(train.classes[k] for k in unseen[:8])
        raise DataError(
            f"{train.origin}: {len(unseen)} of {len(train.classes)} classes have no training image ({names})"
        )
    if wanted is not None and wanted != len(train.classes):
        raise DataError(
            f"task.model.num_classes is {wanted} but {train.origin} has {len(train.classes)} classes; "
            f"set it to {len(train.classes)}, or to null to take it from the data"
        )


def chance_levels(train: ImageSource, val: ImageSource) -> dict[str, float]:
    """Return what a constant answer scores on validation: its most frequent classes, and the loss of the training frequencies."""
    size = len(train.classes)
    seen, asked = (np.bincount(source.labels, minlength=size) for source in (train, val))
    shares = np.sort(asked)[::-1] / asked.sum()
    levels = {"accuracy": float(shares[0]), "loss": float(-(asked / asked.sum() * np.log(seen / seen.sum())).sum())}
    if size > TOP_K:
        levels["accuracy_top5"] = float(shares[:TOP_K].sum())
    return levels


def datasets_of(
    model: ModelConfig, data: DataConfig, train: ImageSource, val: ImageSource
) -> tuple[Dataset[Any], Dataset[Any], str]:
    """Return the training and validation sets of two sources and a line on how images are evaluated."""
    if isinstance(train, DigitSource) and isinstance(val, DigitSource):
        return DigitDataset(train), DigitDataset(val), "8×8 as they are, scaled to [-1, 1]"
    inputs = input_config(model, data)
    trained = ImageDataset(train, training_transform(inputs, data), deterministic=not data.augment)
    evaluated = ImageDataset(val, evaluation_transform(inputs), deterministic=True)
    return trained, evaluated, describe_inputs(inputs)


def load_image_data(model: ModelConfig, data: DataConfig) -> TaskData:
    """Open both splits and return them checked. Raises DataError or ConfigError with one message."""
    train, val = open_source(data, part="train"), open_source(data, part="val")
    check_classes(train, val, wanted=model.num_classes)
    trained, evaluated, shown = datasets_of(model, data, train, val)
    return TaskData(
        train=trained,
        val=evaluated,
        fingerprint=fingerprint((train, val)),
        chance=chance_levels(train, val),
        outputs=len(train.classes),
        description=(
            f"{train.origin}: {len(train):,} training and {len(val):,} validation images of {len(train.classes)} classes, {shown}"
        ),
        repeats=data.repeats,
    )
