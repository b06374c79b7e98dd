"""COCO's twelve box and twelve mask figures, by faster-coco-eval at full precision."""

# R detections of an image, H, W its height and width.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from faster_coco_eval import COCO, COCOeval_faster
from pycocotools import mask as masks

from spectral_conditioning.tasks.coco.annotations import Entry

FIGURES = (
    "mAP", "mAP_50", "mAP_75", "mAP_small", "mAP_medium", "mAP_large",
    "AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large",
)  # fmt: skip
KINDS = ("bbox", "segm")
# The evaluators' mark of a figure that is not defined, e.g. of large objects where there are none.
UNDEFINED = -1.0


def detections_of(image_id: int, predicted: Any, category_ids: Sequence[int]) -> list[Entry]:
    """Return mmdet's predictions for one image, best first, in COCO's result format with run-length masks.

    predicted: InstanceData with bboxes (R, 4) as corners, scores (R,), labels (R,), masks (R, H, W), in pixels of the original.
    """
    boxes_R4 = predicted.bboxes.double().cpu()
    boxes_R4[:, 2:] -= boxes_R4[:, :2]
    codes = encode_masks(predicted.masks)
    rows = zip(boxes_R4.tolist(), predicted.scores.double().tolist(), predicted.labels.tolist(), codes, strict=True)
    return [
        {"image_id": image_id, "category_id": category_ids[label], "bbox": box, "score": score, "segmentation": code}
        for box, score, label, code in rows
    ]


def encode_masks(masks_RHW: torch.Tensor) -> list[Entry]:
    """Return boolean masks as compressed run-length codes."""
    stacked = np.asfortranarray(masks_RHW.cpu().numpy().astype(np.uint8).transpose(1, 2, 0))
    return [dict(code) for code in masks.encode(stacked)] if stacked.shape[2] else []


def coco_metrics(truth: Entry, detections: Sequence[Entry]) -> dict[str, float]:
    """Return `bbox_mAP`, …, `segm_AR_large` as fractions; NaN where a figure is not defined, 0 where nothing was found.

    The figures depend on which detections an image has and their order in it, not on the order of images.
    """
    ordered = sorted(detections, key=lambda item: int(item["image_id"]))
    metrics = {}
    # The evaluator writes into the annotations it is given.
    own = {**truth, "annotations": [dict(item) for item in truth["annotations"]]}
    reference = COCO(own, print_function=_silent)
    for kind in KINDS:
        found = reference.loadRes([_result(item, kind) for item in ordered])
        evaluator = COCOeval_faster(reference, found, kind, print_function=_silent)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
        for name, value in zip(FIGURES, evaluator.stats, strict=False):
            metrics[f"{kind}_{name}"] = float("nan") if value == UNDEFINED else float(value)
    return metrics


def _silent(*_: Any) -> None:
    """Take the place of the evaluator's printing."""


def _result(item: Entry, kind: str) -> Entry:
    """Keep what one kind is scored by. A mask is counted as small or large by its own area, not by that of its box."""
    dropped = "bbox" if kind == "segm" else "segmentation"
    return {key: value for key, value in item.items() if key != dropped}


def gathered_metrics(truth: Entry, detections: list[Entry]) -> dict[str, float]:
    """Return the metrics over the detections of all ranks, the same on each; rank 0 computes them."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return coco_metrics(truth, detections)
    is_first = distributed.get_rank() == 0
    parts: list[list[Entry]] | None = [[] for _ in range(distributed.get_world_size())] if is_first else None
    distributed.gather_object(detections, parts)
    everything = [item for part in parts or [] for item in part]
    shared: list[dict[str, float] | None] = [coco_metrics(truth, everything) if is_first else None]
    distributed.broadcast_object_list(shared)
    metrics = shared[0]
    assert metrics is not None
    return metrics
