"""Training and validation samples: pictures through mmdet's own transforms."""

# H, W height and width; pictures are (H, W, 3) in RGB.

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmcv.transforms import Compose
from mmdet.utils import register_all_modules
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope
from numpy.typing import NDArray
from torch.utils.data import Dataset

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.coco.annotations import Entry, Split, unusable
from spectral_conditioning.tasks.coco.config import DataConfig

Picture = NDArray[np.uint8]
Sample = dict[str, Any]
# mmdet's transforms under their names; without its scope mmengine finds mmcv's of the same name.
SCOPE = "mmdet"
register_all_modules(init_default_scope=False)
collate = pseudo_collate
NO_LIMIT = 100_000


def read_picture(path: Path, image: Entry) -> Picture:
    """Decode an image file as RGB. Raises DataError when it is damaged or of another size than its annotations say."""
    try:
        content = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise DataError(f"cannot read the image {path}: {error.strerror}") from error
    decoded = cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None
    if decoded is None:
        raise DataError(f"the image {path} cannot be decoded; copy or download it again")
    if decoded.shape[:2] != (image["height"], image["width"]):
        height, width = decoded.shape[:2]
        raise DataError(
            f"the image {path} has {width}x{height} pixels, its annotations say {image['width']}x{image['height']}"
        )
    return np.ascontiguousarray(decoded[:, :, ::-1])


def training_transforms(data: DataConfig) -> list[dict[str, Any]]:
    """Return flips and the multi-scale augmentation of DETR (Carion et al. 2020) in mmdet's terms."""
    resize = _random_resize(data.short_sides, data.max_side)
    low, high = data.crop_sizes
    crop = {
        "type": "RandomCrop",
        "crop_type": "absolute_range",
        "crop_size": (low, high),
        "allow_negative_crop": True,
    }
    branches = [[resize], [_random_resize(data.crop_short_sides, NO_LIMIT), crop, resize]]
    load = {"type": "LoadAnnotations", "with_bbox": True, "with_mask": True}
    if not data.augment:
        return [load, *validation_transforms(data)]
    flip = {"type": "RandomFlip", "prob": data.flip}
    return [load, flip, {"type": "RandomChoice", "transforms": branches}, {"type": "PackDetInputs"}]


def _random_resize(short_sides: Sequence[int], long_side: int) -> dict[str, Any]:
    scales = [(side, max(side, long_side)) for side in short_sides]
    return {"type": "RandomChoiceResize", "scales": scales, "keep_ratio": True}


def validation_transforms(data: DataConfig) -> list[dict[str, Any]]:
    """Return the one resize of validation; ground truth is not needed in it."""
    scale = (data.eval_short_side, max(data.eval_short_side, data.max_side))
    return [{"type": "Resize", "scale": scale, "keep_ratio": True}, {"type": "PackDetInputs"}]


class InstanceDataset(Dataset[Sample]):
    """Pictures with their objects as mmdet's samples {"inputs": (3, H, W) uint8, "data_samples": DetDataSample}.

    read: picture number i of the split. positions: the images to serve. Draws come from numpy's global generator. The entries
    are kept as bytes: processes that load share them, which a list of dictionaries defeats by its reference counts.
    """

    def __init__(
        self,
        split: Split,
        read: Callable[[int], Picture],
        transforms: list[dict[str, Any]],
        *,
        positions: Sequence[int],
        training: bool,
        deterministic: bool,
    ) -> None:
        self.read, self.training, self.deterministic = read, training, deterministic
        self.origin = split.origin
        labels = {category["id"]: label for label, category in enumerate(split.categories)}
        packed = [pickle.dumps((i, split.images[i], self._objects(split, i, labels))) for i in positions]
        self._ends = np.cumsum([len(item) for item in packed])
        self._bytes = np.frombuffer(b"".join(packed), np.uint8)
        with DefaultScope.overwrite_default_scope(SCOPE):
            self.transforms = Compose(transforms)

    def _objects(self, split: Split, position: int, labels: dict[int, int]) -> list[Entry]:
        image = split.images[position]
        if not self.training:
            return []
        objects = []
        for item in split.objects[image["id"]]:
            reason = unusable(item, image)
            if reason and not item["iscrowd"]:
                continue
            x, y, width, height = item["bbox"]
            objects.append(
                {
                    "bbox": [x, y, x + width, y + height],
                    "bbox_label": labels[item["category_id"]],
                    "mask": item["segmentation"],
                    "ignore_flag": int(item["iscrowd"]),
                }
            )
        return objects

    def __len__(self) -> int:
        return len(self._ends)

    def record(self, index: int) -> tuple[int, Entry, list[Entry]]:
        """Return position in the split, image entry and objects of a sample."""
        start = 0 if index == 0 else self._ends[index - 1]
        position, image, objects = pickle.loads(self._bytes[start : self._ends[index]].tobytes())
        return position, image, objects

    def __getitem__(self, index: int) -> Sample:
        position, image, objects = self.record(index)
        picture = self.read(position)
        size = picture.shape[:2]
        results = {
            "img": picture,
            "img_id": image["id"],
            "img_path": image["file_name"],
            "height": size[0],
            "width": size[1],
            "ori_shape": size,
            "img_shape": size,
            "instances": objects,
        }
        sample: Sample = self.transforms(results)
        return sample
