"""Pictures of what a detector found, beside the ground truth."""

# H, W height and width of a picture.

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as masks

from spectral_conditioning.tasks.coco.annotations import Entry, Split, run_lengths

Picture = NDArray[np.uint8]
MIN_SCORE = 0.5
SMALLEST_SIDE = 384
TITLE_HEIGHT, GAP = 24, 8
FONT = cv2.FONT_HERSHEY_SIMPLEX
OPACITY = 0.45


def class_colour(label: int) -> tuple[int, int, int]:
    """Return a bright colour for a class; consecutive classes get hues far apart."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1.0, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_objects(picture: Picture, objects: Sequence[Entry], split: Split) -> Picture:
    """Return the picture, enlarged if it is small, with masks, boxes, class names and, where there is one, the score."""
    height, width = picture.shape[:2]
    factor = max(1, -(-SMALLEST_SIDE // min(height, width)))
    drawn = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)
    labels = {category["id"]: label for label, category in enumerate(split.categories)}
    # Weak ones first, so that sure ones end on top.
    for item in sorted(objects, key=lambda item: item.get("score", 1.0)):
        label = labels[item["category_id"]]
        colour = class_colour(label)
        mask = masks.decode(run_lengths(item["segmentation"], height, width)).astype(bool)
        mask = mask.repeat(factor, axis=0).repeat(factor, axis=1)
        drawn[mask] = ((1 - OPACITY) * drawn[mask] + OPACITY * np.array(colour)).astype(np.uint8)
        x, y, w, h = (round(factor * value) for value in item["bbox"])
        cv2.rectangle(drawn, (x, y), (x + w, y + h), colour, 2)
        text = split.class_names[label] + (f" {item['score']:.2f}" if "score" in item else "")
        place = (x + 2, max(12, y - 4))
        cv2.putText(drawn, text, place, FONT, 0.45, (0, 0, 0), 3, cv2.LINE_AA)
        cv2.putText(drawn, text, place, FONT, 0.45, colour, 1, cv2.LINE_AA)
    return np.asarray(drawn, dtype=np.uint8)


def _titled(picture: Picture, title: str) -> Picture:
    bar = np.full((TITLE_HEIGHT, picture.shape[1], 3), 255, np.uint8)
    cv2.putText(bar, title, (6, TITLE_HEIGHT - 7), FONT, 0.5, (0, 0, 0), 1, cv2.LINE_AA)
    return np.concatenate([bar, picture])


def draw_comparison(
    path: Path,
    split: Split,
    read: Callable[[int], Picture],
    positions: Sequence[int],
    detections: Sequence[Sequence[Entry]],
) -> None:
    """Write one PNG with a row for each image: ground truth on the left, detections of a score of at least 0.5 on the right."""
    rows = []
    for position, found in zip(positions, detections, strict=True):
        image, picture = split.images[position], read(position)
        truth = [item for item in split.objects[image["id"]] if item["segmentation"]]
        sure = [item for item in found if item["score"] >= MIN_SCORE]
        left = _titled(draw_objects(picture, truth, split), f"ground truth: {image['file_name']}")
        right = _titled(draw_objects(picture, sure, split), f"found: {len(sure)} at score >= {MIN_SCORE}")
        gap = np.full((left.shape[0], GAP, 3), 255, np.uint8)
        rows.append(np.concatenate([left, gap, right], axis=1))
    width = max(row.shape[1] for row in rows)
    padded = [cv2.copyMakeBorder(r, 0, GAP, 0, width - r.shape[1], cv2.BORDER_CONSTANT, value=(255,) * 3) for r in rows]
    sheet = np.ascontiguousarray(np.concatenate(padded)[:, :, ::-1])
    path.write_bytes(cv2.imencode(".png", sheet)[1].tobytes())
