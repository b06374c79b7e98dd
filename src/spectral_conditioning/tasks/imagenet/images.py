"""From an encoded image to a tensor: decoding, conversion to colour and timm's own transforms."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import timm
from PIL import Image, UnidentifiedImageError
from timm.data import create_transform, resolve_data_config
from torch import Tensor
from torch.utils.data import Dataset

from spectral_conditioning.errors import ConfigError, DataError, closest
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.sources import ImageSource

Transform = Callable[[Image.Image], Tensor]


def decode(encoded: bytes, *, name: str, origin: str) -> Image.Image:
    """Decode an image completely and convert it to RGB; grey, palette and CMYK are converted, alpha is dropped (as timm does).

    Raises DataError that names the image when it is damaged, cut short or no image at all.
    """
    try:
        with warnings.catch_warnings():
            # Damaged EXIF blocks, of which ImageNet has some, do not touch the pixels.
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
            image: Image.Image = Image.open(io.BytesIO(encoded))
            image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not an image that can be identified" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(f"image {name} in {origin} cannot be decoded: {reason}; replace or remove it") from error
    if image.mode.startswith("I;16") or image.mode == "I":
        # PIL clips 16-bit grey at 255; scale it instead.
        image = image.point(lambda value: value / 257).convert("L")
    return image.convert("RGB")


class ImageDataset(Dataset[tuple[Tensor, int]]):
    """The images of a source under a transform.

    `deterministic` says that the transform draws no random number; otherwise it draws from the global generators.
    """

    def __init__(self, source: ImageSource, transform: Transform, *, deterministic: bool) -> None:
        self.source, self.transform, self.deterministic = source, transform, deterministic

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            image = decode(self.source.read(index), name=self.source.name(index), origin=self.source.origin)
        except DataError as error:
            raise DataError(
                f"{error}. `spectral prepare imagenet {self.source.origin}` lists every such image"
            ) from error
        return self.transform(image), int(self.source.labels[index])


def check_name(name: str) -> None:
    """Raise ConfigError with the nearest name when timm has no model called `name`."""
    if not timm.is_model(name):
        near = closest(name, timm.list_models(), likeness=0)
        raise ConfigError(
            f"task.model.name is {name!r}, which timm {timm.__version__} does not know; closest {near!r} "
            f"(timm.list_models() names them all)"
        )


def input_config(model: ModelConfig, data: DataConfig) -> dict[str, Any]:
    """Return timm's own evaluation settings of a model: input_size, interpolation, mean, std, crop_pct, crop_mode.

    What the configuration states (img_size, crop_pct, eval_interpolation) replaces timm's value.
    """
    check_name(model.name)
    pretrained = timm.get_pretrained_cfg(model.name)
    arguments: dict[str, Any] = {"crop_pct": data.crop_pct, "interpolation": data.eval_interpolation}
    if model.img_size is not None:
        arguments["input_size"] = (model.in_chans, model.img_size, model.img_size)
    resolved: dict[str, Any] = resolve_data_config(
        arguments, pretrained_cfg=pretrained.to_dict() if pretrained else None
    )
    return resolved


def evaluation_transform(inputs: dict[str, Any]) -> Transform:
    """Return timm's evaluation transform for settings from `input_config`."""
    transform: Transform = create_transform(**inputs, is_training=False)
    return transform


def training_transform(inputs: dict[str, Any], data: DataConfig) -> Transform:
    """Return timm's training transform: random crop, flip, RandAugment or jitter, normalisation, random erasing.

    Without `data.augment` the training images are treated as the evaluation ones are. Raises ConfigError for a policy that timm
    cannot read.
    """
    if not data.augment:
        return evaluation_transform(inputs)
    try:
        transform: Transform = create_transform(
            input_size=inputs["input_size"],
            is_training=True,
            scale=tuple(data.crop_scale),
            ratio=tuple(data.crop_ratio),
            hflip=data.flip,
            color_jitter=data.jitter or None,
            auto_augment=data.policy,
            interpolation=data.interpolation,
            mean=inputs["mean"],
            std=inputs["std"],
            re_prob=data.erasing,
            re_mode=data.erasing_mode,
            re_count=data.erasing_count,
        )
    except (AssertionError, ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError(
            f"timm cannot read data.policy {data.policy!r}: {error!r}; e.g. 'rand-m9-mstd0.5-inc1'"
        ) from error
    return transform


def describe_inputs(inputs: dict[str, Any]) -> str:
    """Say in one line what evaluation does to an image, for the log."""
    size = "×".join(str(length) for length in inputs["input_size"][1:])
    shown = ", ".join(f"{key} {inputs[key]}" for key in ("crop_pct", "crop_mode", "interpolation", "mean", "std"))
    return f"evaluated at {size} ({shown})"
