"""Catching in-place edits of a tensor that a conditioned layer computed.

`layer.weight` of a conditioned layer is W + C, a fresh tensor: `nn.init.zeros_(layer.weight)` would write into it and change
nothing. The last tensor handed out is kept here with its version counter, and the next use of any conditioned layer raises when
the counter has moved. Edits through `.data` leave the counter alone and cannot be seen.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from spectral_conditioning.errors import ConditioningError

_handed_out: list[tuple[str, Tensor, int]] = []


def watch(name: str, tensor: Tensor) -> None:
    """Remember `tensor`, handed out as the attribute `name` of a conditioned layer."""
    if not tensor.is_inference():
        _handed_out[:] = [(name, tensor.detach(), tensor._version)]


def check() -> None:
    """Raise ConditioningError when the tensor handed out last was edited in place."""
    if not _handed_out:
        return
    name, tensor, version = _handed_out.pop()
    if tensor._version != version:
        raise ConditioningError(
            f"{name} was edited in place (nn.init, copy_ or the like), but on a conditioned layer it is the sum W + C and the "
            "edit is lost. Initialise or load weights before condition(); to edit W itself use the layer's trained_weight(), or "
            "reset_parameters()."
        )


def forget() -> None:
    """Drop the tensor that is being watched."""
    _handed_out.clear()


def is_fully_shard_calling() -> bool:
    """True when torch's fully_shard is looking up its sharded parameter with getattr(module, name)."""
    frame = sys._getframe(2)
    for _ in range(4):
        if frame.f_code.co_name == "reset_sharded_param":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def is_active() -> bool:
    """False while torch.compile traces, which has no use for version counters."""
    return not torch.compiler.is_compiling()
