"""`spectral prepare coco`: check COCO 2017, or any folder in its format, where it lies; nothing is copied, moved or changed."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from spectral_conditioning.errors import DataError, problems_message
from spectral_conditioning.tasks.coco.annotations import unusable
from spectral_conditioning.tasks.coco.config import DataConfig
from spectral_conditioning.tasks.coco.data import Opened, check_categories, open_split

# As published: images and annotations of COCO 2017, and the MD5 of its archives.
PUBLISHED = {"train": (118_287, 860_001), "val": (5_000, 36_781)}
CATEGORIES = 80
ARCHIVES = {
    "train2017.zip": "cced6f7f71b7629ddf16f17bbcfab6b2",
    "val2017.zip": "442b8da7639aecaf257c1dceb8ba8c80",
    "annotations_trainval2017.zip": "f4bbac642086de4f52a3fdda2de5fa2c",
}
SHOWN = 20
BLOCK = 1 << 22
PATHS = ("train_images", "train_annotations", "val_images", "val_annotations")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    standard = DataConfig()
    parser.add_argument("path", help="folder in COCO's format; zips of COCO 2017 that lie in it are checked too")
    for name in PATHS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=getattr(standard, name), help=f"as data.{name} (default: %(default)s)")
    parser.add_argument("--any-size", action="store_true", help="do not expect the counts of COCO 2017")
    parser.add_argument("--counts-only", action="store_true", help="do not decode the images (minutes on one core)")


def run(args: argparse.Namespace) -> int:
    """Check a folder and print what it holds. Raises DataError that lists everything found wrong."""
    data = DataConfig(source="coco", path=args.path, **{name: getattr(args, name) for name in PATHS})
    found = list(damaged_archives(Path(args.path)))
    parts = {part: open_split(data, part=part) for part in ("train", "val")}
    check_categories(parts["train"].split, parts["val"].split, wanted=None)
    for part, opened in parts.items():
        if not args.any_size:
            found += count_problems(opened, part)
        if not args.counts_only:
            found += damaged_images(opened, part)
    if found:
        listed = found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more"]
        raise DataError(problems_message(f"{args.path} is not as expected", listed))
    for part, opened in parts.items():
        print(describe(opened, part))
    return 0


def count_problems(opened: Opened, part: str) -> list[str]:
    """Name every count that is not that of COCO 2017."""
    images, annotations = PUBLISHED[part]
    split = opened.split
    counts = {
        "categories": (len(split.categories), CATEGORIES),
        f"{part} images": (len(split.images), images),
        f"{part} annotations": (sum(1 for _ in split.annotations()), annotations),
    }
    return [
        f"{found:,} {what}, COCO 2017 has {expected:,}"
        for what, (found, expected) in counts.items()
        if found != expected
    ]


def damaged_images(opened: Opened, part: str) -> Iterator[str]:
    """Decode every image of a split and yield a message for each that is damaged or of another size than stated."""
    for position in tqdm(range(len(opened.split.images)), desc=f"decoding {part}", unit=" images", disable=None):
        try:
            opened.read(position)
        except DataError as error:
            yield str(error)


def damaged_archives(folder: Path) -> Iterator[str]:
    """Yield a message for each of COCO's own archives in the folder whose checksum is not the published one."""
    for name, expected in ARCHIVES.items():
        path = folder / name
        if path.is_file():
            state = hashlib.md5(usedforsecurity=False)
            with open(path, "rb") as file:
                while block := file.read(BLOCK):
                    state.update(block)
            if state.hexdigest() != expected:
                yield f"{name} has MD5 {state.hexdigest()}, published is {expected}; download it again"


def describe(opened: Opened, part: str) -> str:
    """Say what a split holds, and which annotations nothing can be learned from."""
    split = opened.split
    reasons: Counter[str] = Counter()
    examples: dict[str, int] = {}
    for image in split.images:
        for item in split.objects[image["id"]]:
            reason = unusable(item, image)
            if reason:
                reasons[reason] += 1
                examples.setdefault(reason, item["id"])
    special = "".join(
        f"; {count:,} × {reason} (e.g. annotation {examples[reason]})" for reason, count in reasons.items()
    )
    empty = sum(not split.objects[image["id"]] for image in split.images)
    total = sum(1 for _ in split.annotations())
    return (
        f"{part}: {len(split.images):,} images ({empty:,} without annotations), {total:,} annotations, "
        f"{len(split.categories)} categories{special}; fingerprint {opened.fingerprint}"
    )
