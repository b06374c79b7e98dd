"""Optimizers and learning-rate schedules that the recipes name, stepped once per optimizer step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from spectral_conditioning.errors import ConfigError, closest


@dataclasses.dataclass(kw_only=True)
class OptimConfig:
    """AdamW and its schedule.

    lr: peak rate (absolute, not scaled by the batch). warmup, constants of the schedule: in optimizer steps; `warmup_epochs`
    is turned into steps by the run path when `warmup_steps` is null. min_lr, warmup_lr: absolute rates at the end and start.
    milestones: fractions of the budget at which `multistep` multiplies the rate by 0.1.
    peak: fraction of the budget at which `triangle` peaks; it starts at `start_factor` × lr.
    clip_norm, clip_value: gradient clipping, null for none. ema_decay: null for no average; report: which weights are evaluated.
    """

    name: str = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.05
    decay_vectors: bool = False
    schedule: str = "cosine"
    warmup_steps: int | None = None
    warmup_epochs: float = 0.0
    warmup_prefix: bool = False
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    milestones: tuple[float, ...] = ()
    peak: float = 0.75
    start_factor: float = 0.25
    clip_norm: float | None = None
    clip_value: float | None = None
    ema_decay: float | None = None
    report: str = "raw"


def cosine_factor(step: int, optim: OptimConfig, total_steps: int) -> float:
    """Linear warm-up from `warmup_lr`, then half a cosine to `min_lr`, as a factor of `lr` (timm's CosineLRScheduler)."""
    warmup = optim.warmup_steps or 0
    if step < warmup:
        return (optim.warmup_lr + step * (optim.lr - optim.warmup_lr) / warmup) / optim.lr
    position, length = (step - warmup, total_steps - warmup) if optim.warmup_prefix else (step, total_steps)
    position = min(position, length)
    rate = optim.min_lr + 0.5 * (optim.lr - optim.min_lr) * (1 + math.cos(math.pi * position / max(1, length)))
    return rate / optim.lr


def constant_factor(step: int, optim: OptimConfig, total_steps: int) -> float:
    """Linear warm-up from `warmup_lr`, then `lr`."""
    warmup = optim.warmup_steps or 0
    return (optim.warmup_lr + step * (optim.lr - optim.warmup_lr) / warmup) / optim.lr if step < warmup else 1.0


def multistep_factor(step: int, optim: OptimConfig, total_steps: int) -> float:
    """Linear warm-up, then a tenth at each milestone (a fraction of the budget)."""
    passed = sum(step >= round(milestone * total_steps) for milestone in optim.milestones)
    return float(constant_factor(step, optim, total_steps) * 0.1**passed)


def triangle_factor(step: int, optim: OptimConfig, total_steps: int) -> float:
    """From `start_factor` up to 1 at `peak` of the budget, then down to 0 (cramming's budget-triangle2)."""
    progress = min(step / total_steps, 1.0)
    if progress < optim.peak:
        return optim.start_factor + (1 - optim.start_factor) * progress / optim.peak
    return (1 - progress) / (1 - optim.peak)


FACTORS: dict[str, Callable[[int, OptimConfig, int], float]] = {
    "cosine": cosine_factor,
    "constant": constant_factor,
    "multistep": multistep_factor,
    "triangle": triangle_factor,
}
SCHEDULES = (*FACTORS, "onecycle")


def parameter_groups(
    module: nn.Module, *, weight_decay: float, no_decay: set[str], decay_vectors: bool
) -> list[dict[str, object]]:
    """Split trainable parameters into decayed and spared ones: vectors and biases are spared unless `decay_vectors`.

    Names are those of the stored parameters, which conditioning leaves alone, so both arms get the same groups.
    """
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        vector = parameter.ndim <= 1 or name.endswith(".bias")
        (spared if name in no_decay or (vector and not decay_vectors) else decayed).append(parameter)
    groups: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(
    module: nn.Module, optim: OptimConfig, *, total_steps: int, no_decay: set[str], clips_itself: bool = False
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """Return AdamW over two parameter groups and its schedule over `total_steps` optimizer steps.

    Raises ConfigError for a name that is not in the tables.
    """
    if optim.name != "adamw":
        raise ConfigError(f"optim.name is {optim.name!r}; allowed: adamw")
    if optim.schedule not in SCHEDULES:
        near = closest(optim.schedule, SCHEDULES)
        raise ConfigError(
            f"optim.schedule is {optim.schedule!r}; allowed: {', '.join(SCHEDULES)}"
            + (f"; closest {near!r}" if near else "")
        )
    groups = parameter_groups(
        module, weight_decay=optim.weight_decay, no_decay=no_decay, decay_vectors=optim.decay_vectors
    )
    # The fused kernel unscales gradients within its step, so Lightning refuses to clip for it under mixed precision. A module
    # that unscales and clips by itself (`clips_itself`) needs the opposite: Lightning unscales once more for any other.
    fused = clips_itself or (optim.clip_norm is None and optim.clip_value is None)
    betas = (optim.betas[0], optim.betas[1])
    optimizer = torch.optim.AdamW(groups, lr=optim.lr, betas=betas, eps=optim.eps, fused=fused)
    if optim.schedule == "onecycle":
        # Nyströmformer's LRA code relies on the defaults of OneCycleLR, cycled momentum included.
        warmup = (optim.warmup_steps or 0) / total_steps
        return optimizer, OneCycleLR(
            optimizer, max_lr=optim.lr, total_steps=total_steps + 1, pct_start=warmup, anneal_strategy="linear"
        )
    factor = FACTORS[optim.schedule]
    return optimizer, LambdaLR(optimizer, lambda step: factor(step, optim, total_steps))
