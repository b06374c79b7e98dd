"""Generated shapes: exact, disjoint masks that are a function of (seed, split, index)."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask as masks

from spectral_conditioning.tasks.coco.shapes import CLASSES, MIN_VISIBLE, draw_picture, make_shapes, shape_mask

SIZE = 96


def test_areas_are_those_of_the_figures() -> None:
    """Disc π r², triangle (3√3/4) r², square 2 r², whatever the angle; a pixel grid is off by at most its outline."""
    radius = 30.0
    expected = {"disc": np.pi, "triangle": 3 * np.sqrt(3) / 4, "square": 2.0}
    for kind, factor in expected.items():
        for angle in (0.0, 0.4, 1.9):
            mask = shape_mask(kind, centre=(47.3, 48.1), radius=radius, angle=angle, size=SIZE)
            assert mask.sum() == pytest.approx(factor * radius**2, rel=0.02)


def test_masks_are_visible_and_disjoint() -> None:
    overlapping = 0
    for index in range(40):
        picture, shapes = draw_picture(0, "train", index, size=SIZE)
        assert picture.shape == (SIZE, SIZE, 3)
        assert shapes
        assert np.sum([mask for _, mask in shapes], axis=0).max() == 1
        for _, mask in shapes:
            rows, columns = np.nonzero(mask)
            whole = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
            overlapping += mask.sum() < 0.45 * whole
            assert mask.sum() >= 16
    assert overlapping > 0


def test_colour_of_a_mask_is_its_own() -> None:
    """The pixels of one mask vary by the noise alone (σ = 12)."""
    for index in range(20):
        picture, shapes = draw_picture(0, "val", index, size=SIZE)
        for _, mask in shapes:
            assert picture[mask].astype(float).std(axis=0).max() < 16


def test_pictures_are_a_function_of_seed_split_and_index() -> None:
    first, pictures = make_shapes(3, "train", count=4, size=64)
    again, same = make_shapes(3, "train", count=2, size=64)
    assert all(np.array_equal(a, b) for a, b in zip(pictures, same, strict=False))
    assert again.objects == {image: first.objects[image] for image in (0, 1)}
    for seed, split in ((4, "train"), (3, "val")):
        other, _ = make_shapes(seed, split, count=4, size=64)
        assert other.digest != first.digest


def test_annotations_describe_the_masks() -> None:
    split, _ = make_shapes(0, "train", count=30, size=SIZE)
    seen = set()
    for item in split.annotations():
        mask = masks.decode(item["segmentation"]).astype(bool)
        rows, columns = np.nonzero(mask)
        x, y, w, h = item["bbox"]
        assert (x, y, x + w - 1, y + h - 1) == (columns.min(), rows.min(), columns.max(), rows.max())
        assert item["area"] == mask.sum()
        seen.add(item["category_id"])
    assert seen == {1, 2, 3}
    assert split.class_names == list(CLASSES)
    assert MIN_VISIBLE < 1
