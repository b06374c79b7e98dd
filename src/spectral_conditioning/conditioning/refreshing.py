"""Computing C anew from the current W, by hand or every n optimizer steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning.inject import (
    compute_corrections,
    conditioned_layers,
    store_difference,
)
from spectral_conditioning.conditioning.settings import Conditioning
from spectral_conditioning.conditioning.storage import as_stored, is_transposed
from spectral_conditioning.conditioning.targets import Target
from spectral_conditioning.errors import ConditioningError


def refresh(model: nn.Module, *, step: int = 0) -> list[str]:
    """Compute C of every conditioned layer anew from its current W, in place; return remarks (zero or singular matrices).

    Layers of equal shape are computed in one batch. Under preserve="function" C is computed from W + C, which stays
    as it is, and W becomes the new difference. A C that does not depend on W (identity, orthogonal, not relative) is
    left alone.
    step: optimizer steps so far, saved with C.

    Raises ConditioningError when the model holds no conditioned layer.
    """
    layers = conditioned_layers(model)
    if not layers:
        raise ConditioningError(f"refresh: {type(model).__name__} holds no conditioned layer; call condition() first.")
    groups: dict[Conditioning, list[Target]] = defaultdict(list)
    for name, layer in layers.items():
        if layer.conditioning().depends_on_weight:
            targets = [Target(layer, name, tensor, plan) for tensor, plan in layer.plans().items()]
            groups[layer.conditioning()] += targets
            layer.__dict__["_refreshed"] = step
    remarks = []
    for settings, targets in groups.items():
        remarks += _refresh(targets, settings)
    return remarks


def _refresh(targets: list[Target], settings: Conditioning) -> list[str]:
    keep = settings.preserve == "function"
    with torch.no_grad():
        weights = [_effective(target) if keep else _whole(target.weight.detach()) for target in targets]
        computed = compute_corrections(targets, settings, weights)
        for target, matrix in zip(targets, computed.matrices, strict=True):
            correction = target.layer.correction(target.tensor_name)
            correction.copy_(as_stored(matrix, correction.shape, transposed=is_transposed(target.layer)))
        if keep:
            done: set[int] = set()
            for target, effective in zip(targets, weights, strict=True):
                if id(target.weight) not in done:
                    store_difference(target, effective)
                    done.add(id(target.weight))
    return computed.remarks


def _effective(target: Target) -> Tensor:
    correction: Tensor = target.layer.correction(target.tensor_name)
    return _whole(target.weight.detach()).double() + correction


def _whole(weight: Tensor) -> Tensor:
    """Gather a sharded W (fully_shard): C depends on all of it."""
    gather: Callable[[], Tensor] | None = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


class Refresher:
    """Callback for a training loop: step it after each optimizer step, and it refreshes C every `refresh_every` steps.

        refresher = Refresher(model)
        for batch in data:
            ...; optimizer.step(); refresher.step()

    With refresh_every=0, or on a baseline, it only counts. A loop that resumes gives the number of optimizer steps done, once as
    `Refresher(model, steps=n)` or each time as `refresher.step(n)`.
    """

    def __init__(self, model: nn.Module, *, steps: int = 0) -> None:
        self.model = model
        self.steps = steps
        intervals = {layer.conditioning().refresh_every for layer in conditioned_layers(model).values()}
        if len(intervals) > 1:
            raise ConditioningError(f"Refresher: the layers have several values of refresh_every: {sorted(intervals)}.")
        self.every = intervals.pop() if intervals else 0

    def step(self, steps: int | None = None) -> bool:
        """Count one step, or set the count to `steps`; refresh at each multiple of refresh_every, and return whether it did."""
        self.steps = self.steps + 1 if steps is None else steps
        due = self.every > 0 and self.steps % self.every == 0
        if due:
            refresh(self.model, step=self.steps)
        return due
