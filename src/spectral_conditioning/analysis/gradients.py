"""Norms of the gradient that reaches W_Q, W_K and W_V on a real batch.

A saturated layer has a low κ(J) and no gradient in W_Q and W_K: the norms tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from spectral_conditioning.analysis.observe import observing
from spectral_conditioning.conditioning import Attention
from spectral_conditioning.conditioning.storage import as_matrix, raw_tensor


def gradient_norms(
    model: nn.Module, attentions: Sequence[Attention], loss: Callable[[], Tensor]
) -> dict[str, dict[str, float]]:
    """Return the Frobenius norm of ∂loss/∂W for each role of each attention module, {name: {"q": …, "k": …, "v": …}}.

    W is the trained weight; C has no gradient, so the norm is that of W + C as well. Projections that are frozen, or
    that the loss does not reach, are left out. No `.grad` is touched, nor anything else of the model.
    """
    projections = [
        (attention, role, projection) for attention in attentions for role, projection in attention.projections.items()
    ]
    weights: dict[int, Tensor] = {}
    for _, _, projection in projections:
        weight = raw_tensor(projection.layer, projection.tensor_name)
        if weight.requires_grad:
            weights[id(weight)] = weight
    with observing(model, gradient=True):
        found = torch.autograd.grad(loss(), list(weights.values()), allow_unused=True)
    by_weight = dict(zip(weights, found, strict=True))
    norms: dict[str, dict[str, float]] = {}
    for attention, role, projection in projections:
        gradient = by_weight.get(id(raw_tensor(projection.layer, projection.tensor_name)))
        if gradient is not None:
            rows = as_matrix(projection.layer, gradient)[projection.rows.to(gradient.device)]
            norms.setdefault(attention.name, {})[role] = float(rows.norm())
    return norms
