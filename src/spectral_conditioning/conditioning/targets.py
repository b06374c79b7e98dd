"""Which stored weights condition() is to correct, and every reason to refuse one, found before anything is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning import precision
from spectral_conditioning.conditioning.layers import conditioned_class
from spectral_conditioning.conditioning.layouts import Attention, Projection
from spectral_conditioning.conditioning.placement import RoleRows, TensorPlan
from spectral_conditioning.conditioning.settings import Conditioning
from spectral_conditioning.conditioning.storage import as_matrix, qualified_name, raw_tensor

FOLDED_MARK = "_spectral_folded"


@dataclass(frozen=True)
class Target:
    """One stored weight and its plan."""

    layer: Any
    layer_name: str
    tensor_name: str
    plan: TensorPlan

    @property
    def name(self) -> str:
        return f"{self.layer_name}.{self.tensor_name}" if self.layer_name else self.tensor_name

    @property
    def weight(self) -> Tensor:
        weight: Tensor = raw_tensor(self.layer, self.tensor_name)
        return weight


def collect_targets(attentions: Sequence[Attention], settings: Conditioning) -> tuple[list[Target], list[str]]:
    """Return the stored weights that hold targeted rows, and the problems of weights that are shared between roles."""
    held: dict[tuple[int, str], list[Projection]] = defaultdict(list)
    for attention in attentions:
        for projection in attention.projections.values():
            held[id(projection.layer), projection.tensor_name].append(projection)
    targets, problems = [], []
    for projections in held.values():
        if not any(projection.role in settings.targets for projection in projections):
            continue
        first = projections[0]
        roles, problem = _distinct_roles(projections, settings)
        if problem:
            problems.append(f"{first.layer_name}.{first.tensor_name}: {problem}")
            continue
        rows, columns = as_matrix(first.layer, raw_tensor(first.layer, first.tensor_name)).shape
        plan = TensorPlan((rows, columns), roles, settings.placement)
        targets.append(Target(first.layer, first.layer_name, first.tensor_name, plan))
    return targets, problems


def _distinct_roles(
    projections: Sequence[Projection], settings: Conditioning
) -> tuple[tuple[RoleRows, ...], str | None]:
    """Merge roles that share all their rows (one layer serving as Q and K); any other overlap is a problem."""
    by_rows: dict[tuple[tuple[int, ...], int], list[str]] = defaultdict(list)
    for projection in projections:
        roles = by_rows[projection.starts, projection.head_dim]
        if projection.role not in roles:
            roles.append(projection.role)
    merged = []
    claimed: set[int] = set()
    for (starts, head_dim), roles in by_rows.items():
        rows = RoleRows("".join(roles), starts, head_dim)
        if claimed.intersection(rows.rows().tolist()):
            return (
                (),
                "its rows are read in two different ways by attention modules that share it; exclude one of them",
            )
        claimed.update(rows.rows().tolist())
        aimed = [role for role in roles if role in settings.targets]
        if aimed and len(aimed) < len(roles):
            return (
                (),
                f"its rows serve as {' and '.join(roles)}, but only {' '.join(aimed)} is targeted; target all or none of them",
            )
        if aimed:
            merged.append(rows)
    return tuple(merged), None


def find_problems(model: nn.Module, targets: Sequence[Target], settings: Conditioning) -> list[str]:
    """Return every reason not to condition these weights, one sentence each."""
    problems = [problem for target in targets for problem in _weight_problems(target, settings)]
    return problems + list(_tied_problems(model, targets))


def _weight_problems(target: Target, settings: Conditioning) -> Iterator[str]:
    layer, weight = target.layer, target.weight
    cls = type(layer)
    if conditioned_class(cls) is None:
        yield (
            f"{target.layer_name} is a {qualified_name(cls)}: served are nn.Linear, nn.MultiheadAttention, 1×1 "
            "convolutions and transformers' Conv1D, and subclasses that inherit their forward. Condition before wrapping "
            "it (LoRA, quantisation), or exclude it"
        )
        return
    if settings.float32_projection and (problem := precision.problem(layer, weight, target.name)):
        yield problem
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and (set(layer.kernel_size) != {1} or layer.groups != 1):
        yield f"{target.layer_name} is a convolution of kernel {layer.kernel_size}, groups={layer.groups}: served is 1×1 in 1"
    if not isinstance(weight, nn.Parameter):
        yield f"{target.name} is no parameter of its layer (parametrized, pruned or FSDP1-wrapped); condition before that"
    elif hasattr(weight, "device_mesh"):
        yield f"{target.name} is sharded (a DTensor); condition before fully_shard"
    elif type(weight) is not nn.Parameter or type(weight.data) is not Tensor:
        yield f"{target.name} is a {type(weight).__name__}, not a plain tensor (quantised?); condition before that"
    elif not weight.is_floating_point():
        yield f"{target.name} has dtype {weight.dtype}; conditioning adds to floating-point weights (float32 is best)"
    elif not weight.requires_grad:
        yield f"{target.name} is frozen (requires_grad=False): unfreeze it before condition(), or exclude its attention"
    elif weight.is_meta and settings.is_saved:
        yield (
            f"{target.name} is on the meta device, without values, and {settings.correction!r}"
            f"{' (relative)' if settings.relative else ''} needs them; materialise and initialise the model first"
        )
    elif not weight.is_meta and not bool(torch.isfinite(weight).all()):
        yield f"{target.name} holds values that are not finite"


def _tied_problems(model: nn.Module, targets: Sequence[Target]) -> Iterator[str]:
    """A parameter with several owners is served when all of them are corrected alike, and refused otherwise."""
    planned = {(id(target.layer), target.tensor_name): target.plan for target in targets}
    wanted = {id(target.weight) for target in targets}
    owners: dict[int, list[tuple[str, TensorPlan | None]]] = defaultdict(list)
    for name, module in model.named_modules():
        for tensor_name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in wanted:
                path = f"{name}.{tensor_name}" if name else tensor_name
                owners[id(parameter)].append((path, planned.get((id(module), tensor_name))))
    for shared in owners.values():
        if len({plan for _, plan in shared}) > 1:
            listed = ", ".join(f"{path} ({'corrected' if plan else 'not corrected'})" for path, plan in shared)
            yield f"one parameter is shared by layers that would not get the same correction: {listed}. Untie it, or exclude it"


def first_owner_names(targets: Sequence[Target]) -> dict[int, str]:
    """Return {id of each parameter: name of its first owner}, so that tied owners get one and the same random C."""
    names: dict[int, str] = {}
    for target in targets:
        names.setdefault(id(target.weight), target.name)
    return names


def looks_conditioned(targets: Sequence[Target], settings: Conditioning) -> str | None:
    """Return a sentence when every weight already seems to hold the identity that is about to be added (a folded export).

    The mean of W over the k identity positions is compared with λ: that of a plain W lies within a few σ_W/√k of zero.
    """
    if settings.correction != "identity" or settings.relative:
        return None
    means = []
    for target in targets:
        weight = target.weight
        if weight.is_meta:
            return None
        matrix = as_matrix(target.layer, weight.detach())
        rows, columns = (index.to(matrix.device) for index in target.plan.ones())
        if len(rows) == 0:
            continue
        mean = matrix[rows, columns].double().mean().item()
        noise = matrix.double().std().item() / len(rows) ** 0.5
        if abs(mean - settings.lam) > 0.25 * settings.lam or mean < 8 * noise:
            return None
        means.append(mean)
    if not means:
        return None
    return f"all {len(means)} weights have a mean of {min(means):.4g} to {max(means):.4g} where λ={settings.lam:g} would be added"


def grouped_query_remark(attentions: Sequence[Attention], settings: Conditioning) -> str | None:
    """Say which coordinates of x the identities of Q and K share when K has fewer heads."""
    grouped = [a for a in attentions if a.projections["k"].heads != a.heads]
    if (
        not grouped
        or not {"q", "k"} <= set(settings.targets)
        or settings.correction not in ("identity", "scaled_identity")
    ):
        return None
    ratio = grouped[0].heads // grouped[0].projections["k"].heads
    heads = f"grouped-query attention ({ratio} query heads a key head)"
    if settings.placement == "per_head":
        return f"{heads}: every head of Q and of K reads x[:d]"
    return (
        f"{heads}: query head h reads x[h·d:(h+1)·d], its key head g = h//{ratio} reads x[g·d:(g+1)·d], so that the two meet in "
        "head 0 only; placement per_head makes all heads meet in x[:d]"
    )


def mark_of(model: nn.Module) -> Mapping[str, object] | None:
    """Return the settings that fold() left on a folded model, or None."""
    for module in model.modules():
        mark: Mapping[str, object] | None = module.__dict__.get(FOLDED_MARK)
        if mark is not None:
            return mark
    return None
