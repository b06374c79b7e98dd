"""Catching in-place edits of a tensor that a conditioned layer computed.

`layer.weight` of a conditioned layer is W + C, a fresh tensor: `nn.init.zeros_(layer.weight)` would write into it and change
nothing. The last tensor handed out is kept here with its version counter, and the next use of any conditioned layer raises when
the counter has moved. Edits through `.data` leave the counter alone, so on the CPU, where models are initialised, a few entries
are compared as well. On a GPU that comparison would wait for the device: `.data` edits go unseen there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from spectral_conditioning.errors import ConditioningError

_SAMPLES = 16


@dataclass(frozen=True)
class _HandedOut:
    name: str
    tensor: Tensor
    version: int
    sample: Tensor | None

    def was_edited(self) -> bool:
        if self.tensor._version != self.version:
            return True
        return self.sample is not None and not torch.equal(_sample(self.tensor), self.sample)


_last: list[_HandedOut] = []


def watch(name: str, tensor: Tensor) -> None:
    """Remember `tensor`, handed out as the attribute `name` of a conditioned layer."""
    if type(tensor) is not Tensor or tensor.is_inference() or _is_transformed(tensor):
        return
    tensor = tensor.detach()
    sample = _sample(tensor).clone() if tensor.device.type == "cpu" else None
    _last[:] = [_HandedOut(name, tensor, tensor._version, sample)]


def check() -> None:
    """Raise ConditioningError when the tensor handed out last was edited in place."""
    try:
        last = _last.pop()
    except IndexError:  # nothing is watched, or another thread has checked it
        return
    if last.was_edited():
        raise ConditioningError(
            f"{last.name} was edited in place (nn.init, copy_ or the like), but on a conditioned layer it is the sum W + C "
            "and the edit is lost. Initialise or load weights before condition(); to edit W itself use the layer's "
            "trained_weight(), or reset_parameters()."
        )


def is_active() -> bool:
    """False while torch.compile traces, which has no use for version counters."""
    return not torch.compiler.is_compiling()


def is_fully_shard_calling() -> bool:
    """True when torch's fully_shard looks up its own sharded parameter with getattr(module, name): it must get W, not W + C.

    Should a later torch rename the function, the sum that it gets has a grad_fn, which effective_weight() refuses.
    """
    frame = sys._getframe(2)
    for _ in range(4):
        if frame.f_code.co_name == "reset_sharded_param":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _sample(tensor: Tensor) -> Tensor:
    """Return some entries, the first and the last row among them; NaN becomes 0, so that it equals itself."""
    rows = tensor.flatten(1)
    entries = rows[:: max(1, len(rows) // _SAMPLES), 0]
    return torch.cat([entries, rows[-1, -1:]]).nan_to_num(0.0)


def _is_transformed(tensor: Tensor) -> bool:
    """True inside vmap, grad and the like, whose tensors cannot be compared."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
