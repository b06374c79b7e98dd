"""Instance annotations in COCO's format: read, checked entry by entry, and sorted into what is learned from and what is not.

A file that contradicts itself (unknown image or category, a box that is not four numbers, a mask of another size, …) is refused
with the entries by name. An object that is merely unusable is kept apart instead: COCO itself has a few.
"""

# h, w height and width of an image in pixels. Boxes are (x, y, width, height).

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pycocotools import mask as masks

from spectral_conditioning.errors import DataError, problems_message

Entry = dict[str, Any]
SHOWN = 10
MIN_POLYGON = 6
CROWD, NO_MASK, SMALL_BOX = "crowd region", "mask of less than 3 points", "box under 1 pixel or outside the image"


@dataclasses.dataclass
class Split:
    """One checked annotation file.

    origin: the file, for messages. images: {"id", "file_name", "height", "width"} in the order of ids. objects: image id →
    its annotations. categories: in the order of ids, which is that of the labels. digest: hash of the content.
    """

    origin: str
    categories: list[Entry]
    images: list[Entry]
    objects: dict[int, list[Entry]]
    digest: str

    @property
    def class_names(self) -> list[str]:
        return [str(category["name"]) for category in self.categories]

    def annotations(self) -> Iterable[Entry]:
        """Yield every annotation in the order of images."""
        for image in self.images:
            yield from self.objects[image["id"]]


