"""Start from weights that were trained elsewhere: timm's conversion of foreign checkpoints, then a strict load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from timm.models import load_state_dict
from torch import Tensor, nn

from spectral_conditioning.errors import DataError

Filter = Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]]
SHOWN = 5


def checkpoint_filter(model: nn.Module) -> Filter | None:
    """Return the function by which timm renames and resizes checkpoints of this model's family, None where it has none.

    timm runs it only on the way of its own downloads. Without it an original Swin checkpoint, whose stages are numbered
    otherwise, loads its downsampling into the wrong stage (timm issue 2150).
    """
    return getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a .pth or .safetensors file; of a training checkpoint, the raw weights and not their average."""
    if not path.is_file():
        raise DataError(f"init.weights {path} does not exist; give a .pth or .safetensors file")
    try:
        weights = load_state_dict(str(path), use_ema=False)
    except (
        RuntimeError,
        UnpicklingError,
        SafetensorError,
        OSError,
        EOFError,
        LookupError,
        ValueError,
        AttributeError,
    ) as error:
        reason = str(error).partition("\n")[0] or "it is empty"
        if "weights_only" in reason:
            reason = (
                "it holds objects beside its tensors, as mmengine's checkpoints do. If you trust it, save the tensors alone: "
                f"torch.save(torch.load('{path}', weights_only=False)['state_dict'], 'weights.pth')"
            )
        raise DataError(f"init.weights {path} cannot be read as weights: {reason}") from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise DataError(
            f"init.weights {path} holds no state dict of tensors, neither by itself nor under 'model' or 'state_dict'"
        )
    return weights


def mismatches(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Name tensors that are missing, that the model does not have, or whose shapes differ."""
    groups = {
        "missing": sorted(set(wanted) - set(found)),
        "not in the model": sorted(set(found) - set(wanted)),
        "of another shape": [
            f"{name} {tuple(found[name].shape)} for {tuple(wanted[name].shape)}"
            for name in wanted
            if name in found and found[name].shape != wanted[name].shape
        ],
    }
    return [
        f"{len(names)} {kind} ({', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''})"
        for kind, names in groups.items()
        if names
    ]


def load_initial_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a plain timm model, before it is conditioned.

    The checkpoint goes through timm's filter of the model's family and must then match name by name and shape by shape.
    Raises DataError that lists what does not; then nothing was changed.
    """
    path = Path(path).expanduser()
    weights: dict[str, Any] = read_weights(path)
    convert = checkpoint_filter(model)
    if convert is not None:
        try:
            weights = convert(weights, model)
        except (AttributeError, KeyError, RuntimeError, ValueError) as error:
            raise DataError(
                f"init.weights {path} is no checkpoint of {type(model).__name__}: {error}. Nothing was loaded"
            ) from error
    problems = mismatches(model.state_dict(), weights)
    if problems:
        raise DataError(
            f"init.weights {path} does not fit {type(model).__name__}: {'; '.join(problems)}. Nothing was loaded"
        )
    model.load_state_dict(weights, strict=True)
