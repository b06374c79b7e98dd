"""Everything about a model's attention on one real input, over a list of λ: spectra, κ(J), bounds, saturation, gradients.

The result is a `ProbeReport` (probe_records.py), whose `to_dict()` is JSON. Tables and plots of it are in
results/probe_report.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from spectral_conditioning.analysis.attention_inputs import ROLES, SoftmaxHead
from spectral_conditioning.analysis.bounds import (
    published_bound,
    valid_bounds,
    weyl_bound,
)
from spectral_conditioning.analysis.capture import AttentionInput, capture_inputs
from spectral_conditioning.analysis.condition_number import JacobianCondition, condition_number, spectral_norm
from spectral_conditioning.analysis.gradients import gradient_norms
from spectral_conditioning.analysis.heads import CHANNEL_FAMILIES, bind_head, unsupported
from spectral_conditioning.analysis.jacobian import SoftmaxJacobian
from spectral_conditioning.analysis.jacobian_summary import head_jacobian
from spectral_conditioning.analysis.probe_records import HeadProbe, LayerProbe, ProbePoint, ProbeReport
from spectral_conditioning.analysis.saturation import identity_logit, saturation_of
from spectral_conditioning.analysis.spectra import evenly_spaced, spectra_of
from spectral_conditioning.conditioning import (
    Attention,
    Conditioning,
    Layout,
    condition,
    conditioned_layers,
    find_attention,
    strip,
)

# Largest Gram matrix taken by default; a ViT-B head with its 197 tokens needs 12,608.
GRAM_LIMIT = 13_000


@dataclass(frozen=True)
class ProbeSettings:
    """What to look at. layers, heads: None for all. max_tokens: None for what `GRAM_LIMIT` allows. blocks: J_Q, J_K, J_V
    too.

    control: also take the first layer on layer-normed Gaussian tokens. Patches of a photograph resemble each other, so P
    X is nearly singular and κ(J) large whatever the weights; the control shows the weights alone.
    """

    layers: int | None = 3
    heads: Sequence[int] | None = (0,)
    max_tokens: int | None = None
    blocks: bool = False
    control: bool = True


def probe(
    model: nn.Module,
    run: Callable[[nn.Module], object],
    *,
    lams: Sequence[float] | None,
    template: Conditioning | None = None,
    loss: Callable[[nn.Module], Tensor] | None = None,
    settings: ProbeSettings | None = None,
    layouts: Mapping[type[nn.Module] | str, Layout] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ProbeReport:
    """Return spectra, κ(J), bounds and saturation of `model` at each λ.

    run: applies a model to the input. lams: each is put on a copy of the plain model with the other settings of
    `template`; None: the model as it is. loss: for gradient norms. progress: called with (what, done, total) before each
    step. Raises ConditioningError as `condition` and `find_attention` do; attention without a closed form is reported,
    not raised.
    """
    settings = settings or ProbeSettings()
    points: list[ProbePoint] = []
    variants: list[float | None] = [None] if lams is None else list(lams)
    for index, lam in enumerate(variants):
        variant, chosen = _variant(model, lam, template, layouts)
        points.append(
            _probe_point(
                variant, run, loss, lam, chosen, settings, layouts, _Progress(progress, lam, index, len(variants))
            )
        )
    return ProbeReport(points, _notes(points))


class _Progress:
    """Report steps of one λ as a share of the whole."""

    def __init__(self, report: Callable[[str, int, int], None] | None, lam: float | None, index: int, count: int):
        self._report, self._index, self._count = report, index, count
        self._label = "" if lam is None else f"λ={lam:g} "

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._report is not None:
            self._report(self._label + what, self._index * total + done, self._count * total)


def _variant(
    model: nn.Module,
    lam: float | None,
    template: Conditioning | None,
    layouts: Mapping[type[nn.Module] | str, Layout] | None,
) -> tuple[nn.Module, Conditioning | None]:
    if lam is None:
        layers = list(conditioned_layers(model).values())
        return model, layers[0].conditioning() if layers else None
    copied = copy.deepcopy(model)
    if conditioned_layers(copied):
        strip(copied)
    if lam == 0:
        return copied, None
    chosen = replace(template or Conditioning(), lam=lam)
    condition(copied, chosen, layouts=layouts)
    return copied, chosen


def _probe_point(
    model: nn.Module,
    run: Callable[[nn.Module], object],
    loss: Callable[[nn.Module], Tensor] | None,
    lam: float | None,
    chosen: Conditioning | None,
    settings: ProbeSettings,
    layouts: Mapping[type[nn.Module] | str, Layout] | None,
    progress: _Progress,
) -> ProbePoint:
    attentions = find_attention(model, layouts=layouts)
    picked = evenly_spaced(attentions, settings.layers)
    jobs = [
        (attention, head)
        for attention in picked
        for head in (range(attention.heads) if settings.heads is None else settings.heads)
        if head < attention.heads
    ]
    control = picked[0] if settings.control and _is_softmax(picked[0]) else None
    total = len(jobs) + 2 + (control is not None)
    progress("forward pass, spectra", 0, total)
    captured = capture_inputs(model, attentions, lambda: run(model), entries=8)
    spectra = spectra_of(attentions)
    saturation = saturation_of(attentions, captured)
    progress("gradients", 1, total)
    gradients = {} if loss is None else gradient_norms(model, picked, lambda: loss(model))
    heads: dict[str, list[HeadProbe]] = {attention.name: [] for attention in picked}
    for done, (attention, head) in enumerate(jobs):
        progress(f"κ(J) {attention.name} head {head}", done + 2, total)
        heads[attention.name].append(probe_head(attention, captured[attention.name], head, settings))
    by_name = {layer.name: layer for layer in saturation}
    layers = [
        LayerProbe(a.name, a.family, by_name.get(a.name), gradients.get(a.name, {}), heads[a.name]) for a in picked
    ]
    weyl = _weyl(attentions, chosen)
    independent = None
    if control is not None and captured[control.name].complete:
        progress(f"κ(J) {control.name}, independent tokens", total - 1, total)
        independent = _control(control, captured[control.name], settings)
    return ProbePoint(
        lam=lam,
        conditioning=None if chosen is None else chosen.to_dict(),
        layers=layers,
        spectra=spectra,
        saturation=saturation,
        weyl=weyl,
        expected_logit=_logit(attentions, chosen),
        control=independent,
    )


def _is_softmax(attention: Attention) -> bool:
    return unsupported(attention) is None and attention.family not in CHANNEL_FAMILIES


def _control(attention: Attention, captured: AttentionInput, settings: ProbeSettings) -> LayerProbe:
    """Probe the first head asked for on independent tokens: normal, then layer-normed; no masks and position biases."""
    assert captured.queries_BND is not None
    assert captured.keys_BME is not None
    draws = torch.Generator().manual_seed(0)
    x_BND, z_BME = (
        torch.nn.functional.layer_norm(torch.randn(1, *given.shape[1:], generator=draws), given.shape[2:]).to(
            given.device
        )
        for given in (captured.queries_BND, captured.keys_BME)
    )
    if x_BND.shape == z_BME.shape:
        z_BME = x_BND
    given = AttentionInput(attention.heads, x_BND, z_BME)
    saturation = saturation_of([attention], {attention.name: given})[0]
    head = 0 if settings.heads is None else min(settings.heads)
    found = probe_head(attention, given, head, settings)
    return LayerProbe(attention.name, attention.family, saturation, {}, [found], independent=True)


def probe_head(attention: Attention, captured: AttentionInput, head: int, settings: ProbeSettings) -> HeadProbe:
    """Return κ(J), bounds and norms of one head."""
    reason = unsupported(attention) or (None if captured.complete else "the run did not reach it")
    if reason is not None:
        return HeadProbe(head, reason=reason)
    assert captured.queries_BND is not None
    all_tokens = captured.queries_BND.shape[1]
    limit = settings.max_tokens or affordable_tokens(attention, captured)
    bound = bind_head(attention, captured, head=head, max_tokens=limit)
    jacobian = head_jacobian(bound)
    try:
        found = condition_number(jacobian)
    except ValueError as error:
        return HeadProbe(head, len(bound.tokens_ND), all_tokens, reason=str(error))
    blocks: dict[str, JacobianCondition] = {}
    published, valid = None, None
    if isinstance(bound, SoftmaxHead) and isinstance(jacobian, SoftmaxJacobian):
        blocks = _blocks(jacobian) if settings.blocks else {}
        valid = valid_bounds(jacobian, blocks=blocks)
        norms = valid.norms
        published = published_bound(bound)
    else:
        norms = {role: spectral_norm(jacobian, (role,)) for role in ROLES}
    return HeadProbe(head, len(bound.tokens_ND), all_tokens, found, blocks, norms, published, valid)


def affordable_tokens(attention: Attention, captured: AttentionInput) -> int | None:
    """Return how many tokens keep the Gram matrix within `GRAM_LIMIT`, None for all of them.

    Softmax attention takes the smaller of N d and 3 D d, attention between channels d min(N, D).
    """
    assert captured.queries_BND is not None
    width, head_dim = captured.queries_BND.shape[2], attention.head_dim
    columns = width * head_dim * (1 if attention.family in CHANNEL_FAMILIES else 3)
    return None if columns <= GRAM_LIMIT else max(2, GRAM_LIMIT // head_dim)


def _blocks(jacobian: SoftmaxJacobian) -> dict[str, JacobianCondition]:
    found = {}
    for role in ROLES:
        try:
            found[role] = condition_number(jacobian, (role,))
        except ValueError:
            continue
    return found


def _is_plain_identity(chosen: Conditioning | None) -> bool:
    """Whether λI, λ absolute, sits on whole projections or on each head."""
    return (
        chosen is not None and chosen.correction == "identity" and not chosen.relative and chosen.placement != "fused"
    )


def _weyl(attentions: Sequence[Attention], chosen: Conditioning | None) -> dict[str, dict[str, float]]:
    if not _is_plain_identity(chosen):
        return {}
    assert chosen is not None
    bounds: dict[str, dict[str, float]] = {}
    for spectrum in spectra_of(attentions, stored=True):
        if spectrum.role in chosen.targets:
            largest = spectrum.sigma_max if chosen.placement == "full" else float(spectrum.heads_Hk[:, 0].max())
            bounds.setdefault(spectrum.attention, {})[spectrum.role] = weyl_bound(largest, chosen.lam)
    return bounds


def _logit(attentions: Sequence[Attention], chosen: Conditioning | None) -> float | None:
    if not _is_plain_identity(chosen):
        return None
    assert chosen is not None
    return identity_logit(chosen.lam, attentions[0].head_dim) if {"q", "k"} <= set(chosen.targets) else None


def _notes(points: Sequence[ProbePoint]) -> list[str]:
    notes: dict[str, None] = {}
    for point in points:
        for layer in point.rows:
            if "Nystr" in layer.family:
                notes[
                    f"{layer.name}: κ(J) is of the exact softmax attention that Nyström's approximation stands for"
                ] = None
            for head in layer.heads:
                if head.reason is not None:
                    notes[f"{layer.name}: no κ(J): {head.reason}"] = None
                elif head.tokens < head.all_tokens:
                    notes[f"{layer.name}: {head.tokens} of {head.all_tokens} tokens, evenly spaced"] = None
    return list(notes)
