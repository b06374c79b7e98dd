"""Mask R-CNN from values: mmdet's detector around the XCiT backbone (He et al. 2017; heads as in XCiT's detection code)."""

# B images, C channels, H, W height and width.

from __future__ import annotations

from typing import Any

import torch
from mmdet.models.detectors import MaskRCNN
from mmdet.registry import MODELS
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope
from timm.models.xcit import Xcit
from torch import Tensor

from spectral_conditioning.tasks.coco.backbone import XcitPyramid
from spectral_conditioning.tasks.coco.config import ModelConfig
from spectral_conditioning.tasks.coco.pipeline import SCOPE

LEVEL_STRIDES = (4, 8, 16, 32)
ANCHOR_STRIDES = (*LEVEL_STRIDES, 64)
# ImageNet's mean and standard deviation of 8-bit RGB.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
BOX_BINS, MASK_BINS = 7, 14
PAD_TO = 32

Features = tuple[Tensor, ...]


@MODELS.register_module()
class Float32HeadMaskRCNN(MaskRCNN):  # type: ignore[misc]
    """Mask R-CNN whose backbone alone runs under the caller's autocast.

    Anchors and proposals take the type of the features, and box corners in bfloat16 are multiples of 2 or 4 pixels: with the
    whole detector under autocast the box loss came out twice too large. Features are brought back to the type of the weights and
    everything after the backbone is computed in that.
    """

    def extract_feat(self, batch_inputs: Tensor | Features) -> Features:
        """Return the levels of the feature pyramid; levels already extracted pass through."""
        if isinstance(batch_inputs, tuple):
            return batch_inputs
        levels = self.backbone(batch_inputs)
        weight = next(self.neck.parameters())
        with torch.autocast(weight.device.type, enabled=False):
            features: Features = self.neck(tuple(level.to(weight.dtype) for level in levels))
        return features

    def loss(self, batch_inputs: Tensor, batch_data_samples: list[Any]) -> dict[str, Any]:
        features = self.extract_feat(batch_inputs)
        with torch.autocast(features[0].device.type, enabled=False):
            losses: dict[str, Any] = super().loss(features, batch_data_samples)
        return losses

    def predict(self, batch_inputs: Tensor, batch_data_samples: list[Any], rescale: bool = True) -> list[Any]:
        features = self.extract_feat(batch_inputs)
        with torch.autocast(features[0].device.type, enabled=False):
            predicted: list[Any] = super().predict(features, batch_data_samples, rescale=rescale)
        return predicted

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the backbone: the heads work on as many boxes as an image happens to have."""
        self.backbone.compile(*args, dynamic=True, **kwargs)

    def _dump_init_info(self) -> None:
        """Keep mmengine from printing every parameter."""


def detector_settings(model: ModelConfig, backbone: dict[str, Any], *, width: int, classes: int) -> dict[str, Any]:
    """Return the detector in mmdet's configuration language. width: channels of the backbone's levels."""
    return {
        "type": "Float32HeadMaskRCNN",
        "data_preprocessor": {
            "type": "DetDataPreprocessor",
            "mean": MEAN,
            "std": STD,
            "pad_mask": True,
            "pad_size_divisor": PAD_TO,
        },
        "backbone": backbone,
        "neck": {
            "type": "FPN",
            "in_channels": [width] * len(LEVEL_STRIDES),
            "out_channels": model.channels,
            "num_outs": len(ANCHOR_STRIDES),
        },
        "rpn_head": _rpn_head(model),
        "roi_head": _roi_head(model, classes),
        "train_cfg": _training(model),
        "test_cfg": _testing(model),
    }


def _box_coder(*stds: float) -> dict[str, Any]:
    return {"type": "DeltaXYWHBBoxCoder", "target_means": [0.0] * 4, "target_stds": list(stds)}


def _rpn_head(model: ModelConfig) -> dict[str, Any]:
    return {
        "type": "RPNHead",
        "in_channels": model.channels,
        "feat_channels": model.channels,
        "anchor_generator": {
            "type": "AnchorGenerator",
            "scales": [model.anchor_scale],
            "ratios": list(model.anchor_ratios),
            "strides": list(ANCHOR_STRIDES),
        },
        "bbox_coder": _box_coder(1.0, 1.0, 1.0, 1.0),
        "loss_cls": {"type": "CrossEntropyLoss", "use_sigmoid": True, "loss_weight": 1.0},
        "loss_bbox": {"type": "L1Loss", "loss_weight": 1.0},
    }


def _extractor(model: ModelConfig, bins: int) -> dict[str, Any]:
    return {
        "type": "SingleRoIExtractor",
        "roi_layer": {"type": "RoIAlign", "output_size": bins, "sampling_ratio": 0},
        "out_channels": model.channels,
        "featmap_strides": list(LEVEL_STRIDES),
    }


def _roi_head(model: ModelConfig, classes: int) -> dict[str, Any]:
    return {
        "type": "StandardRoIHead",
        "bbox_roi_extractor": _extractor(model, BOX_BINS),
        "bbox_head": {
            "type": "Shared2FCBBoxHead",
            "in_channels": model.channels,
            "fc_out_channels": model.fc_channels,
            "roi_feat_size": BOX_BINS,
            "num_classes": classes,
            "bbox_coder": _box_coder(0.1, 0.1, 0.2, 0.2),
            "reg_class_agnostic": False,
            "loss_cls": {"type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": 1.0},
            "loss_bbox": {"type": "L1Loss", "loss_weight": 1.0},
        },
        "mask_roi_extractor": _extractor(model, MASK_BINS),
        "mask_head": {
            "type": "FCNMaskHead",
            "num_convs": model.mask_convs,
            "in_channels": model.channels,
            "conv_out_channels": model.channels,
            "num_classes": classes,
            "loss_mask": {"type": "CrossEntropyLoss", "use_mask": True, "loss_weight": 1.0},
        },
    }


def _assigner(positive: float, negative: float, least: float) -> dict[str, Any]:
    return {
        "type": "MaxIoUAssigner",
        "pos_iou_thr": positive,
        "neg_iou_thr": negative,
        "min_pos_iou": least,
        "match_low_quality": True,
        "ignore_iof_thr": -1,
    }


def _sampler(count: int, positive: float, *, add_truth: bool) -> dict[str, Any]:
    return {
        "type": "RandomSampler",
        "num": count,
        "pos_fraction": positive,
        "neg_pos_ub": -1,
        "add_gt_as_proposals": add_truth,
    }


def _proposals(candidates: int, kept: int) -> dict[str, Any]:
    return {
        "nms_pre": candidates,
        "max_per_img": kept,
        "nms": {"type": "nms", "iou_threshold": 0.7},
        "min_bbox_size": 0,
    }


def _training(model: ModelConfig) -> dict[str, Any]:
    return {
        "rpn": {
            "assigner": _assigner(0.7, 0.3, 0.3),
            "sampler": _sampler(model.rpn_samples, 0.5, add_truth=False),
            "allowed_border": -1,
            "pos_weight": -1,
            "debug": False,
        },
        "rpn_proposal": _proposals(model.rpn_candidates, model.rpn_proposals),
        "rcnn": {
            "assigner": _assigner(0.5, 0.5, 0.5),
            "sampler": _sampler(model.roi_samples, 0.25, add_truth=True),
            "mask_size": 2 * MASK_BINS,
            "pos_weight": -1,
            "debug": False,
        },
    }


def _testing(model: ModelConfig) -> dict[str, Any]:
    return {
        "rpn": _proposals(max(1, model.rpn_candidates // 2), model.rpn_proposals),
        "rcnn": {
            "score_thr": model.score_threshold,
            "nms": {"type": "nms", "iou_threshold": model.nms_threshold},
            "max_per_img": model.max_detections,
            "mask_thr_binary": 0.5,
        },
    }


def build_detector(model: ModelConfig, body: Xcit, *, classes: int) -> Float32HeadMaskRCNN:
    """Return the detector around an XCiT. The heads are initialised as mmdet does it, the body is left as it is."""
    backbone = {"type": XcitPyramid.__name__, "body": body, "taps": tuple(model.taps)}
    settings = detector_settings(model, backbone, width=body.embed_dim, classes=classes)
    with DefaultScope.overwrite_default_scope(SCOPE):
        detector: Float32HeadMaskRCNN = MODELS.build(ConfigDict(settings))
        # The Runner of mmengine calls this; without it the heads keep PyTorch's initialisation.
        detector.init_weights()
    return detector


def prepare_inputs(
    detector: Float32HeadMaskRCNN, samples: dict[str, Any], *, training: bool
) -> tuple[Tensor, list[Any]]:
    """Return normalised images padded to a multiple of 32, (B, 3, H, W), and their samples on the detector's device."""
    preprocessor = detector.data_preprocessor
    # mmengine's module keeps its device in an attribute that moving a parent module does not reach.
    preprocessor.to(next(detector.parameters()).device)
    prepared = preprocessor(samples, training)
    return prepared["inputs"], prepared["data_samples"]
