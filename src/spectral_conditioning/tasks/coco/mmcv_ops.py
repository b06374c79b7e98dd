"""The compiled operators of mmcv that Mask R-CNN needs, by torchvision's kernels.

The signatures are those of mmcv 2.1's extension, which writes into tensors it is given. Every other operator of mmcv is there by
name, as mmcv checks at import, and raises when it is called.
"""

# R boxes, N images, C channels, H height, W width, h and w of a pooled box.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torchvision.ops  # registers torch.ops.torchvision
from torch import Tensor

SERVED = ("nms", "roi_align_forward", "roi_align_backward")


def nms(boxes_R4: Tensor, scores_R: Tensor, *, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices that non-maximum suppression keeps, best first; a box is x2 − x1 + offset wide (offset 0 or 1)."""
    if offset:
        boxes_R4 = boxes_R4 + boxes_R4.new_tensor([0, 0, offset, offset])
    kept: Tensor = torchvision.ops.nms(boxes_R4, scores_R, iou_threshold)
    return kept


def _require_average(pool_mode: int) -> None:
    if pool_mode != 1:
        raise NotImplementedError(
            "mmcv's roi_align with pool_mode 'max' is not served here; use 'avg' or install a compiled mmcv"
        )


def roi_align_forward(
    input_NCHW: Tensor,
    rois_R5: Tensor,
    output_RChw: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill `output_RChw` with the averages over each box (He et al. 2017); a RoI is (image, x1, y1, x2, y2)."""
    _require_average(pool_mode)
    # The operator itself: torchvision's Python function has a slow path of its own under deterministic algorithms.
    output_RChw.copy_(
        torch.ops.torchvision.roi_align(
            input_NCHW, rois_R5, spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
        )
    )


def roi_align_backward(
    grad_output_RChw: Tensor,
    rois_R5: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input_NCHW: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill `grad_input_NCHW` with the gradient with respect to the features."""
    _require_average(pool_mode)
    grad_input_NCHW.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad_output_RChw,
            rois_R5,
            spatial_scale,
            aligned_height,
            aligned_width,
            *grad_input_NCHW.shape,
            sampling_ratio,
            aligned,
        )
    )


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Stand in for an operator that is not served. Special names are left to Python."""
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"mmcv's compiled operator {name!r} is not served by torchvision ({', '.join(SERVED)} are); "
            f"install a compiled mmcv 2.1"
        )

    return absent
