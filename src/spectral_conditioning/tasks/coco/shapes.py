"""Generated pictures of overlapping shapes with exact masks: three classes, no download.

Every picture is a function of (seed, split, index). Discs, triangles and squares of random size, angle and colour are painted
one over the other on a noisy ground; the mask of a shape is what remains visible of it.
"""

# H, W height and width of the picture (equal). Coordinates are pixel centres.

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as masks

from spectral_conditioning.randomness import derive
from spectral_conditioning.tasks.coco.annotations import Split, checked_split

Picture = NDArray[np.uint8]
Mask = NDArray[np.bool_]
CLASSES = ("disc", "triangle", "square")
CORNERS = {"triangle": 3, "square": 4}
MOST_SHAPES = 5
MIN_VISIBLE = 0.35


def shape_mask(kind: str, *, centre: tuple[float, float], radius: float, angle: float, size: int) -> Mask:
    """Return the pixels of one shape: a disc, or a regular polygon with its corners on the circle of `radius`."""
    y_HW, x_HW = np.mgrid[:size, :size].astype(np.float64)
    x_HW, y_HW = x_HW - centre[0], y_HW - centre[1]
    if kind == "disc":
        return np.asarray(x_HW**2 + y_HW**2 <= radius**2)
    corners = CORNERS[kind]
    # A regular polygon is where no side is farther out than the inscribed circle.
    normals = angle + 2 * np.pi * np.arange(corners) / corners
    reach_HW = np.max([np.cos(normal) * x_HW + np.sin(normal) * y_HW for normal in normals], axis=0)
    return np.asarray(reach_HW <= radius * np.cos(np.pi / corners))


def draw_picture(seed: int, split: str, index: int, *, size: int) -> tuple[Picture, list[tuple[int, Mask]]]:
    """Return a picture (H, W, 3) and the class and visible mask of every shape in it."""
    draw = np.random.default_rng(derive(seed, f"shapes/{split}", index))
    picture = np.broadcast_to(draw.uniform(60, 200, 3), (size, size, 3)).copy()
    painted: list[tuple[int, Mask, int]] = []
    for _ in range(int(draw.integers(1, MOST_SHAPES + 1))):
        label = int(draw.integers(len(CLASSES)))
        radius = size * draw.uniform(0.10, 0.24)
        centre = (float(draw.uniform(radius, size - radius)), float(draw.uniform(radius, size - radius)))
        mask = shape_mask(CLASSES[label], centre=centre, radius=radius, angle=draw.uniform(0, 2 * np.pi), size=size)
        colour = draw.uniform(0, 255, 3)
        covered = [(other, seen & ~mask, whole) for other, seen, whole in painted]
        # A shape that would hide another is left out, so that nothing is to be seen that has no annotation.
        if all(seen.sum() >= MIN_VISIBLE * whole for _, seen, whole in covered):
            picture[mask] = colour
            painted = [*covered, (label, mask, int(mask.sum()))]
    picture += draw.normal(0, 12, picture.shape)
    return picture.clip(0, 255).astype(np.uint8), [(label, seen) for label, seen, _ in painted]


def make_shapes(seed: int, split: str, *, count: int, size: int) -> tuple[Split, list[Picture]]:
    """Return `count` pictures with their annotations in COCO's format (masks as run-length codes)."""
    pictures, images = [], []
    annotations: list[dict[str, Any]] = []
    state = hashlib.blake2b(digest_size=16)
    for index in range(count):
        picture, shapes = draw_picture(seed, split, index, size=size)
        state.update(picture.tobytes())
        pictures.append(picture)
        images.append({"id": index, "file_name": f"{split}-{index}", "height": size, "width": size})
        for label, mask in shapes:
            annotations.append(_annotation(label, mask, image=index, number=len(annotations) + 1))
    categories = [{"id": label + 1, "name": name} for label, name in enumerate(CLASSES)]
    tree = {"images": images, "annotations": annotations, "categories": categories}
    return checked_split(tree, origin=f"shapes/{split}", digest=state.hexdigest()), pictures


def _annotation(label: int, mask: Mask, *, image: int, number: int) -> dict[str, Any]:
    code = masks.encode(np.asfortranarray(mask))
    return {
        "id": number,
        "image_id": image,
        "category_id": label + 1,
        "bbox": masks.toBbox(code).tolist(),
        "area": float(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": list(mask.shape), "counts": code["counts"].decode()},
    }