def read_split(path: Path) -> Split:
    """Read an annotation file. Raises DataError that lists what is broken in it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the annotations {path}: {error.strerror}") from error
    try:
        tree = json.loads(content)
    except ValueError as error:
        raise DataError(f"{path} is not a whole JSON file: {error}") from error
    return checked_split(tree, origin=str(path), digest=hashlib.blake2b(content, digest_size=16).hexdigest())


def checked_split(tree: Any, *, origin: str, digest: str) -> Split:
    """Check annotations that are already in memory. Raises DataError that lists what is broken."""
    if not isinstance(tree, Mapping) or not all(
        isinstance(tree.get(key), list) for key in ("images", "annotations", "categories")
    ):
        raise DataError(f"{origin} is not in COCO's format: it needs the lists images, annotations and categories")
    problems = [*_image_problems(tree["images"]), *_category_problems(tree["categories"])]
    if not problems:
        sizes = {image["id"]: (image["height"], image["width"]) for image in tree["images"]}
        problems = list(_annotation_problems(tree["annotations"], sizes, {item["id"] for item in tree["categories"]}))
    if problems:
        listed = problems if len(problems) <= SHOWN else [*problems[:SHOWN], f"and {len(problems) - SHOWN} more"]
        raise DataError(problems_message(f"{origin} is broken", listed))
    objects: dict[int, list[Entry]] = {image["id"]: [] for image in tree["images"]}
    for annotation in tree["annotations"]:
        image = sizes[annotation["image_id"]]
        objects[annotation["image_id"]].append(_completed(annotation, *image))
    images = [{key: image[key] for key in ("id", "file_name", "height", "width")} for image in tree["images"]]
    images.sort(key=lambda image: int(image["id"]))
    categories = sorted(tree["categories"], key=lambda category: int(category["id"]))
    return Split(origin, [{"id": c["id"], "name": c["name"]} for c in categories], images, objects, digest)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _repeated(kind: str, values: Iterable[Any]) -> list[str]:
    twice = [value for value, count in Counter(values).items() if count > 1]
    return [f"{kind} {value!r} stands there more than once" for value in twice]


def _image_problems(images: list[Any]) -> list[str]:
    problems = []
    for position, image in enumerate(images):
        if not isinstance(image, Mapping) or not _whole(image.get("id")):
            problems.append(f"image number {position} has no whole number as id")
        elif not isinstance(image.get("file_name"), str):
            problems.append(f"image {image['id']} has no file_name")
        elif not all(_whole(image.get(key)) and image[key] > 0 for key in ("height", "width")):
            problems.append(f"image {image['id']} has size {image.get('width')}x{image.get('height')}")
    return problems or ([] if images else ["it has no images"]) + _repeated("image", (image["id"] for image in images))


def _category_problems(categories: list[Any]) -> list[str]:
    problems = [
        f"category number {position} needs a whole number as id and a name"
        for position, item in enumerate(categories)
        if not isinstance(item, Mapping) or not _whole(item.get("id")) or not isinstance(item.get("name"), str)
    ]
    if problems:
        return problems
    found = _repeated("category", (item["id"] for item in categories))
    return found + ([] if categories else ["it has no categories"])


def _annotation_problems(
    annotations: list[Any], sizes: Mapping[int, tuple[int, int]], categories: set[int]
) -> Iterable[str]:
    seen = set()
    for position, item in enumerate(annotations):
        if not isinstance(item, Mapping) or not _whole(item.get("id")):
            yield f"annotation number {position} has no whole number as id"
            continue
        name = f"annotation {item['id']}"
        if item["id"] in seen:
            yield f"{name} stands there more than once"
        seen.add(item["id"])
        box = item.get("bbox")
        if item.get("image_id") not in sizes:
            yield f"{name} is of image {item.get('image_id')!r}, which is not there"
        elif item.get("category_id") not in categories:
            yield f"{name} is of category {item.get('category_id')!r}, which is not there"
        elif not isinstance(box, list) or len(box) != 4 or not all(map(_number, box)):
            yield f"{name} has the box {box!r}; it must be x, y, width, height"
        elif "area" in item and not _number(item["area"]):
            yield f"{name} has the area {item['area']!r}"
        elif item.get("iscrowd", 0) not in (0, 1):
            yield f"{name} has iscrowd {item['iscrowd']!r}; allowed: 0, 1"
        else:
            problem = _mask_problem(item.get("segmentation"), *sizes[item["image_id"]])
            if problem:
                yield f"{name} {problem}"


def _mask_problem(segmentation: Any, height: int, width: int) -> str | None:
    if isinstance(segmentation, list):
        if all(isinstance(part, list) and all(map(_number, part)) for part in segmentation):
            return None
        return "has a polygon that is not a list of numbers"
    if not isinstance(segmentation, Mapping):
        return f"has no segmentation (found {type(segmentation).__name__}); Mask R-CNN learns from masks"
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if size != [height, width]:
        return f"has a run-length mask of size {size!r}; its image is {[height, width]}"
    if isinstance(counts, list):
        if not all(_whole(count) and count >= 0 for count in counts) or sum(counts) != height * width:
            return f"has a run-length mask that covers {sum(filter(_number, counts))} of {height * width} pixels"
    elif not isinstance(counts, str):
        return "has a run-length mask without counts"
    return None


def _completed(annotation: Mapping[str, Any], height: int, width: int) -> Entry:
    """Keep what is used of an annotation, without polygon parts of less than 3 points; fill in what COCO allows to leave out."""
    segmentation = annotation["segmentation"]
    if isinstance(segmentation, list):
        segmentation = [part for part in segmentation if len(part) >= MIN_POLYGON and len(part) % 2 == 0]
    entry = {key: annotation[key] for key in ("id", "image_id", "category_id", "bbox")}
    entry |= {"segmentation": segmentation, "iscrowd": annotation.get("iscrowd", 0)}
    if "area" in annotation:
        return {**entry, "area": annotation["area"]}
    return {**entry, "area": float(masks.area(run_lengths(segmentation, height, width))) if segmentation else 0.0}


def run_lengths(segmentation: Any, height: int, width: int) -> Entry:
    """Return a mask, whatever its form, as one compressed run-length code of pycocotools."""
    if isinstance(segmentation, list):
        return dict(masks.merge(masks.frPyObjects(segmentation, height, width)))
    if isinstance(segmentation["counts"], list):
        return dict(masks.frPyObjects(segmentation, height, width))
    return dict(segmentation)


def unusable(annotation: Entry, image: Entry) -> str | None:
    """Return why nothing can be learned from an annotation, None for an object."""
    if annotation["iscrowd"]:
        return CROWD
    if not annotation["segmentation"]:
        return NO_MASK
    x, y, width, height = annotation["bbox"]
    inside_x = min(x + width, image["width"]) - max(x, 0)
    inside_y = min(y + height, image["height"]) - max(y, 0)
    return SMALL_BOX if min(width, height) < 1 or min(inside_x, inside_y) <= 0 or annotation["area"] <= 0 else None


@dataclasses.dataclass
class Learned:
    """What training keeps of a split: image positions, and how many images and objects were left out for which reason."""

    positions: list[int]
    left_out_images: Counter[str]
    left_out_objects: Counter[str]

    def describe(self) -> str:
        """Say what was left out, in one phrase."""
        found = [f"{count:,} {reason}" for reason, count in (self.left_out_images + self.left_out_objects).items()]
        return f"left out of training: {', '.join(found)}" if found else "nothing left out"


def select_for_training(split: Split, *, min_size: int, keep_empty: bool) -> Learned:
    """Choose the images to learn from: both sides at least `min_size` pixels and, unless `keep_empty`, some usable object."""
    positions: list[int] = []
    images: Counter[str] = Counter()
    objects: Counter[str] = Counter()
    for position, image in enumerate(split.images):
        reasons = [unusable(item, image) for item in split.objects[image["id"]]]
        objects.update(reason for reason in reasons if reason)
        if min(image["height"], image["width"]) < min_size:
            images[f"images under {min_size} pixels"] += 1
        elif not keep_empty and all(reasons):
            images["images without an object to learn from"] += 1
        else:
            positions.append(position)
    return Learned(positions, images, objects)


def ground_truth(split: Split) -> Entry:
    """Return a split as the evaluators take it: every image, crowds as they are.

    An object without a mask can be neither found nor missed, so its box becomes a region in which detections do not count.
    """
    annotations = []
    for item in split.annotations():
        if item["segmentation"]:
            annotations.append(dict(item))
        else:
            x, y, w, h = item["bbox"]
            outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            annotations.append({**item, "segmentation": outline, "iscrowd": 1, "area": w * h})
    return {"images": split.images, "annotations": annotations, "categories": split.categories}


def check_files(split: Split, folder: Path) -> str:
    """Return a hash over names and sizes of a split's image files. Raises DataError that names those that are missing."""
    missing, state = [], hashlib.blake2b(split.digest.encode(), digest_size=16)
    for image in split.images:
        try:
            size = os.stat(folder / image["file_name"]).st_size
        except OSError:
            missing.append(image["file_name"])
            continue
        state.update(f"{image['file_name']}|{size}|".encode())
    if missing:
        shown = ", ".join(missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
        raise DataError(f"{folder} lacks {len(missing)} of {len(split.images)} images of {split.origin}: {shown}")
    return state.hexdigest()
