"""Weight decay toward zero of the effective weight.

A decoupled optimizer multiplies W by 1 − η w (η learning rate, w decay), which pulls W + C toward C. Adding −η w C in
the same step gives (1 − η w)(W + C) − C: the effective weight then decays toward 0, exactly as in a model that starts
from W₀ + C and is never conditioned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning.inject import conditioned_layers, tied_once
from spectral_conditioning.conditioning.mixin import Conditioned
from spectral_conditioning.errors import ConditioningError

_DECOUPLED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam)


def attach_decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Make the optimizer's weight decay act on W + C, for layers with decay_toward="zero"; return the hook's handle.

    After each step the hook adds −lr·weight_decay·C to W, with the values of W's parameter group in that step. It is
    exact for torch's AdamW, and Adam, NAdam and RAdam with decoupled_weight_decay=True. Nothing is attached, and None
    returned, when no layer asks for it (decay_toward="correction", or a baseline).

    Raises ConditioningError for any other optimizer, and for a conditioned weight that the optimizer does not hold.
    """
    corrected = [
        (layer, name)
        for layer, names in tied_once(conditioned_layers(model))
        for name in names
        if layer.conditioning().decay_toward == "zero"
    ]
    if not corrected:
        return None
    _refuse_others(optimizer)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for layer, name in corrected:
        if id(layer.trained_weight(name)) not in held:
            raise ConditioningError(
                f"attach_decay: the optimizer does not hold {layer.name_of(name)}. Build it from this model's parameters, after "
                "condition() and any wrapper that replaces parameters (fully_shard)."
            )

    def add_missing_decay(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates = {
            id(p): group["lr"] * group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
        }
        skipped = getattr(optimizer, "found_inf", None)
        with torch.no_grad():
            for layer, name in corrected:
                weight = layer.trained_weight(name)
                if weight.grad is not None and id(weight) in rates:
                    _subtract(weight, layer, name, rates[id(weight)], skipped)

    return optimizer.register_step_post_hook(add_missing_decay)


def _refuse_others(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer) not in _DECOUPLED:
        raise ConditioningError(
            f"attach_decay: {type(optimizer).__module__}.{type(optimizer).__name__} is not among the optimizers for which "
            "decay of W + C is exact: torch.optim.AdamW, and Adam, NAdam, RAdam with decoupled_weight_decay=True. Use one "
            "of them, or decay_toward='correction'."
        )
    coupled = [i for i, group in enumerate(optimizer.param_groups) if not group.get("decoupled_weight_decay", False)]
    if coupled and type(optimizer) is not torch.optim.AdamW:
        raise ConditioningError(
            f"attach_decay: parameter group {coupled[0]} of {type(optimizer).__name__} adds its decay to the gradient. Pass "
            "decoupled_weight_decay=True, use AdamW, or decay_toward='correction'."
        )


def _subtract(weight: Tensor, layer: Conditioned, name: str, rate: Any, skipped: Tensor | None) -> None:
    """W ← W − rate·C, unless the gradient scaler found infinities and a fused step was skipped."""
    correction: Any = layer.correction(name)
    if hasattr(weight, "device_mesh"):
        from spectral_conditioning.conditioning.mixin import replicated

        correction = replicated(correction, weight)
    if skipped is not None:
        rate = rate * (1 - skipped.to(correction.device))
    if isinstance(rate, Tensor):
        weight.sub_((correction * rate).to(weight.dtype))
    else:
        weight.sub_(correction.to(weight.dtype), alpha=rate)
