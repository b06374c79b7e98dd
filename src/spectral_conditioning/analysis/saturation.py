"""Does attention start as the identity? Entropy, self-weight and logit size of every layer on a real batch.

On layer-normed tokens x (‖x‖² ≈ D, so ‖x_h‖² ≈ d in the slice of one head) a correction λI on W_Q and W_K puts about
λ²√d on the diagonal logits: 800 for λ = 10 and d = 64. The softmax is then the identity to machine precision and the
gradient of W_Q and W_K vanishes, although κ(W) and κ(J) look excellent. A low condition number alone does not mean a
layer that can learn.
"""

# B batch entries (images, windows), N query tokens, M key tokens, H heads, d head width.

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.analysis.capture import AttentionInput, capture_inputs, spaced
from spectral_conditioning.analysis.heads import CHANNEL_FAMILIES, normalises_queries, projection_bias
from spectral_conditioning.analysis.limits import SENSITIVITY_LIMIT
from spectral_conditioning.conditioning import Attention, Layout, find_attention

# Softmax over channels, or queries and keys of unit norm: the scale of W_Q and W_K cancels.
EXEMPT = (*CHANNEL_FAMILIES, "timm SwinV2")


@dataclasses.dataclass(frozen=True)
class LayerSaturation:
    """One attention layer, averaged over batch, heads and query tokens.

    entropy: of an attention row as a fraction of log M, 1 for uniform and 0 for one-hot. self_weight: attention of a
    token to itself, None where queries and keys are not the same tokens. max_logit: largest |s q·k|, without masks and
    position biases. sensitivity: variance of the logits under the attention weights over their variance under equal
    weights. It is 1 for flat attention and 0 when the softmax has become a hard maximum, also among equal tokens (blank
    patches, padding), which keep entropy up and self-weight down. It scales the gradient that reaches the logits.
    saturated: sensitivity below 0.003. exempt: attention over channels, or of normalised queries and keys, so nothing was
    measured.
    """

    name: str
    family: str
    entropy: float | None
    self_weight: float | None
    max_logit: float | None
    sensitivity: float | None
    saturated: bool
    exempt: bool = False


