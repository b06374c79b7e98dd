"""What conditioning adds to a training step, counted: parameters, FLOPs and bytes.

A conditioned weight is the sum W + C, formed once in each forward pass: one addition for each entry of the stored
tensor, and one tensor of its size that lives until the backward pass has used it. The gradient passes to W as it is. No
matrix product is added, and no trainable parameter. A correction that follows W (polar, svd) costs more at each refresh,
counted apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from spectral_conditioning.analysis.observe import observing
from spectral_conditioning.conditioning import Conditioning, condition, conditioned_layers, refresh


@dataclass(frozen=True)
class ConditioningCost:
    """Counts for one forward and backward pass of the inputs given, as torch's FLOP counter sees them (2 a multiply-add).

    added_matmul_flops: matrix-product FLOPs of the conditioned pass less those of the plain one. added_additions: the
    same for element-wise additions. expected_additions: entries of the corrected tensors, what the formula says.
    sum_bytes: size of all W + C, alive at once during a training step. correction_bytes: memory that holds C, shared
    identities counted once. refresh_flops: matrix products of one refresh (an SVD is not counted by torch), 0 where C is
    fixed.
    """

    trainable_parameters: int
    added_parameters: int
    plain_forward_flops: int
    plain_backward_flops: int
    added_matmul_flops: int
    added_additions: int
    expected_additions: int
    added_share: float
    sum_bytes: int
    correction_bytes: int
    refresh_flops: int


def conditioning_cost(model: nn.Module, settings: Conditioning, inputs: Tensor) -> dict[str, Any]:
    """Count what `settings` add to a forward and backward pass of `model` (plain) on `inputs`; the model itself is left
    alone.

    The counts are those of one call whatever the batch: additions depend on the weights only, so their share (additions
    over the FLOPs of the plain step) falls as the batch grows. Raises ConditioningError as `condition` does.
    """
    conditioned = copy.deepcopy(model)
    condition(conditioned, settings)
    layers = conditioned_layers(conditioned)
    tensors = [(layer, name) for layer in layers.values() for name in layer.plans()]
    weights = [layer.trained_weight(name) for layer, name in tensors]
    corrections = [layer.correction(name) for layer, name in tensors]
    distinct = {correction.data_ptr(): correction for correction in corrections if correction is not None}
    plain_forward, plain_backward, plain_additions = _count(model, inputs)
    forward, backward, additions = _count(conditioned, inputs)
    plain = plain_forward + plain_backward
    return asdict(
        ConditioningCost(
            trainable_parameters=_trainable(model),
            added_parameters=_trainable(conditioned) - _trainable(model),
            plain_forward_flops=plain_forward,
            plain_backward_flops=plain_backward,
            added_matmul_flops=forward + backward - plain,
            added_additions=additions - plain_additions,
            expected_additions=sum(weight.numel() for weight in weights),
            added_share=(additions - plain_additions + forward + backward - plain) / plain,
            sum_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            correction_bytes=sum(correction.numel() * correction.element_size() for correction in distinct.values()),
            refresh_flops=_refresh_flops(conditioned),
        )
    )


def _trainable(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _count(model: nn.Module, inputs: Tensor) -> tuple[int, int, int]:
    """Return matrix-product FLOPs of the forward and of the backward pass, and element-wise additions of both."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    additions = _Additions()
    # torch's counter does not know the fused attention of CPUs; the plain one is made of products it counts.
    with observing(model, gradient=True), sdpa_kernel(SDPBackend.MATH), additions:
        with FlopCounterMode(display=False) as forward:
            total = _total(model(inputs))
        with FlopCounterMode(display=False) as backward:
            torch.autograd.grad(total, parameters, allow_unused=True)
    return forward.get_total_flops(), backward.get_total_flops(), additions.count


def _total(output: Any) -> Tensor:
    """Sum every floating-point tensor of a model's output, to have something to differentiate."""
    if isinstance(output, Tensor):
        return output.sum()
    values = output.values() if isinstance(output, dict) else output
    return torch.stack([_total(value) for value in values if isinstance(value, Tensor | list | tuple | dict)]).sum()


def _refresh_flops(model: nn.Module) -> int:
    if not any(layer.conditioning().depends_on_weight for layer in conditioned_layers(model).values()):
        return 0
    with FlopCounterMode(display=False) as counter:
        refresh(model)
    return int(counter.get_total_flops())


class _Additions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the entries that element-wise additions of two tensors produce."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor) and isinstance(args[1], Tensor):
            self.count += result.numel()
        return result
