"""Does attention start as the identity? Entropy, self-weight and logit size of every layer on a real batch.

On layer-normed tokens x (‖x‖² ≈ D, so ‖x_h‖² ≈ d in the slice of one head) a correction λI on W_Q and W_K puts about λ²√d on the diagonal
logits: 800 for λ = 10 and d = 64. The softmax is then the identity to machine precision and the gradient of W_Q and W_K vanishes,
although κ(W) and κ(J) look excellent. A low condition number alone does not mean a layer that can learn.
"""

# B batch entries (images, windows), N query tokens, M key tokens, H heads, d head width.

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning import Attention, Layout, Projection, find_attention

# Softmax over channels, or queries and keys of unit norm: the scale of W_Q and W_K cancels.
EXEMPT = ("timm XCiT (XCA)", "timm DaViT channel", "timm DaViT channel v2", "timm SwinV2")
SENSITIVITY_LIMIT = 0.01


@dataclasses.dataclass(frozen=True)
class LayerSaturation:
    """One attention layer, averaged over batch, heads and query tokens.

    entropy: of an attention row as a fraction of log M, 1 for uniform and 0 for one-hot. self_weight: attention of a token to itself,
    None where queries and keys are not the same tokens. max_logit: largest |s q·k|, without masks and position biases.
    sensitivity: variance of the logits under the attention weights over their variance under equal weights. It is 1 for flat
    attention and 0 when the softmax has become a hard maximum, also among equal tokens (blank patches, padding), which keep
    entropy up and self-weight down. It scales the gradient that reaches the logits. saturated: sensitivity below 0.01.
    exempt: the family normalises q and k, so nothing was measured.
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
        weight = "" if worst.self_weight is None else f"a token gives {worst.self_weight:.0%} of its attention to itself, "
        return (
            f"Saturated attention: {self.saturated} of {self.total} layers start close to the identity, each token looking at itself "
            f"and at tokens equal to it ({worst.name}: {weight}largest logit {worst.max_logit:.0f}, softmax sensitivity "
            f"{worst.sensitivity:.0e}, where 1 is flat attention). Tokens hardly exchange information and the gradient of W_Q and W_K "
            "nearly vanishes, however low the condition number is; training may stall. To try: a smaller conditioning.lam, "
            "conditioning=identity_fused or identity_q (λ on Q alone), conditioning=polar, or conditioning=scaled_identity."
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

    Evaluates under no_grad in eval mode and leaves the model, its modes and all random generators as they were. At most `max_tokens`
    query tokens of at most `max_entries` batch entries are looked at, evenly spaced. A layer that the run does not reach is left out.

    Raises ConditioningError as `find_attention` does.
    """
    attentions = find_attention(model, include=include, layouts=layouts)
    captured: dict[tuple[str, str], Tensor] = {}
    handles = [
        handle for attention in attentions if attention.family not in EXEMPT for handle in _hooks(attention, captured)
    ]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    lam = None
    layers = []
    for attention in attentions:
        lam = lam if lam is not None else _lam(attention)
        if attention.family in EXEMPT:
            layers.append(LayerSaturation(attention.name, attention.family, None, None, None, None, saturated=False, exempt=True))
        elif all((attention.name, role) in captured for role in "qk"):
            q, k = captured[attention.name, "q"], captured[attention.name, "k"]
            layers.append(_measure(attention, q, k, max_tokens=max_tokens, max_entries=max_entries))
    return SaturationReport(tuple(layers), lam)


def _lam(attention: Attention) -> float | None:
    settings = getattr(attention.projections["q"].layer, "conditioning", None)
    return float(settings().lam) if callable(settings) else None


def _hooks(attention: Attention, captured: dict[tuple[str, str], Tensor]) -> list[Any]:
    """Record q and k as (B, N, H, d): from the layers' outputs, or from the module's inputs where it reads the weights itself."""
    handles: list[Any] = []
    module = attention.module

    def from_inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tokens = [
            value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.is_floating_point()
        ]
        is_torch = isinstance(module, nn.MultiheadAttention)
        for position, role in enumerate("qk"):
            x = tokens[position] if is_torch and len(tokens) > position else tokens[0]
            if is_torch and x.ndim == 3 and not module.batch_first:
                x = x.transpose(0, 1)
            projection = attention.projections[role]
            weight = projection.effective().to(x.dtype)
            y = x @ weight.T
            bias = getattr(module, "in_proj_bias", None) if is_torch else getattr(projection.layer, "bias", None)
            if isinstance(bias, Tensor):
                y = y + bias[projection.rows.to(bias.device)].to(x.dtype)
            captured[attention.name, role] = _heads(y, projection)

    handles.append(module.register_forward_pre_hook(from_inputs, with_kwargs=True))
    for role in "qk":
        projection = attention.projections[role]
        if projection.layer is not module:
            handles.append(
                projection.layer.register_forward_hook(_from_output(attention.name, role, projection, captured))
            )
    return handles


def _from_output(
    name: str, role: str, projection: Projection, captured: dict[tuple[str, str], Tensor]
) -> Callable[[nn.Module, Any, Tensor], None]:
    convolution = isinstance(projection.layer, nn.Conv1d | nn.Conv2d)

    def hook(_: nn.Module, args: Any, output: Tensor) -> None:
        y = output.flatten(2).transpose(1, 2) if convolution else output
        captured[name, role] = _heads(y[..., projection.rows.to(y.device)], projection)

    return hook


def _heads(y: Tensor, projection: Projection) -> Tensor:
    """Return (B, N, H, d) from (…, N, H·d)."""
    y = y.reshape(-1, *y.shape[-2:]) if y.ndim != 2 else y[None]
    return y.unflatten(-1, (projection.heads, projection.head_dim)).detach()


def _spaced(count: int, limit: int, device: torch.device) -> Tensor:
    return torch.linspace(0, count - 1, min(count, limit), device=device).round().long()


def _measure(
    attention: Attention, q_BNHd: Tensor, k_BMHd: Tensor, *, max_tokens: int, max_entries: int
) -> LayerSaturation:
    entries = _spaced(min(len(q_BNHd), len(k_BMHd)), max_entries, q_BNHd.device)
    rows = _spaced(q_BNHd.shape[1], max_tokens, q_BNHd.device)
    q, k = q_BNHd[entries][:, rows].float(), k_BMHd[entries].float()
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    logits_BHNM = attention.scale * torch.einsum("bnhd,bmhd->bhnm", q, k)
    log_p = torch.log_softmax(logits_BHNM, dim=-1)
    p = log_p.exp()
    sensitivity = float(_variance(logits_BHNM, p).mean() / _variance(logits_BHNM).mean().clamp_min(1e-30))
    entropy = float(-(p * log_p).sum(-1).mean() / math.log(max(2, k.shape[1])))
    same_tokens = q_BNHd.shape[1] == k_BMHd.shape[1]
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
