"""`spectral prepare imagenet`: check ImageNet-1k where it lies, image by image; nothing is copied, moved or changed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import numpy as np
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from spectral_conditioning.errors import DataError, problems_message
from spectral_conditioning.tasks.imagenet.config import SOURCES, DataConfig
from spectral_conditioning.tasks.imagenet.data import check_classes, open_source
from spectral_conditioning.tasks.imagenet.images import decode
from spectral_conditioning.tasks.imagenet.sources import ImageSource, fingerprint

CLASSES, TRAINING, VALIDATION = 1000, 1_281_167, 50_000
SHOWN = 20
BATCH = 64


class DamagedImages(Dataset[list[str]]):
    """What is wrong with image i of a source: a list of no or one message."""

    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> list[str]:
        try:
            decode(self.source.read(index), name=self.source.name(index), origin=self.source.origin)
        except DataError as error:
            return [str(error)]
        return []


def _joined(batch: list[list[str]]) -> tuple[int, list[str]]:
    return len(batch), [message for messages in batch for message in messages]


def damaged_images(source: ImageSource, *, workers: int, quiet: bool) -> Iterator[str]:
    """Decode every image of a source completely and yield a message for each that cannot be, under a progress bar."""
    loader = DataLoader(DamagedImages(source), batch_size=BATCH, num_workers=workers, collate_fn=_joined)
    with tqdm(total=len(source), desc=f"decoding {source.split}", unit=" images", disable=quiet or None) as bar:
        for count, messages in loader:
            bar.update(count)
            yield from messages


def count_problems(train: ImageSource, val: ImageSource, *, classes: int, training: int, validation: int) -> list[str]:
    """Name every count that is not as expected; each class must have its equal share of the validation images."""
    found = []
    if len(train.classes) != classes:
        found.append(f"{len(train.classes):,} classes, expected {classes:,}")
    for source, expected in ((train, training), (val, validation)):
        if len(source) != expected:
            found.append(f"split {source.split!r} has {len(source):,} images, expected {expected:,}")
    share, rest = divmod(validation, classes)
    counts = np.bincount(val.labels, minlength=len(val.classes))
    if not rest and len(val) == validation and len(val.classes) == classes and not (counts == share).all():
        odd = int(np.flatnonzero(counts != share)[0])
        found.append(f"class {val.classes[odd]!r} has {counts[odd]} validation images, expected {share}")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    standard = DataConfig()
    parser.add_argument(
        "path", help="folder or zip of <split>/<class>/<image>, folder of parquet files or tars, or hub name"
    )
    parser.add_argument(
        "--source", choices=SOURCES[1:], default="images", help="what lies there (default: %(default)s)"
    )
    for name in ("train_split", "val_split", "image_column", "label_column"):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=getattr(standard, name), help=f"as data.{name} (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=CLASSES, help="classes expected (default: %(default)s)")
    parser.add_argument(
        "--training", type=int, default=TRAINING, help="training images expected (default: %(default)s)"
    )
    parser.add_argument(
        "--validation", type=int, default=VALIDATION, help="validation images expected (default: %(default)s)"
    )
    parser.add_argument(
        "--counts-only", action="store_true", help="do not decode the images (decoding takes hours on one core)"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes that decode (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Check a copy of ImageNet-1k and print its fingerprint. Raises DataError that lists everything found wrong."""
    data = DataConfig(
        source=args.source,
        path=args.path,
        train_split=args.train_split,
        val_split=args.val_split,
        image_column=args.image_column,
        label_column=args.label_column,
    )
    train, val = open_source(data, part="train"), open_source(data, part="val")
    check_classes(train, val, wanted=None)
    found = count_problems(train, val, classes=args.classes, training=args.training, validation=args.validation)
    if not args.counts_only:
        for source in (val, train):
            found += damaged_images(source, workers=args.workers, quiet=False)
    if found:
        listed = found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more"]
        raise DataError(problems_message(f"{args.path} is not as expected", listed))
    checked = "counted" if args.counts_only else "decoded"
    print(
        f"{args.path}: {len(train.classes):,} classes, {len(train):,} training and {len(val):,} validation images, "
        f"all {checked}; fingerprint {fingerprint((train, val))}"
    )
    return 0
