"""COCO's format: what is read, what is refused by name, what training leaves out and what evaluation keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as masks

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.coco.annotations import (
    CROWD,
    NO_MASK,
    SMALL_BOX,
    Split,
    checked_split,
    ground_truth,
    read_split,
    run_lengths,
    select_for_training,
)

Tree = dict[str, Any]
SQUARE = [[5, 6, 15, 6, 15, 16, 5, 16]]


def split_of(tree: dict[str, Any]) -> Split:
    return checked_split(tree, origin="memory", digest="0")


def test_training_leaves_out_and_evaluation_keeps(tree: Tree) -> None:
    """Five images: normal, empty, only a crowd, a mask of two points, 10×10 pixels. Training sees one, evaluation five."""
    split = split_of(tree)
    learned = select_for_training(split, min_size=32, keep_empty=False)
    assert [split.images[i]["id"] for i in learned.positions] == [11]
    assert dict(learned.left_out_images) == {
        "images without an object to learn from": 3,
        "images under 32 pixels": 1,
    }
    assert dict(learned.left_out_objects) == {CROWD: 1, NO_MASK: 1}
    assert "1 crowd region" in learned.describe()
    truth = ground_truth(split)
    assert len(truth["images"]) == 5
    assert len(truth["annotations"]) == 5


def test_keep_empty_keeps_all_but_tiny_images(tree: Tree) -> None:
    split = split_of(tree)
    learned = select_for_training(split, min_size=32, keep_empty=True)
    assert {split.images[i]["id"] for i in learned.positions} == {11, 12, 5, 14}


def test_labels_follow_the_order_of_category_ids(tree: Tree) -> None:
    assert split_of(tree).class_names == ["apple", "cat", "zebra"]


def test_an_object_without_a_mask_becomes_an_ignored_region(tree: Tree) -> None:
    entry = next(item for item in ground_truth(split_of(tree))["annotations"] if item["id"] == 4)
    assert entry["iscrowd"] == 1
    region = masks.decode(run_lengths(entry["segmentation"], 40, 40))
    assert region.sum() == 100
    assert region[6:16, 5:15].all()


@pytest.mark.parametrize(("box", "area"), [([5, 6, 0.5, 10], 5), ([50, 6, 10, 10], 100), ([5, 6, 10, 10], 0)])
def test_degenerate_boxes_are_left_out_of_training(
    tree: Tree, annotation: Callable[..., Tree], box: list[float], area: float
) -> None:
    tree["annotations"] = [annotation(1, 11, bbox=box, area=area), annotation(2, 11)]
    learned = select_for_training(split_of(tree), min_size=32, keep_empty=False)
    assert len(learned.positions) == 1
    assert dict(learned.left_out_objects) == {SMALL_BOX: 1}


def test_every_form_of_a_mask_is_the_same_mask(tree: Tree, annotation: Callable[..., Tree]) -> None:
    drawn = np.zeros((40, 48), np.uint8)
    drawn[6:16, 5:15] = 1
    compressed = masks.encode(np.asfortranarray(drawn))
    flat = drawn.flatten(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *changes, flat.size]).tolist()
    forms = [
        SQUARE,
        [*SQUARE, [0, 0, 1, 1]],
        {"size": [40, 48], "counts": counts},
        {"size": [40, 48], "counts": compressed["counts"].decode()},
    ]
    for form in forms:
        item = annotation(1, 11, segmentation=form)
        del item["area"], item["iscrowd"]
        tree["annotations"] = [item]
        entry = split_of(tree).objects[11][0]
        assert (masks.decode(run_lengths(entry["segmentation"], 40, 48)) == drawn).all()
        assert entry["area"] == 100
        assert entry["iscrowd"] == 0


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "image": (lambda t: t["annotations"][0].update(image_id=999), r"annotation 1 is of image 999"),
    "category": (lambda t: t["annotations"][1].update(category_id=4), r"annotation 2 is of category 4"),
    "box": (lambda t: t["annotations"][0].update(bbox=[1, 2, 3]), r"annotation 1 has the box \[1, 2, 3\]"),
    "not a number": (lambda t: t["annotations"][0].update(bbox=[1, 2, 3, float("nan")]), r"annotation 1 has the box"),
    "no mask": (lambda t: t["annotations"][0].pop("segmentation"), r"annotation 1 has no segmentation"),
    "polygon": (lambda t: t["annotations"][0].update(segmentation=[1, 2, 3]), r"annotation 1 has a polygon"),
    "size": (
        lambda t: t["annotations"][2]["segmentation"].update(size=[9, 9]),
        r"annotation 3 has a run-length mask of size",
    ),
    "counts": (lambda t: t["annotations"][2]["segmentation"].update(counts=[5]), r"annotation 3 .* covers 5 of 1600"),
    "twice": (lambda t: t["annotations"][1].update(id=1), r"annotation 1 stands there more than once"),
    "image twice": (lambda t: t["images"].append(t["images"][0]), r"image 11 stands there more than once"),
    "image size": (lambda t: t["images"][1].update(height=0), r"image 12 has size 40x0"),
    "no name": (lambda t: t["images"][1].pop("file_name"), r"image 12 has no file_name"),
    "category id": (lambda t: t["categories"][0].update(id="a"), r"category number 0"),
    "lists": (lambda t: t.pop("categories"), r"needs the lists"),
    "crowd": (lambda t: t["annotations"][0].update(iscrowd="no"), r"annotation 1 has iscrowd 'no'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_annotations_are_named(tree: Tree, case: str) -> None:
    spoil, message = BROKEN[case]
    spoil(tree)
    with pytest.raises(DataError, match=message):
        split_of(tree)


def test_all_broken_annotations_are_named_at_once(tree: Tree) -> None:
    for item in tree["annotations"]:
        item["category_id"] = 0
    with pytest.raises(DataError, match=r"5 problems(?s:.*)annotation 1 (?s:.*)annotation 5 "):
        split_of(tree)


def test_a_file_that_is_cut_short_is_named(tmp_path: Any) -> None:
    path = tmp_path / "half.json"
    path.write_text('{"images": [')
    with pytest.raises(DataError, match=r"half\.json is not a whole JSON file"):
        read_split(path)
    with pytest.raises(DataError, match="cannot read the annotations"):
        read_split(tmp_path / "none.json")
