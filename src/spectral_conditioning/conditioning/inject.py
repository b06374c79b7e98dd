"""condition(), strip() and the list of conditioned layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning import guard
from spectral_conditioning.conditioning.corrections import Computed, Source, compute
from spectral_conditioning.conditioning.layers import conditioned_class
from spectral_conditioning.conditioning.layouts import Attention, find_attention
from spectral_conditioning.conditioning.loading import guard_loading, unguard_loading
from spectral_conditioning.conditioning.mixin import Conditioned
from spectral_conditioning.conditioning.packing import Layout
from spectral_conditioning.conditioning.report import ProjectionRow, Report
from spectral_conditioning.conditioning.settings import Conditioning
from spectral_conditioning.conditioning.state import CORRECTION_SUFFIX
from spectral_conditioning.conditioning.storage import as_matrix, as_stored, is_transposed
from spectral_conditioning.conditioning.targets import (
    Target,
    collect_targets,
    find_problems,
    first_owner_names,
    grouped_query_remark,
    looks_conditioned,
    mark_of,
)
from spectral_conditioning.errors import ConditioningError, problems_message


def condition(
    model: nn.Module,
    settings: Conditioning | None = None,
    *,
    layouts: Mapping[type[nn.Module] | str, Layout] | None = None,
    allow_folded: bool = False,
    **changes: Any,
) -> Report:
    """Add C to the attention projections of `model`, in place: W_effective = W + C (SpecA, NeurIPS 2025).

    Call it once, on initialised or loaded weights, before torch.compile, DDP, fully_shard, EMA copies and the optimizer (whose
    parameters stay the same objects). It draws no random number from a global generator.

    settings: a Conditioning, or its fields as keywords: `condition(model, lam=10)`. Keywords change `settings` when
    both are given.
    layouts: {attention class, or shell pattern on module paths: layout}, for attention that `families()` does not list.
    allow_folded: condition even if the weights seem to contain λI already (see `looks_conditioned`).

    λ = 0 is the baseline: no module is touched, and the report counts 0. Only the loading check is installed, which refuses
    conditioned state dicts.

    Raises ConditioningError with every problem found; the model is then unchanged.
    """
    settings = _settings(settings, changes)
    _refuse_second_call(model)
    if settings.is_baseline:
        guard_loading(model)
        return Report(settings)
    attentions = find_attention(model, include=settings.include, exclude=settings.exclude, layouts=layouts)
    targets, problems = collect_targets(attentions, settings)
    problems += find_problems(model, targets, settings)
    if problems:
        raise ConditioningError(
            problems_message(f"condition({type(model).__name__})", problems) + "\nNothing was changed."
        )
    # With preserve="function" the effective weights stay as they are, so nothing is added twice.
    folded = None if allow_folded or settings.preserve == "function" else looks_conditioned(targets, settings)
    if folded:
        raise ConditioningError(
            f"{type(model).__name__} seems to be conditioned already: {folded}. A folded export contains C; load the conditioned "
            "checkpoint instead, or pass allow_folded=True. Nothing was changed."
        )
    computed = compute_corrections(targets, settings)
    with torch.no_grad():
        for group in _by_layer(targets):
            _swap(group, settings)
        _install(targets, computed, settings)
    guard_loading(model)
    report = Report(settings, list(_rows(attentions, targets, settings)), computed.remarks)
    remark = grouped_query_remark(attentions, settings)
    if remark:
        report.remarks.append(remark)
    return report


def strip(model: nn.Module) -> int:
    """Undo condition(), in place: plain layers that hold the trained W, or W + C under preserve="function". Return their number.

    A model that was not trained in between is then what it was before condition() (under "function" up to one rounding).
    """
    guard.check()
    layers = conditioned_layers(model)
    with torch.no_grad():
        for layer, names in tied_once(layers):
            if layer.conditioning().preserve == "function":
                for name in names:
                    layer.trained_weight(name).copy_(layer.effective_weight(name))
        for layer in layers.values():
            make_plain(layer)
    for module in model.modules():
        unguard_loading(module)
    return len(layers)


def conditioned_layers(model: nn.Module) -> dict[str, Any]:
    """Return {path: conditioned layer}; each has trained_weight(), correction(), effective_weight() and conditioning()."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Conditioned)}


def compute_corrections(
    targets: Sequence[Target], settings: Conditioning, weights: Sequence[Tensor] | None = None
) -> Computed:
    """Return C of each target as an (out, in) matrix, from its stored weights or from `weights`.

    Identities that the settings determine are not computed here: their entry is empty.
    """
    if not settings.is_saved:
        return Computed([torch.empty(0)] * len(targets))
    names = first_owner_names(targets)
    stored = weights if weights is not None else [target.weight.detach() for target in targets]
    sources = [
        Source(names[id(target.weight)], target.plan, as_matrix(target.layer, weight))
        for target, weight in zip(targets, stored, strict=True)
    ]
    return compute(sources, settings)


