"""Build a timm model by name."""

from __future__ import annotations

from typing import Any

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
    "norm_layer",
)
NO_NORM = "torch.nn.Identity"


def timm_arguments(model: ModelConfig, *, outputs: int) -> dict[str, Any]:
    """Return the arguments of `timm.create_model` that build the network of these settings, a class by its dotted name."""
    given = {key: getattr(model, key) for key in ARCHITECTURE if getattr(model, key) is not None}
    # Some models are built without the argument, so naming the three channels they have anyway would fail.
    channels = {} if model.in_chans == 3 else {"in_chans": model.in_chans}
    if model.norm_layer == "none":
        given["norm_layer"] = NO_NORM
    return {"model_name": model.name, "num_classes": outputs, **channels, **given}


def build_classifier(model: ModelConfig, *, outputs: int) -> nn.Module:
    """Return timm's `model.name` with random weights, `outputs` logits and the arguments that are not null.

    Raises ConfigError for a name that timm does not know or an argument that this model does not take.
    """
    check_name(model.name)
    arguments = timm_arguments(model, outputs=outputs)
    shown = ", ".join(f"{key}={value}" for key, value in arguments.items() if key in ARCHITECTURE)
    if arguments.get("norm_layer") == NO_NORM:
        arguments["norm_layer"] = nn.Identity
    try:
        built: nn.Module = timm.create_model(pretrained=False, **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"timm cannot build {model.name!r} with {shown or 'its own settings'}: {error}; "
            f"set what it does not take to null under task.model"
        ) from error
    return built
