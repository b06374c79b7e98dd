"""Settings of image classification and everything that can be wrong with them (no image library is imported here)."""

from __future__ import annotations

import dataclasses
from typing import Any

from spectral_conditioning.errors import closest
from spectral_conditioning.tasks.settings import LoaderConfig, loader_problems

SOURCES = ("digits", "images", "parquet", "hub", "shards")
NORM_LAYERS = ("layernorm", "rmsnorm", "none")
LOSSES = ("cross_entropy", "binary_cross_entropy")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "random")
ERASING_MODES = ("const", "rand", "pixel")
MIXING_MODES = ("batch", "pair", "elem")
POLICIES = ("rand", "augmix", "original", "originalr", "v0", "v0r", "3a")
DIGITS_SIZE = 8


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """A timm model by name; a value of null leaves what the name stands for.

    num_classes: must equal the number of classes in the data, null takes it from there. img_size, patch_size, embed_dim, depth,
    num_heads, mlp_ratio, class_token, global_pool, qkv_bias, drop_rate, attn_drop_rate, drop_path_rate, norm_layer: timm's
    arguments of these names, for models that have them; norm_layer "none" leaves every normalisation out. loss, smoothing:
    training loss and label smoothing in [0, 1).
    """

    name: str = "vit_base_patch16_224"
    num_classes: int | None = None
    in_chans: int = 3
    img_size: int | None = None
    patch_size: int | None = None
    embed_dim: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float | None = None
    class_token: bool | None = None
    global_pool: str | None = None
    qkv_bias: bool | None = None
    drop_rate: float | None = None
    attn_drop_rate: float | None = None
    drop_path_rate: float | None = None
    norm_layer: str | None = None
    loss: str = "cross_entropy"
    smoothing: float = 0.0


@dataclasses.dataclass(kw_only=True)
class DataConfig(LoaderConfig):
    """Images, their augmentation and the mixing of batches.

    source: `digits` (scikit-learn's, built in), `images` (a folder or zip of <split>/<class>/<image>), `parquet` (local files),
    `hub` (a Hugging Face data set), `shards` (tar files of <key>.jpg and <key>.cls). path: where; for `hub` the name.
    train_split, val_split: name of the top folder, of the split, or a part of the file name. image_column, label_column: of
    tables. crop_pct, eval_interpolation: null takes what timm states for the model.

    augment: false resizes and crops the centre in training too, and the settings down to `erasing_count` do nothing. crop_scale,
    crop_ratio: area and aspect of the random crop. policy: timm's RandAugment or AutoAugment string; jitter: colour, used
    by timm only without a policy. erasing: probability. repeats: augmented copies of an image in a batch (repeated augmentation).
    mixup, cutmix: Beta parameters, 0 for off; mix_prob: share of batches that are mixed; mix_switch: share of cutmix where both
    are on.
    """

    source: str = "digits"
    path: str | None = None
    train_split: str = "train"
    val_split: str = "val"
    image_column: str = "image"
    label_column: str = "label"
    crop_pct: float | None = None
    eval_interpolation: str | None = None
    augment: bool = False
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 1.3333333333333333)
    interpolation: str = "bicubic"
    flip: float = 0.5
    policy: str | None = None
    jitter: float = 0.0
    erasing: float = 0.0
    erasing_mode: str = "pixel"
    erasing_count: int = 1
    repeats: int = 1
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_prob: float = 1.0
    mix_switch: float = 0.5
    mix_mode: str = "batch"


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> list[str]:
    if value in allowed:
        return []
    near = closest(value, allowed)
    return [f"{name} is {value!r}; allowed: {', '.join(allowed)}" + (f"; closest {near!r}" if near else "")]


def _within(name: str, value: float | None, low: float, high: float, *, open_end: bool = False) -> list[str]:
    if value is None or (low <= value < high if open_end else low <= value <= high):
        return []
    return [f"{name} is {value}; it must lie in [{low:g}, {high:g}{')' if open_end else ']'}"]


def _interval(name: str, value: tuple[float, float]) -> list[str]:
    low, high = value
    return [] if 0 < low <= high else [f"{name} is [{low:g}, {high:g}]; it must be two increasing numbers above 0"]


