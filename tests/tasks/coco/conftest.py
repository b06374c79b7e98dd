"""Small detection data and detectors, made on the spot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from spectral_conditioning.tasks.coco.backbone import build_body
from spectral_conditioning.tasks.coco.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.coco.data import DetectionData, load_detection_data
from spectral_conditioning.tasks.coco.detector import Float32HeadMaskRCNN, build_detector
from spectral_conditioning.tasks.coco.module import DetectionModule
from spectral_conditioning.tasks.optim import OptimConfig

TINY = ModelConfig(
    name="xcit_nano_12_p8_224", embed_dim=16, depth=4, num_heads=2, eta=1.0, drop_path_rate=0.0, taps=(0, 1, 2, 3),
    channels=16, fc_channels=16, mask_convs=1, anchor_scale=4.0, rpn_samples=16, rpn_candidates=40, rpn_proposals=20,
    roi_samples=16, max_detections=10,
)  # fmt: skip
SHAPES = DataConfig(
    batch_size=2, short_sides=(64, 72), max_side=96, crop_short_sides=(64, 80), crop_sizes=(48, 64), eval_short_side=64,
    shapes_train=6, shapes_val=5, shapes_size=64, pictures=2,
)  # fmt: skip
LAYOUT = {
    "train_images": "images",
    "val_images": "images",
    "train_annotations": "train.json",
    "val_annotations": "val.json",
}


def square(x: float, y: float, side: float) -> list[list[float]]:
    """Return the polygon of a square."""
    return [[x, y, x + side, y, x + side, y + side, x, y + side]]


def annotation(number: int, image: int, **changes: Any) -> dict[str, Any]:
    """Return a sound annotation, a square of 10 pixels at (5, 6) of category 7, with changes."""
    entry: dict[str, Any] = {
        "id": number,
        "image_id": image,
        "category_id": 7,
        "bbox": [5, 6, 10, 10],
        "area": 100,
        "iscrowd": 0,
        "segmentation": square(5, 6, 10),
    }
    return {**entry, **changes}


def sound_tree() -> dict[str, Any]:
    """Return annotations of the cases that detection suites trip over; categories 3, 7, 90 are not in order and have gaps.

    Images: 11 normal (two objects), 12 empty, 5 only a crowd, 14 a mask of two points, 15 of 10×10 pixels.
    """
    sizes = {11: (40, 48), 12: (40, 40), 5: (40, 40), 14: (40, 40), 15: (10, 10)}
    images = [{"id": i, "file_name": f"{i}.png", "height": h, "width": w} for i, (h, w) in sizes.items()]
    crowd = {"size": [40, 40], "counts": [400, 800, 400]}
    return {
        "images": images,
        "categories": [{"id": i, "name": name} for i, name in ((90, "zebra"), (3, "apple"), (7, "cat"))],
        "annotations": [
            annotation(1, 11),
            annotation(2, 11, category_id=90, bbox=[20, 20, 12, 12], segmentation=square(20, 20, 12), area=144),
            annotation(3, 5, iscrowd=1, segmentation=crowd, bbox=[10, 0, 20, 40], area=800),
            annotation(4, 14, segmentation=[[5, 6, 15, 16]]),
            annotation(5, 15, bbox=[1, 1, 5, 5], segmentation=square(1, 1, 5), area=25),
        ],
    }


def write_folder(root: Path, train: dict[str, Any], val: dict[str, Any]) -> DataConfig:
    """Write a data set in COCO's format with pictures of noise, and return settings that read it."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for image in (*train["images"], *val["images"]):
        pixels = draw.integers(0, 256, (image["height"], image["width"], 3), dtype=np.uint8)
        cv2.imwrite(str(root / "images" / image["file_name"]), pixels)
    (root / "train.json").write_text(json.dumps(train))
    (root / "val.json").write_text(json.dumps(val))
    return dataclasses.replace(SHAPES, source="coco", path=str(root), **LAYOUT)


@pytest.fixture
def tree() -> dict[str, Any]:
    return sound_tree()


@pytest.fixture(name="annotation")
def annotation_of() -> Callable[..., dict[str, Any]]:
    return annotation


@pytest.fixture
def write() -> Callable[..., DataConfig]:
    return write_folder


@pytest.fixture
def settings() -> DataConfig:
    """Settings of the generated shapes."""
    return SHAPES


@pytest.fixture
def tiny() -> ModelConfig:
    return TINY


@pytest.fixture
def folder(tmp_path: Path) -> DataConfig:
    """Settings that read a folder of the cases above, for training and validation alike."""
    return write_folder(tmp_path / "coco", sound_tree(), sound_tree())


@pytest.fixture(scope="session")
def shapes() -> DetectionData:
    return load_detection_data(TINY, SHAPES)


@pytest.fixture
def detector() -> Callable[..., Float32HeadMaskRCNN]:
    """Build the tiny detector from a seed, with changed settings."""

    def make(seed: int = 0, *, classes: int = 3, **changes: Any) -> Float32HeadMaskRCNN:
        torch.manual_seed(seed)
        model = dataclasses.replace(TINY, **changes)
        return build_detector(model, build_body(model), classes=classes)

    return make


@pytest.fixture
def module(detector: Callable[..., Float32HeadMaskRCNN], shapes: DetectionData) -> DetectionModule:
    return DetectionModule(detector(), optim=OptimConfig(), total_steps=4, data=shapes)
