"""The detector equals mmdet's published Mask R-CNN in its heads, and computes them in float32 under autocast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mmdet
import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.structures import InstanceData

from spectral_conditioning.tasks.coco.config import ModelConfig
from spectral_conditioning.tasks.coco.data import DetectionData
from spectral_conditioning.tasks.coco.detector import Float32HeadMaskRCNN, detector_settings, prepare_inputs

Build = Callable[..., Float32HeadMaskRCNN]
MMDET_CONFIG = Path(mmdet.__file__).parent / ".mim/configs/_base_/models/mask-rcnn_r50_fpn.py"


def batch(data: DetectionData, count: int = 2) -> dict[str, Any]:
    np.random.seed(0)
    return dict(data.collate([data.train[i] for i in range(count)]))


def losses(detector: Float32HeadMaskRCNN, data: DetectionData, *, autocast: bool) -> dict[str, torch.Tensor]:
    inputs, samples = prepare_inputs(detector, batch(data), training=True)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return detector.loss(inputs, samples)


def test_heads_equal_mmdet_s_published_mask_rcnn() -> None:
    published = Config.fromfile(MMDET_CONFIG).model
    own = ConfigDict(detector_settings(ModelConfig(), {}, width=384, classes=80))
    assert own.rpn_head == published.rpn_head
    assert own.roi_head == published.roi_head
    assert own.test_cfg == published.test_cfg
    assert own.train_cfg.rpn == published.train_cfg.rpn
    assert own.train_cfg.rpn_proposal == published.train_cfg.rpn_proposal
    assert own.train_cfg.rcnn == published.train_cfg.rcnn
    assert own.neck == {**published.neck, "in_channels": [384] * 4}
    inputs = published.data_preprocessor
    # Our pictures are already in RGB.
    assert inputs.pop("bgr_to_rgb")
    assert {key: list(v) if isinstance(v, tuple) else v for key, v in own.data_preprocessor.items()} == inputs


def test_heads_are_initialised_and_the_body_is_left_alone(detector: Build) -> None:
    built = detector(3, channels=64, fc_channels=64)
    assert built.rpn_head.rpn_cls.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert built.roi_head.bbox_head.fc_cls.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert built.roi_head.bbox_head.fc_reg.weight.std().item() == pytest.approx(0.001, rel=0.1)
    before = built.backbone.body.blocks[0].attn.qkv.weight.clone()
    built.backbone.init_weights()
    assert torch.equal(built.backbone.body.blocks[0].attn.qkv.weight, before)
    assert before.std().item() == pytest.approx(0.02, rel=0.1)


def test_box_loss_in_bfloat16_agrees_with_float32(detector: Build, shapes: DetectionData) -> None:
    """Only the backbone rounds: the box losses agree within a few of its units (2⁻⁸), and all of them are float32."""
    built = detector().eval()
    exact, mixed = (losses(built, shapes, autocast=on) for on in (False, True))
    for name in ("loss_bbox", "loss_rpn_bbox"):
        exact_loss, mixed_loss = (torch.as_tensor(sum(part[name]) if isinstance(part[name], list) else part[name])
                                  for part in (exact, mixed))  # fmt: skip
        assert mixed_loss.dtype == torch.float32
        assert mixed_loss.item() == pytest.approx(exact_loss.item(), rel=0.03)


def test_the_backbone_alone_runs_in_bfloat16(detector: Build, shapes: DetectionData) -> None:
    built = detector().eval()
    types: dict[str, torch.dtype] = {}
    built.backbone.body.blocks[0].attn.qkv.register_forward_hook(lambda _, __, out: types.update(backbone=out.dtype))
    built.neck.lateral_convs[0].register_forward_hook(lambda _, __, out: types.update(neck=out.dtype))
    built.roi_head.bbox_head.fc_cls.register_forward_hook(lambda _, __, out: types.update(box=out.dtype))
    inputs, samples = prepare_inputs(built, batch(shapes), training=False)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        predicted = built.predict(inputs, samples)
    assert types == {"backbone": torch.bfloat16, "neck": torch.float32, "box": torch.float32}
    assert all(item.pred_instances.bboxes.dtype == torch.float32 for item in predicted)


def test_double_precision_stays_double(detector: Build, shapes: DetectionData) -> None:
    built = detector().double()
    inputs, _ = prepare_inputs(built, batch(shapes), training=True)
    with torch.no_grad():
        assert all(level.dtype == torch.float64 for level in built.extract_feat(inputs.double()))


def test_a_batch_without_boxes_trains(detector: Build, shapes: DetectionData) -> None:
    built = detector()
    samples = batch(shapes)
    for item in samples["data_samples"]:
        item.gt_instances = item.gt_instances[torch.zeros(len(item.gt_instances), dtype=torch.bool)]
        item.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long), masks=item.gt_instances.masks
        )
    inputs, prepared = prepare_inputs(built, samples, training=True)
    parts = built.loss(inputs, prepared)
    total = sum(sum(part) if isinstance(part, list) else part for name, part in parts.items() if "loss" in name)
    total.backward()  # type: ignore[union-attr]
    assert torch.isfinite(torch.as_tensor(total))
    assert torch.as_tensor(parts["loss_bbox"]).item() == 0
    assert [name for name, parameter in built.named_parameters() if parameter.grad is None] == []


def test_pictures_are_padded_to_a_multiple_of_32(detector: Build, shapes: DetectionData) -> None:
    samples = batch(shapes)
    samples["inputs"] = [image[:, :50, :70] for image in samples["inputs"]]
    inputs, prepared = prepare_inputs(detector(), samples, training=False)
    assert tuple(inputs.shape) == (2, 3, 64, 96) or tuple(inputs.shape) == (2, 3, 64, 64)
    assert inputs.shape[2] % 32 == inputs.shape[3] % 32 == 0
    assert prepared[0].batch_input_shape == tuple(inputs.shape[2:])
    mean, std = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
    raw = samples["inputs"][0].float()
    expected = (raw - mean[:, None, None]) / std[:, None, None]
    assert torch.allclose(inputs[0, :, : raw.shape[1], : raw.shape[2]], expected, atol=1e-5)
