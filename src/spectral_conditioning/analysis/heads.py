"""One head of an attention module as tensors: its weights, biases, scale, masks and the tokens of a captured run.

Theorem 3.3 is about softmax(s q·k + bias) v. Attention that is something else (rotary positions, normalised queries,
mixed heads) is refused by name, never approximated in silence; channel attention has a form of its own
(attention_inputs.ChannelHead).
"""

# N query tokens, M key tokens, D, E widths, H heads, d head width. The first entry of the captured batch is taken.

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.analysis.attention_inputs import ChannelHead, SoftmaxHead
from spectral_conditioning.analysis.capture import AttentionInput, spaced
from spectral_conditioning.conditioning import Attention, Projection
from spectral_conditioning.errors import SpectralError

XCA = "timm XCiT (XCA)"
DAVIT_CHANNEL = ("timm DaViT channel", "timm DaViT channel v2")
CHANNEL_FAMILIES = (XCA, *DAVIT_CHANNEL)
# Family → why its output is not softmax(s q·k + bias) v.
OTHER_ATTENTION = {
    "timm EVA, RoPE": "it rotates queries and keys by position",
    "transformers GPT-NeoX": "it rotates queries and keys by position",
    "transformers Llama, Mistral, Qwen": "it rotates queries and keys by position",
    "timm CaiT": "it mixes heads before and after the softmax (talking heads)",
    "timm SwinV2": "it normalises queries and keys (cosine attention)",
}


class UnsupportedAttentionError(SpectralError):
    """An attention module whose Jacobian or logits have no closed form here."""


def bind_head(
    attention: Attention,
    captured: AttentionInput,
    *,
    head: int = 0,
    max_tokens: int | None = None,
    rank_tolerance: float = 1e-6,
) -> SoftmaxHead | ChannelHead:
    """Return query head `head` of a module with the tokens, masks and position biases of its captured run, in float64.

    max_tokens: keep this many tokens, evenly spaced and the first among them; attention is then among those tokens only.
    Raises UnsupportedAttentionError for attention of another form, and where the run did not reach the module.
    """
    reason = unsupported(attention)
    if reason is None and not captured.complete:
        reason = "the run did not reach it"
    if reason is not None:
        raise UnsupportedAttentionError(f"{attention.name} ({attention.family}) has no Jacobian here: {reason}")
    if not 0 <= head < attention.heads:
        raise UnsupportedAttentionError(
            f"{attention.name} has heads 0 to {attention.heads - 1}; head {head} was asked for"
        )
    assert captured.queries_BND is not None
    assert captured.keys_BME is not None
    x_ND, z_ME = captured.queries_BND[0].double(), captured.keys_BME[0].double()
    shared = x_ND.shape == z_ME.shape and torch.equal(x_ND, z_ME)
    rows, columns = spaced(len(x_ND), max_tokens), spaced(len(z_ME), max_tokens)
    fields: dict[str, Any] = {"tokens_ND": x_ND[rows], "rank_tolerance": rank_tolerance}
    for role, projection in attention.projections.items():
        of_head = head * projection.heads // attention.heads
        weight = projection.per_head(projection.effective())[of_head].double()
        bias = projection_bias(attention, projection)
        fields |= {_WEIGHT[role]: weight}
        if bias is not None:
            fields |= {_BIAS[role]: bias.view(projection.heads, -1)[of_head].double()}
    if attention.family in CHANNEL_FAMILIES:
        return _channel_head(attention, fields, head, tokens=len(x_ND))
    bias_NM = _logit_bias(attention, captured, fields, head)
    return SoftmaxHead(
        **fields,
        context_ME=None if shared else z_ME[columns],
        scale=attention.scale,
        bias_NM=None if bias_NM is None else bias_NM[rows][:, columns],
    )


def unsupported(attention: Attention) -> str | None:
    """Return why a module has no closed-form Jacobian here, or None."""
    if attention.family in OTHER_ATTENTION:
        return OTHER_ATTENTION[attention.family]
    name = normalises_queries(attention)
    return f"it normalises queries and keys ({name})" if name else None


