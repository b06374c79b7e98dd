"""Build a timm model by name."""

from __future__ import annotations

import timm
from torch import nn

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.imagenet.config import ModelConfig
from spectral_conditioning.tasks.imagenet.images import check_name

ARCHITECTURE = (
    "img_size",
    "patch_size",
    "embed_dim",
    "depth",
    "num_heads",
    "mlp_ratio",
    "class_token",
    "global_pool",
    "qkv_bias",
    "drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
)


def build_classifier(model: ModelConfig, *, outputs: int) -> nn.Module:
    """Return timm's `model.name` with random weights, `outputs` logits and the arguments that are not null.

    Raises ConfigError for a name that timm does not know or an argument that this model does not take.
    """
    check_name(model.name)
    given = {key: getattr(model, key) for key in ARCHITECTURE if getattr(model, key) is not None}
    shown = ", ".join(f"{key}={value}" for key, value in given.items())
    # Some models are built without the argument, so naming the three channels they have anyway would fail.
    channels = {} if model.in_chans == 3 else {"in_chans": model.in_chans}
    try:
        built: nn.Module = timm.create_model(model.name, pretrained=False, num_classes=outputs, **channels, **given)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"timm cannot build {model.name!r} with {shown or 'its own settings'}: {error}; "
            f"set what it does not take to null under task.model"
        ) from error
    return built
