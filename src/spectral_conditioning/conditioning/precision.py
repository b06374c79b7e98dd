"""`float32_projection`: the product x (W + C)ᵀ in float32 under autocast.

Autocast rounds W + C to bfloat16 or float16. Near λ = 10 their spacing is 0.0625 and 0.0078: with W of standard deviation
0.02, bfloat16 loses 88 % of W's diagonal entries whole, and x Wᵀ gets a relative error of 9 % (width 256). In float32 the
diagonal counts in full; 5 % remain from rounding the output, which follows autocast as the rest of the network does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spectral_conditioning.errors import ConditioningError

LOW_PRECISION = (torch.bfloat16, torch.float16)


def in_float32(product: Callable[[Tensor], Tensor], input: Tensor, weight: Tensor, name: str) -> Tensor:
    """Return `product(input)`, under autocast computed in float32 and cast to autocast's dtype.

    weight: the W of the product, called `name`. Raises ConditioningError when W itself is stored in a low precision.
    """
    if weight.dtype in LOW_PRECISION:
        raise ConditioningError(
            f"{name} is stored as {weight.dtype}, where W + C has lost the diagonal of W; with float32_projection keep the model "
            "in float32 and let torch.autocast lower the precision."
        )
    device = input.device.type
    if weight.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return product(input)
    lower = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return product(input.float()).to(lower)


def refuse_outside_read(weight: Tensor, name: str) -> None:
    """Raise ConditioningError where autocast would round a W + C that another module multiplies by."""
    if torch.is_autocast_enabled(weight.device.type):
        raise ConditioningError(
            f"{name} is read by another module under autocast (BEiT and SwinV2 do so, for instance), which rounds W + C in a "
            "product of its own. float32_projection needs attention that calls its projection layers: leave it out here, or "
            "train without autocast."
        )


def problem(layer: nn.Module, weight: Tensor, name: str) -> str | None:
    """Return why the products of a plain layer cannot be kept in float32, or None."""
    if isinstance(layer, nn.MultiheadAttention):
        return (
            f"{name}: nn.MultiheadAttention computes its projections inside one torch function, under autocast in its dtype; "
            "float32_projection cannot reach them. Leave it out, or use separate projection layers"
        )
    if weight.dtype in LOW_PRECISION:
        return (
            f"{name} is stored as {weight.dtype}; float32_projection needs W in float32, with autocast around the model"
        )
    return None