def normalises_queries(attention: Attention) -> str | None:
    """Return the name of the layer that normalises queries or keys between projection and logits, or None."""
    for name in ("q_norm", "k_norm"):
        norm = getattr(attention.module, name, None)
        if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
            return name
    return None


def projection_bias(attention: Attention, projection: Projection) -> Tensor | None:
    """Return the bias of a projection, (heads·d,) head after head, detached; None where it has none."""
    layer, module = projection.layer, attention.module
    if isinstance(layer, nn.MultiheadAttention):
        stacked = layer.in_proj_bias
        return None if stacked is None else stacked.detach().view(3, -1)["qkv".index(projection.role)]
    named = getattr(module, f"{projection.role}_bias", None)
    if isinstance(named, Tensor):
        return named.detach()
    bias = getattr(layer, "bias", None)
    return bias.detach()[projection.rows.to(bias.device)] if isinstance(bias, Tensor) else None


_WEIGHT = {"q": "q_dD", "k": "k_dE", "v": "v_oE"}
_BIAS = {"q": "q_bias_d", "k": "k_bias_d", "v": "v_bias_o"}


def _channel_head(attention: Attention, fields: dict[str, Any], head: int, *, tokens: int) -> ChannelHead:
    if attention.family == XCA:
        temperature: Any = attention.module.temperature
        return ChannelHead(**fields, temperature=float(temperature.detach().flatten()[head]))
    if attention.family == "timm DaViT channel v2":
        scale = tokens**-0.5 if attention.module.dynamic_scale else attention.head_dim**-0.5
        return ChannelHead(**fields, temperature=scale, normalised=False)
    # DaViT's softmax(s kᵀv) acts on q: in the form softmax(q̂ k̂ᵀ) v its keys are the queries, its values the keys.
    turned = {"q": "k", "k": "v", "v": "q"}
    moved = {key: value for key, value in fields.items() if key not in {*_WEIGHT.values(), *_BIAS.values()}}
    for role, source in turned.items():
        moved[_WEIGHT[role]] = fields[_WEIGHT[source]]
        moved[_BIAS[role]] = fields.get(_BIAS[source])
    return ChannelHead(**moved, temperature=attention.head_dim**-0.5, normalised=False)


def _logit_bias(attention: Attention, captured: AttentionInput, fields: dict[str, Any], head: int) -> Tensor | None:
    """Return what is added to the logits of the head, (N, M) over all tokens captured; None for nothing."""
    assert captured.queries_BND is not None
    assert captured.keys_BME is not None
    shape, device = (captured.queries_BND.shape[1], captured.keys_BME.shape[1]), captured.queries_BND.device
    if captured.logits is not None and captured.logits.shape[-2:] == shape:
        weights = {key: fields[key] for key in (*_WEIGHT.values(), *_BIAS.values()) if key in fields}
        x_ND, z_ME = captured.queries_BND[0].double(), captured.keys_BME[0].double()
        plain = SoftmaxHead(x_ND, context_ME=z_ME, scale=attention.scale, **weights)
        bias_NM = captured.logits[0, head].double() - plain.logits_NM
        rounding = 1e-4 * (1 + float(plain.logits_NM.abs().max()))
        return None if float(bias_NM.abs().max()) < rounding else bias_NM
    if captured.causal:
        return torch.full(shape, -math.inf, dtype=torch.float64, device=device).triu(1)
    if captured.mask is None:
        return None
    full = captured.mask.expand(
        max(1, captured.mask.shape[0] if captured.mask.ndim == 4 else 1), attention.heads, *shape
    )
    bias_NM = full[0, head]
    if bias_NM.dtype == torch.bool:
        return torch.zeros(shape, dtype=torch.float64, device=device).masked_fill(~bias_NM, -math.inf)
    return bias_NM.double() if bool(bias_NM.any()) else None
