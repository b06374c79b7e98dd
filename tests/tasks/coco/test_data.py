"""Samples and splits: what a folder in COCO's format becomes, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spectral_conditioning.errors import DataError
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.coco.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.coco.data import DetectionData, load_detection_data

Tree = dict[str, Any]


def test_a_folder_becomes_samples(folder: DataConfig, tiny: ModelConfig) -> None:
    plain = dataclasses.replace(folder, augment=False, eval_short_side=80)
    data = load_detection_data(tiny, plain)
    assert (len(data.train), len(data.val), data.outputs) == (1, 5, 3)  # type: ignore[arg-type]
    assert "1 of 5 training images" in data.description
    sample = data.train[0]
    objects = sample["data_samples"].gt_instances
    assert sample["inputs"].shape == (3, 80, 96)
    # Categories 7 and 90 are labels 1 and 2; boxes are corners at twice the size.
    assert objects.labels.tolist() == [1, 2]
    assert objects.bboxes.tensor.tolist() == [[10, 12, 30, 32], [40, 40, 64, 64]]
    assert objects.masks.masks[0, 12:32, 10:30].all()
    assert objects.masks.masks[0].sum() == 400
    assert [data.val[i]["data_samples"].img_id for i in range(5)] == [5, 11, 12, 14, 15]


def test_crowds_are_ignored_and_empty_images_learned_from_on_request(folder: DataConfig, tiny: ModelConfig) -> None:
    data = load_detection_data(tiny, dataclasses.replace(folder, keep_empty=True, augment=False))
    crowd = data.train[0]["data_samples"]
    assert (crowd.img_id, len(crowd.gt_instances), len(crowd.ignored_instances)) == (5, 0, 1)
    empty = data.train[2]["data_samples"]
    assert (empty.img_id, len(empty.gt_instances), len(empty.ignored_instances)) == (12, 0, 0)


def test_draws_come_from_the_global_generators_alone(shapes: DetectionData) -> None:
    def sample(seed: int) -> tuple[torch.Tensor, list[list[float]]]:
        seed_all(seed, "augment", 3)
        found = shapes.train[2]
        return found["inputs"], found["data_samples"].gt_instances.bboxes.tensor.tolist()

    first, again = sample(0), sample(0)
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    assert len({sample(seed)[0].shape for seed in range(8)}) > 1


def test_augmentation_keeps_boxes_around_masks(shapes: DetectionData) -> None:
    """Flips, resizes and crops move a box and its mask together."""
    np.random.seed(0)
    checked = 0
    for index in range(len(shapes.train)):  # type: ignore[arg-type]
        sample = shapes.train[index]["data_samples"]
        objects = sample.gt_instances
        for box, mask in zip(objects.bboxes.tensor, objects.masks.masks, strict=True):
            rows, columns = np.nonzero(mask)
            extent = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (box - extent).abs().max() <= 2
            checked += 1
    assert checked > 6


def test_validation_is_the_same_picture_every_time(shapes: DetectionData) -> None:
    assert shapes.val.deterministic  # type: ignore[attr-defined]
    assert torch.equal(shapes.val[1]["inputs"], shapes.val[1]["inputs"])
    picture = shapes.val.read(1)  # type: ignore[attr-defined]
    assert torch.equal(shapes.val[1]["inputs"].permute(1, 2, 0), torch.from_numpy(picture))


def test_damaged_missing_and_wrong_images_are_named(folder: DataConfig, tiny: ModelConfig) -> None:
    assert folder.path is not None
    image = Path(folder.path) / "images" / "11.png"
    whole = image.read_bytes()
    data = load_detection_data(tiny, folder)
    image.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(DataError, match=r"11\.png (cannot be decoded|has)"):
        data.train[0]
    image.write_bytes((image.parent / "12.png").read_bytes())
    with pytest.raises(DataError, match=r"11\.png has 40x40 pixels, its annotations say 48x40"):
        data.train[0]
    image.unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 5 images .*: 11\.png"):
        load_detection_data(tiny, folder)


def test_splits_that_do_not_fit_are_refused(
    tmp_path: Path, tree: Tree, tiny: ModelConfig, write: Callable[..., DataConfig]
) -> None:
    other = copy.deepcopy(tree)
    other["categories"][0]["name"] = "horse"
    with pytest.raises(DataError, match=r"differ in their categories: .*zebra"):
        load_detection_data(tiny, write(tmp_path / "a", tree, other))
    empty = {**tree, "annotations": [item for item in tree["annotations"] if item["iscrowd"]]}
    with pytest.raises(DataError, match="no object that could be found"):
        load_detection_data(tiny, write(tmp_path / "b", tree, empty))
    with pytest.raises(DataError, match="no image is left to train on"):
        load_detection_data(tiny, write(tmp_path / "c", empty, tree))
    wanted = dataclasses.replace(tiny, num_classes=80)
    with pytest.raises(DataError, match=r"num_classes is 80 but .* has 3"):
        load_detection_data(wanted, write(tmp_path / "d", tree, tree))


def test_fingerprint_changes_with_a_label_and_with_a_picture(
    tmp_path: Path, tree: Tree, tiny: ModelConfig, write: Callable[..., DataConfig]
) -> None:
    settings = write(tmp_path / "a", tree, tree)
    first = load_detection_data(tiny, settings).fingerprint
    assert load_detection_data(tiny, settings).fingerprint == first
    changed = copy.deepcopy(tree)
    changed["annotations"][0]["category_id"] = 3
    assert load_detection_data(tiny, write(tmp_path / "a", changed, tree)).fingerprint != first
    write(tmp_path / "a", tree, tree)
    with open(tmp_path / "a" / "images" / "12.png", "ab") as file:
        file.write(b"\0")
    assert load_detection_data(tiny, settings).fingerprint != first
