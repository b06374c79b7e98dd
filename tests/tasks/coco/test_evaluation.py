"""Evaluation: pycocotools' figures at full precision, and the laws that any evaluator must obey."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from spectral_conditioning.tasks.coco.annotations import checked_split, ground_truth, run_lengths
from spectral_conditioning.tasks.coco.evaluation import FIGURES, KINDS, coco_metrics, encode_masks, gathered_metrics
from spectral_conditioning.tasks.coco.shapes import make_shapes

Entry = dict[str, Any]


def truth_of(count: int = 12, *, crowds: int = 2) -> Entry:
    """Return the ground truth of generated shapes with a few crowds and one empty image."""
    split, _ = make_shapes(0, "val", count=count, size=96)
    truth = ground_truth(split)
    for item in truth["annotations"][:crowds]:
        item["iscrowd"] = 1
    truth["annotations"] = [item for item in truth["annotations"] if item["image_id"] != count - 1]
    return truth


def perfect(truth: Entry) -> list[Entry]:
    """Return the ground truth itself as detections."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in truth["images"]}
    return [
        {
            "image_id": item["image_id"],
            "category_id": item["category_id"],
            "bbox": list(item["bbox"]),
            "score": 0.9,
            "segmentation": run_lengths(item["segmentation"], *sizes[item["image_id"]]),
        }
        for item in truth["annotations"]
        if not item["iscrowd"]
    ]


def noisy(truth: Entry, seed: int = 0) -> list[Entry]:
    """Return detections that are shifted, repeated, of wrong classes, or missing."""
    draw = np.random.default_rng(seed)
    found = []
    for item in perfect(truth) * 3:
        if draw.random() < 0.2:
            continue
        shift = tuple(draw.integers(-6, 7, 2).tolist())
        mask = np.roll(masks.decode(item["segmentation"]), shift, axis=(0, 1))
        code = masks.encode(np.asfortranarray(mask))
        category = int(draw.integers(1, 4)) if draw.random() < 0.2 else item["category_id"]
        box = [value + float(draw.normal(0, 3)) for value in masks.toBbox(code).tolist()]
        score = round(float(draw.random()), 1)
        found.append({**item, "segmentation": code, "category_id": category, "bbox": box, "score": score})
    return found


def by_pycocotools(truth: Entry, detections: list[Entry], kind: str) -> list[float]:
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO()
        reference.dataset = {**truth, "annotations": [dict(item) for item in truth["annotations"]]}
        reference.createIndex()
        dropped = "bbox" if kind == "segm" else "segmentation"
        ordered = sorted(detections, key=lambda item: int(item["image_id"]))
        results = [{key: value for key, value in item.items() if key != dropped} for item in ordered]
        evaluator = COCOeval(reference, reference.loadRes(results), kind)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return [float(value) for value in evaluator.stats]


def test_figures_equal_those_of_pycocotools() -> None:
    truth = truth_of()
    detections = noisy(truth)
    metrics = coco_metrics(truth, detections)
    assert set(metrics) == {f"{kind}_{name}" for kind in KINDS for name in FIGURES}
    assert 0.05 < metrics["bbox_mAP"] < 0.95
    for kind in KINDS:
        expected = by_pycocotools(truth, detections, kind)
        found = [metrics[f"{kind}_{name}"] for name in FIGURES]
        assert [-1.0 if math.isnan(value) else value for value in found] == pytest.approx(expected, abs=1e-12)
        # Full precision: not rounded to the three digits that mmdet keeps.
        assert found[0] != round(found[0], 3)


def test_ground_truth_as_predictions_scores_one() -> None:
    truth = truth_of()
    metrics = coco_metrics(truth, perfect(truth))
    for kind in KINDS:
        assert metrics[f"{kind}_mAP"] == pytest.approx(1.0, abs=1e-12)
        assert metrics[f"{kind}_mAP_75"] == pytest.approx(1.0, abs=1e-12)
        assert math.isnan(metrics[f"{kind}_mAP_large"])


def test_no_detection_scores_zero_and_has_every_key() -> None:
    metrics = coco_metrics(truth_of(), [])
    assert set(metrics) == {f"{kind}_{name}" for kind in KINDS for name in FIGURES}
    assert {value for value in metrics.values() if not math.isnan(value)} == {0.0}
    assert metrics["bbox_mAP"] == metrics["segm_mAP"] == 0.0


def test_detections_in_a_crowd_do_not_count() -> None:
    truth = truth_of(crowds=0)
    found = perfect(truth)
    crowd = truth["annotations"][0]
    crowd["iscrowd"] = 1
    assert coco_metrics(truth, found)["bbox_mAP"] == pytest.approx(1.0, abs=1e-12)
    crowd["category_id"] = crowd["category_id"] % 3 + 1
    assert coco_metrics(truth, found)["bbox_mAP"] < 1.0


def test_an_object_without_a_mask_is_neither_found_nor_missed(tree: Entry) -> None:
    truth = ground_truth(checked_split(tree, origin="memory", digest="0"))
    found = perfect(truth)
    assert coco_metrics(truth, found)["segm_mAP"] == pytest.approx(1.0, abs=1e-12)
    inside = {**found[0], "image_id": 14, "bbox": [5, 6, 10, 10], "category_id": 7}
    assert coco_metrics(truth, [*found, inside])["bbox_mAP"] == pytest.approx(1.0, abs=1e-12)


def test_figures_do_not_depend_on_the_order_of_images_or_on_the_evaluator_s_history() -> None:
    truth = truth_of()
    detections = noisy(truth)
    first = coco_metrics(truth, detections)
    shuffled = sorted(detections, key=lambda item: -item["image_id"])
    assert str(coco_metrics(truth, shuffled)) == str(first)
    assert str(coco_metrics(truth, detections)) == str(first)


def test_masks_survive_encoding() -> None:
    drawn = torch.rand(3, 7, 5) > 0.5
    codes = encode_masks(drawn)
    assert (np.stack([masks.decode(code) for code in codes]) == drawn.numpy()).all()
    assert encode_masks(drawn[:0]) == []


def _one_rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    truth = truth_of()
    own = [item for item in noisy(truth) if item["image_id"] % 2 == rank]
    Path(folder, f"rank{rank}").write_text(str(gathered_metrics(truth, own)))
    torch.distributed.destroy_process_group()


def test_two_ranks_give_the_figures_of_one(tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=_one_rank, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=60)
        assert process.exitcode == 0
    truth = truth_of()
    expected = str(gathered_metrics(truth, noisy(truth)))
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text() == expected
