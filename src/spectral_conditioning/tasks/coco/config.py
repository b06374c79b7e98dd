"""Settings of object detection and everything that can be wrong with them (no detection library is imported here)."""

from __future__ import annotations

import dataclasses
from typing import Any

from spectral_conditioning.errors import closest
from spectral_conditioning.tasks.settings import LoaderConfig, loader_problems

SOURCES = ("coco", "shapes")
LEVELS = 4


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """Mask R-CNN over an XCiT.

    name: timm's name, which gives the code; a null below it leaves what the name stands for. taps: the four blocks whose
    features become the levels of stride 4, 8, 16 and 32. drop_path_rate: the same in every block. sync_batch_norm: batch
    statistics over all GPUs in the backbone; on the CPU plain batch normalisation.
    num_classes: must equal the number of categories in the data, null takes it from there.
    channels: width of the pyramid and of the RPN and mask heads; fc_channels: of the box head; mask_convs: layers before the
    mask is enlarged. anchor_scale: side of an anchor in strides (strides 4 to 64); anchor_ratios: height over width.
    rpn_samples, roi_samples: anchors and proposals per image that enter the loss. rpn_candidates: proposals per level before
    suppression in training, half of it in evaluation; rpn_proposals: after it. score_threshold, nms_threshold,
    max_detections: of the final detections.
    """

    name: str = "xcit_small_12_p16_384"
    patch_size: int | None = None
    embed_dim: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float | None = None
    eta: float | None = None
    drop_path_rate: float = 0.05
    taps: tuple[int, ...] = (3, 5, 7, 11)
    sync_batch_norm: bool = True
    num_classes: int | None = None
    channels: int = 256
    fc_channels: int = 1024
    mask_convs: int = 4
    anchor_scale: float = 8.0
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    rpn_samples: int = 256
    rpn_candidates: int = 2000
    rpn_proposals: int = 1000
    roi_samples: int = 512
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    max_detections: int = 100


@dataclasses.dataclass(kw_only=True)
class DataConfig(LoaderConfig):
    """Images with instance annotations, and their augmentation.

    source: `coco` (a folder in COCO's format) or `shapes` (generated, nothing is read). path: the folder; train_images,
    train_annotations, val_images, val_annotations: inside it. Training leaves out images with a side below `min_size` pixels
    and, unless `keep_empty`, those without an object to learn from; validation never leaves one out.
    augment: flips with probability `flip`; resizes the short side to one of `short_sides`, the long one to at most `max_side`;
    in half of the cases first resizes the short side to one of `crop_short_sides` and cuts out a part with sides in
    [crop_sizes[0], crop_sizes[1]] (as DETR). Otherwise, and in validation: short side `eval_short_side`, at most `max_side`.
    shapes_*: number of generated images, their side in pixels and the seed of the data set. pictures: validation images whose
    predictions are drawn after training.
    """

    source: str = "shapes"
    path: str | None = None
    train_images: str = "train2017"
    train_annotations: str = "annotations/instances_train2017.json"
    val_images: str = "val2017"
    val_annotations: str = "annotations/instances_val2017.json"
    min_size: int = 32
    keep_empty: bool = False
    augment: bool = True
    flip: float = 0.5
    short_sides: tuple[int, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    max_side: int = 1333
    crop_short_sides: tuple[int, ...] = (400, 500, 600)
    crop_sizes: tuple[int, int] = (384, 600)
    eval_short_side: int = 800
    shapes_train: int = 512
    shapes_val: int = 64
    shapes_size: int = 96
    shapes_seed: int = 0
    pictures: int = 4


def _at_least(section: str, settings: Any, names: tuple[str, ...], least: float) -> list[str]:
    found = []
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= least:
            found.append(f"{section}.{name} is {value}; it must be at least {least:g}")
    return found


def _within(name: str, value: float) -> list[str]:
    return [] if 0 <= value <= 1 else [f"{name} is {value}; it must lie in [0, 1]"]


def model_problems(model: ModelConfig) -> list[str]:
    """Name every model value that is out of range; whether timm knows the name is found when the model is built."""
    counts = ("embed_dim", "depth", "num_heads", "num_classes", "channels", "fc_channels", "rpn_samples", "roi_samples")
    found = _at_least("task.model", model, (*counts, "rpn_candidates", "rpn_proposals", "max_detections"), 1)
    found += _at_least("task.model", model, ("mask_convs",), 0)
    if not model.name.startswith("xcit_"):
        found.append(
            f"task.model.name is {model.name!r}; it must be one of timm's XCiT models, e.g. 'xcit_small_12_p16_384'"
        )
    if model.patch_size not in (None, 8, 16):
        found.append(f"task.model.patch_size is {model.patch_size}; allowed: 8, 16, null")
    if model.embed_dim is not None and model.num_heads is not None and model.embed_dim % max(1, model.num_heads):
        found.append(
            f"task.model.embed_dim is {model.embed_dim}, not a multiple of task.model.num_heads ({model.num_heads})"
        )
    taps = list(model.taps)
    if len(taps) != LEVELS or taps != sorted(set(taps)) or (taps and taps[0] < 0):
        found.append(f"task.model.taps is {taps}; it must be {LEVELS} increasing numbers of blocks, counted from 0")
    elif model.depth is not None and taps[-1] >= model.depth:
        found.append(f"task.model.taps ends at block {taps[-1]} but task.model.depth is {model.depth}")
    if not model.anchor_scale > 0:
        found.append(f"task.model.anchor_scale is {model.anchor_scale}; it must be above 0")
    if not model.anchor_ratios or not all(ratio > 0 for ratio in model.anchor_ratios):
        found.append(f"task.model.anchor_ratios is {list(model.anchor_ratios)}; it must be numbers above 0")
    for name in ("score_threshold", "nms_threshold"):
        found += _within(f"task.model.{name}", getattr(model, name))
    if not 0 <= model.drop_path_rate < 1:
        found.append(f"task.model.drop_path_rate is {model.drop_path_rate}; it must lie in [0, 1)")
    return found


def source_problems(data: DataConfig) -> list[str]:
    """Name what is wrong with where the images come from."""
    if data.source not in SOURCES:
        near = closest(data.source, SOURCES)
        hint = f"; closest {near!r}" if near else ""
        return [f"data.source is {data.source!r}; allowed: {', '.join(SOURCES)}{hint}"]
    if data.source == "coco":
        missing = "data.path is not given, but data.source 'coco' reads a folder; add data.path=..."
        return [] if data.path else [missing]
    return _at_least("data", data, ("shapes_train", "shapes_val"), 1) + _at_least("data", data, ("shapes_size",), 64)


def augmentation_problems(data: DataConfig) -> list[str]:
    """Name every size or probability that is out of range."""
    found = _within("data.flip", data.flip)
    found += _at_least("data", data, ("max_side", "eval_short_side", "min_size"), 1)
    found += _at_least("data", data, ("pictures",), 0)
    for name in ("short_sides", "crop_short_sides"):
        sides = list(getattr(data, name))
        if not sides or min(sides) < 1:
            found.append(f"data.{name} is {sides}; it must be a list of sides in pixels")
    low, high = data.crop_sizes
    if not 1 <= low <= high:
        found.append(f"data.crop_sizes is [{low}, {high}]; it must be two increasing sides in pixels")
    return found


def problems(config: Any) -> list[str]:
    """Name every value of the task's model and data that does not fit, without opening a file (`config` is a `RunConfig`)."""
    model: ModelConfig = config.task.model
    data: DataConfig = config.data
    return [*loader_problems(data), *model_problems(model), *source_problems(data), *augmentation_problems(data)]
