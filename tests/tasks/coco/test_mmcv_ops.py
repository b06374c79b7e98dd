"""The operators served to mmcv equal torchvision's and their own finite differences; a compiled mmcv wins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision

from spectral_conditioning.tasks.coco import mmcv_ops  # isort: split

from mmcv.ops import RoIAlign, batched_nms, nms, roi_align, roi_pool
from mmdet.structures.mask import BitmapMasks

FAKE = "MADE_BY = 'a compiled mmcv'\n"


def random_boxes(count: int, *, size: float = 30.0) -> torch.Tensor:
    corners = torch.rand(count, 2, dtype=torch.float64) * size
    return torch.cat([corners, corners + 1 + torch.rand(count, 2, dtype=torch.float64) * size / 2], dim=1)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align_equals_torchvision(aligned: bool, ratio: int) -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 3, 20, 24, dtype=torch.float64)
    rois = torch.cat([torch.tensor([[0.0], [1], [1], [0]], dtype=torch.float64), random_boxes(4)], dim=1)
    own = roi_align(features, rois, (5, 7), 0.5, ratio, "avg", aligned)
    expected = torchvision.ops.roi_align(features, rois, (5, 7), 0.5, ratio, aligned)
    assert torch.equal(own, expected)
    assert torch.equal(RoIAlign((5, 7), 0.5, ratio, "avg", aligned)(features, rois), expected)


def test_roi_align_gradient_equals_finite_differences() -> None:
    torch.manual_seed(0)
    features = torch.randn(1, 2, 8, 9, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([[0, 0.3, 1.2, 5.1, 6.4], [0, 2.0, 0.0, 8.0, 7.5]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: roi_align(x, rois, (3, 2), 0.7, 0, "avg", True), (features,))


def test_nms_keeps_what_the_definition_keeps() -> None:
    """Greedy suppression written out, with widths of x2 - x1 + offset."""
    torch.manual_seed(0)
    boxes, scores = random_boxes(60), torch.rand(60, dtype=torch.float64)
    for offset in (0, 1):
        kept: list[int] = []
        for i in scores.argsort(descending=True).tolist():
            far = boxes[:, 2:] + offset
            area = (far - boxes[:, :2]).prod(dim=1)
            overlaps = []
            for j in kept:
                sides = torch.minimum(far[i], far[j]) - torch.maximum(boxes[i, :2], boxes[j, :2])
                shared = sides.clamp(min=0).prod()
                overlaps.append(shared / (area[i] + area[j] - shared))
            if all(overlap <= 0.4 for overlap in overlaps):
                kept.append(i)
        found, indices = nms(boxes, scores, 0.4, offset=offset)
        assert indices.tolist() == kept
        assert torch.equal(found[:, 4], scores[indices])


def test_boxes_of_different_classes_do_not_suppress_each_other() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10]])
    _, kept = batched_nms(boxes, torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 1, 0]), {"iou_threshold": 0.5})
    assert kept.tolist() == [0, 1]


def test_mask_targets_are_crops_of_the_mask() -> None:
    mask = torch.zeros(1, 16, 16, dtype=torch.uint8)
    mask[0, 4:12, 4:8] = 1
    cropped = BitmapMasks(mask.numpy(), 16, 16).crop_and_resize(
        torch.tensor([[4.0, 4, 12, 12]]).numpy(), (8, 8), torch.tensor([0]).numpy(), "cpu"
    )
    assert cropped.masks[0, :, :4].all()
    assert not cropped.masks[0, :, 4:].any()


def test_other_operators_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="roi_pool_forward"):
        roi_pool(torch.zeros(1, 1, 4, 4), torch.tensor([[0.0, 0, 0, 2, 2]]), 2)
    with pytest.raises(NotImplementedError, match="'max'"):
        roi_align(torch.zeros(1, 1, 4, 4), torch.tensor([[0.0, 0, 0, 2, 2]]), 2, 1.0, 0, "max", True)
    assert set(mmcv_ops.SERVED) == {"nms", "roi_align_forward", "roi_align_backward"}


def test_other_tasks_do_not_import_detection_and_a_compiled_mmcv_wins(tmp_path: Path) -> None:
    (tmp_path / "mmcv").mkdir()
    (tmp_path / "mmcv" / "__init__.py").write_text("")
    (tmp_path / "mmcv" / "_ext.py").write_text(FAKE)
    program = (
        "import sys; import spectral_conditioning.tasks.imagenet.task\n"
        "heavy = {'mmcv', 'mmdet', 'mmengine', 'cv2', 'pycocotools'}\n"
        "assert not heavy & set(sys.modules)\n"
        "assert 'OpsFinder' not in [type(finder).__name__ for finder in sys.meta_path]\n"
        "import spectral_conditioning.tasks.coco.config\n"
        "assert not heavy & set(sys.modules)\n"
        "assert 'OpsFinder' in [type(finder).__name__ for finder in sys.meta_path]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import mmcv._ext; print(mmcv._ext.MADE_BY)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "a compiled mmcv", ran.stderr