def model_problems(model: ModelConfig) -> list[str]:
    """Name every model value that is out of range; whether timm knows the name is found when the model is built."""
    found = _choice("task.model.loss", model.loss, LOSSES)
    if model.norm_layer is not None:
        found += _choice("task.model.norm_layer", model.norm_layer, NORM_LAYERS)
    for name in ("smoothing", "drop_rate", "attn_drop_rate", "drop_path_rate"):
        found += _within(f"task.model.{name}", getattr(model, name), 0, 1, open_end=True)
    for name in ("num_classes", "in_chans", "img_size", "patch_size", "embed_dim", "depth", "num_heads"):
        value = getattr(model, name)
        if value is not None and value < 1:
            found.append(f"task.model.{name} is {value}; it must be at least 1")
    for whole, part in (("embed_dim", "num_heads"), ("img_size", "patch_size")):
        size, divisor = getattr(model, whole), getattr(model, part)
        if size is not None and divisor is not None and divisor >= 1 and size % divisor:
            found.append(
                f"task.model.{whole} is {size}, not a multiple of task.model.{part} ({divisor}); choose one that is"
            )
    return found


def augmentation_problems(data: DataConfig) -> list[str]:
    """Name every augmentation or mixing value that is out of range."""
    found = _interval("data.crop_scale", data.crop_scale) + _interval("data.crop_ratio", data.crop_ratio)
    found += _choice("data.interpolation", data.interpolation, INTERPOLATIONS)
    found += _choice("data.erasing_mode", data.erasing_mode, ERASING_MODES)
    found += _choice("data.mix_mode", data.mix_mode, MIXING_MODES)
    if data.eval_interpolation is not None:
        found += _choice("data.eval_interpolation", data.eval_interpolation, INTERPOLATIONS[:-1])
    for name in ("flip", "erasing", "mix_prob", "mix_switch"):
        found += _within(f"data.{name}", getattr(data, name), 0, 1)
    for name in ("jitter", "mixup", "cutmix"):
        found += _within(f"data.{name}", getattr(data, name), 0, float("inf"), open_end=True)
    for name in ("repeats", "erasing_count"):
        if getattr(data, name) < 1:
            found.append(f"data.{name} is {getattr(data, name)}; it must be at least 1")
    if data.crop_pct is not None and not 0 < data.crop_pct <= 1:
        found.append(f"data.crop_pct is {data.crop_pct}; it must lie in (0, 1], or null for the model's own")
    if data.policy is not None and data.policy.split("-")[0] not in POLICIES:
        found.append(
            f"data.policy is {data.policy!r}; it must start with one of {', '.join(POLICIES)}, "
            f"e.g. 'rand-m9-mstd0.5-inc1'"
        )
    return found


def source_problems(model: ModelConfig, data: DataConfig) -> list[str]:
    """Name what does not fit between the source of the images and the model's input."""
    found = _choice("data.source", data.source, SOURCES)
    if data.source == "digits":
        if data.path is not None:
            found.append(
                f"data.path is {data.path!r}, but data.source 'digits' reads no path; "
                "choose data=images or experiment=imagenet/flowers, or leave it out"
            )
        if data.augment or data.repeats > 1:
            found.append(
                "data.source 'digits' is served as it is: set data.augment to false and data.repeats to 1 (mixup and cutmix work)"
            )
        if (model.in_chans, model.img_size) != (1, DIGITS_SIZE):
            found.append(
                f"data.source 'digits' needs task.model.in_chans 1 and task.model.img_size {DIGITS_SIZE}; "
                f"found {model.in_chans} and {model.img_size}. Choose task=vit_digits"
            )
    elif data.source in SOURCES:
        if not data.path:
            found.append(f"data.path is not given, but data.source {data.source!r} reads from it; add data.path=...")
        if data.image_column == data.label_column:
            found.append(
                f"data.image_column and data.label_column are both {data.image_column!r}; a table needs two columns"
            )
        if model.in_chans != 3:
            found.append(
                f"task.model.in_chans is {model.in_chans}; data.source {data.source!r} gives colour images: set it to 3"
            )
        if data.train_split == data.val_split:
            found.append(f"data.train_split and data.val_split are both {data.val_split!r}; set two")
    return found


def problems(config: Any) -> list[str]:
    """Name every value of the task's model and data that does not fit, without opening a file (`config` is a `RunConfig`)."""
    model: ModelConfig = config.task.model
    data: DataConfig = config.data
    return [
        *loader_problems(data),
        *model_problems(model),
        *augmentation_problems(data),
        *source_problems(model, data),
    ]