def _install(targets: Sequence[Target], computed: Computed, settings: Conditioning) -> None:
    """Put the corrections on layers whose class was swapped; under preserve="function" store W − C, once for tied weights."""
    for target, matrix in zip(targets, computed.matrices, strict=True):
        if settings.is_saved:
            stored = as_stored(matrix, target.weight.shape, transposed=is_transposed(target.layer))
            target.layer.register_buffer(target.tensor_name + CORRECTION_SUFFIX, stored)
        else:
            target.layer._sync()
    if settings.preserve == "function":
        for target in {id(target.weight): target for target in targets}.values():
            store_difference(target, target.weight.double())


def store_difference(target: Target, effective: Tensor) -> None:
    """Set W = effective − C, formed in float64 and rounded once."""
    correction = target.layer.correction(target.tensor_name)
    target.weight.copy_(effective - correction)


def make_plain(layer: Any) -> None:
    """Give a conditioned layer its plain class back and drop everything else that conditioning put on it."""
    for name in layer.plans():
        layer._buffers.pop(name + CORRECTION_SUFFIX, None)
    for key in ("_settings", "_plans", "_path", "_refreshed", "_identities"):
        layer.__dict__.pop(key, None)
    layer.__class__ = layer._plain


def _settings(settings: Conditioning | None, changes: Mapping[str, Any]) -> Conditioning:
    if settings is not None and not isinstance(settings, Conditioning):
        raise ConditioningError(
            f"settings is a {type(settings).__name__}; pass Conditioning(...), or its fields as keywords."
        )
    return Conditioning.from_dict({**(settings.to_dict() if settings else {}), **changes})


def _refuse_second_call(model: nn.Module) -> None:
    layers = conditioned_layers(model)
    if layers:
        name, layer = next(iter(layers.items()))
        settings = layer.conditioning()
        raise ConditioningError(
            f"{type(model).__name__} is conditioned already: {len(layers)} layers, the first {name!r} with {settings.correction} "
            f"λ={settings.lam:g}. Call strip(model) first to condition it anew. Nothing was changed."
        )
    mark = mark_of(model)
    if mark is not None:
        raise ConditioningError(
            f"{type(model).__name__} was folded: its weights contain C ({mark['correction']} λ={mark['lam']:g}). Use the "
            "handle that fold() returned to unfold it, or build the model anew. Nothing was changed."
        )


def _by_layer(targets: Sequence[Target]) -> Iterator[list[Target]]:
    groups: dict[int, list[Target]] = defaultdict(list)
    for target in targets:
        groups[id(target.layer)].append(target)
    yield from groups.values()


def _swap(targets: Sequence[Target], settings: Conditioning) -> None:
    layer: Any = targets[0].layer
    layer.__dict__["_settings"] = settings
    layer.__dict__["_plans"] = {target.tensor_name: target.plan for target in targets}
    layer.__dict__["_path"] = targets[0].layer_name
    layer.__dict__["_refreshed"] = 0
    layer.__dict__["_identities"] = {}
    layer.__class__ = conditioned_class(type(layer))


def tied_once(layers: Mapping[str, Any]) -> Iterator[tuple[Any, list[str]]]:
    """Yield each layer with those of its corrected tensors whose parameter no earlier layer owns."""
    seen: set[int] = set()
    for layer in layers.values():
        names = [name for name in layer.plans() if id(layer.trained_weight(name)) not in seen]
        seen.update(id(layer.trained_weight(name)) for name in names)
        yield layer, names


def _rows(
    attentions: Sequence[Attention], targets: Sequence[Target], settings: Conditioning
) -> Iterator[ProjectionRow]:
    plans = {(id(target.layer), target.tensor_name): target.plan for target in targets}
    for attention in attentions:
        for role, projection in attention.projections.items():
            plan = plans.get((id(projection.layer), projection.tensor_name))
            if plan is None or role not in plan.touched(settings.correction):
                continue
            held = "".join(r.role for r in plan.roles)
            yield ProjectionRow(
                attention=attention.name,
                layer=projection.layer_name,
                tensor=projection.tensor_name,
                role=role,
                family=attention.family,
                layout="separate" if len(held) == 1 else f"rows of {held}",
                heads=projection.heads,
                head_dim=projection.head_dim,
                shape=(projection.heads * projection.head_dim, plan.shape[1]),
            )