@dataclasses.dataclass(frozen=True)
class SaturationReport:
    """All attention layers in the order in which the model holds them."""

    layers: tuple[LayerSaturation, ...]
    lam: float | None

    @property
    def total(self) -> int:
        """Number of layers that were measured."""
        return sum(not layer.exempt for layer in self.layers)

    @property
    def saturated(self) -> int:
        """Number of layers that start saturated."""
        return sum(layer.saturated for layer in self.layers)

    def warning(self) -> str | None:
        """Return one paragraph about saturated layers, what that means and what to try; None when there are none."""
        if not self.saturated:
            return None
        worst = min((layer for layer in self.layers if layer.saturated), key=lambda layer: layer.sensitivity or 0.0)
        weight = (
            "" if worst.self_weight is None else f"a token gives {worst.self_weight:.0%} of its attention to itself, "
        )
        return (
            f"Saturated attention: {self.saturated} of {self.total} layers start close to the identity, each token looking at "
            f"itself and at tokens equal to it ({worst.name}: {weight}largest logit {worst.max_logit:.0f}, softmax sensitivity "
            f"{worst.sensitivity:.0e}, where 1 is flat attention). Tokens hardly exchange information and the gradient of "
            "W_Q and W_K nearly vanishes, however low the condition number is; training may stall. To try: a smaller "
            "conditioning.lam, conditioning=identity_fused or identity_q (λ on Q alone), conditioning=polar, or "
            "conditioning=scaled_identity."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        layers = [dataclasses.asdict(layer) for layer in self.layers]
        return {"layers": layers, "saturated": self.saturated, "total": self.total}


def measure_saturation(
    model: nn.Module,
    run: Callable[[], object],
    *,
    include: Sequence[str] = (),
    layouts: Mapping[type[nn.Module] | str, Layout] | None = None,
    max_tokens: int = 256,
    max_entries: int = 8,
) -> SaturationReport:
    """Measure every attention layer of `model` (plain or conditioned) during one call of `run`, which runs it on a batch.

    Evaluates under no_grad in eval mode and leaves the model, its modes and all random generators as they were. At most
    `max_tokens` query tokens of at most `max_entries` batch entries are looked at, evenly spaced. A layer that the run
    does not reach is left out.

    Raises ConditioningError as `find_attention` does.
    """
    attentions = find_attention(model, include=include, layouts=layouts)
    captured = capture_inputs(model, attentions, run, entries=max_entries, softmax=False)
    return SaturationReport(tuple(saturation_of(attentions, captured, max_tokens=max_tokens)), _lam(attentions))


def saturation_of(
    attentions: Sequence[Attention], captured: Mapping[str, AttentionInput], *, max_tokens: int = 256
) -> list[LayerSaturation]:
    """Return the saturation of layers from inputs captured before, as `measure_saturation` does."""
    layers = []
    for attention in attentions:
        if attention.family in EXEMPT or normalises_queries(attention):
            layers.append(_exempt(attention))
        elif captured[attention.name].complete:
            layers.append(_measure(attention, captured[attention.name], max_tokens))
    return layers


def identity_logit(lam: float, head_dim: int) -> float:
    """Return λ²√d, the logit that λI on W_Q and W_K gives a layer-normed token on its own key (scale 1/√d, W itself left out)."""
    return lam**2 * math.sqrt(head_dim)


def _lam(attentions: Sequence[Attention]) -> float | None:
    for attention in attentions:
        settings = getattr(attention.projections["q"].layer, "conditioning", None)
        if callable(settings):
            return float(settings().lam)
    return None


def _exempt(attention: Attention) -> LayerSaturation:
    return LayerSaturation(attention.name, attention.family, None, None, None, None, saturated=False, exempt=True)


def _project(attention: Attention, role: str, tokens_BND: Tensor) -> Tensor:
    """Return W x + b in float32, (B, N, H, d), with the heads of the role."""
    projection = attention.projections[role]
    bias = projection_bias(attention, projection)
    y = torch.nn.functional.linear(
        tokens_BND.float(), projection.effective().float(), None if bias is None else bias.float()
    )
    return y.reshape(*y.shape[:2], projection.heads, projection.head_dim)


def _measure(attention: Attention, captured: AttentionInput, max_tokens: int) -> LayerSaturation:
    x_BND, z_BME = captured.queries_BND, captured.keys_BME
    assert x_BND is not None
    assert z_BME is not None
    rows = spaced(x_BND.shape[1], max_tokens).to(x_BND.device)
    q, k = _project(attention, "q", x_BND[:, rows]), _project(attention, "k", z_BME)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    logits_BHNM = attention.scale * torch.einsum("bnhd,bmhd->bhnm", q, k)
    log_p = torch.log_softmax(logits_BHNM, dim=-1)
    p = log_p.exp()
    sensitivity = float(_variance(logits_BHNM, p).mean() / _variance(logits_BHNM).mean().clamp_min(1e-30))
    entropy = max(0.0, float(-(p * log_p).sum(-1).mean() / math.log(max(2, k.shape[1]))))
    same_tokens = x_BND.shape[1] == z_BME.shape[1]
    self_weight = float(p.gather(-1, rows.expand(*p.shape[:2], -1)[..., None]).mean()) if same_tokens else None
    return LayerSaturation(
        attention.name,
        attention.family,
        entropy=entropy,
        self_weight=self_weight,
        max_logit=float(logits_BHNM.abs().max()),
        sensitivity=sensitivity,
        saturated=sensitivity < SENSITIVITY_LIMIT,
    )


def _variance(logits_BHNM: Tensor, p_BHNM: Tensor | None = None) -> Tensor:
    """Variance of each row of logits, under the weights p or under equal ones, (B, H, N)."""
    if p_BHNM is None:
        p_BHNM = torch.full_like(logits_BHNM, 1 / logits_BHNM.shape[-1])
    centred = logits_BHNM - (p_BHNM * logits_BHNM).sum(-1, keepdim=True)
    return (p_BHNM * centred.square()).sum(-1)
