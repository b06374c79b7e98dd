"""Landmarks of Nyström attention: segment means and an iterative pseudo-inverse."""

# B batch, N tokens, H heads, d head width, m landmarks.

from __future__ import annotations

import torch
from torch import Tensor

STARTS = ("batch", "matrix", "norms")


def start_value(kernel: Tensor, start: str) -> Tensor:
    """Return Z₀ = Kᵀ / c, from which the iteration converges to K⁺ when ‖I − K Z₀‖ < 1.

    kernel: (..., m, m), rows of positive numbers that sum to 1. start: "batch", c is the largest column sum over the whole
    tensor, as the reference does, which ties each sequence to its batch-mates; "matrix", the largest of each matrix;
    "norms", ‖K‖₁ ‖K‖_∞ of each matrix (Razavi et al. 2014). With rows that sum to 1 the last two differ by rounding.
    """
    column_sums = kernel.sum(dim=-2)
    if start == "batch":
        scale = column_sums.max()
    else:
        scale = column_sums.amax(dim=-1)[..., None, None]
        if start == "norms":
            scale = scale * kernel.sum(dim=-1).amax(dim=-1)[..., None, None]
    return kernel.transpose(-1, -2) / scale


def pseudo_inverse(kernel: Tensor, *, iterations: int, start: str) -> Tensor:
    """Approximate the Moore-Penrose inverse without a decomposition.

        Z ← ¼ Z (13 I − K Z (15 I − K Z (7 I − K Z)))

    kernel K: (B, H, m, m). Third-order convergence (Xiong et al. 2021, equation 11). start: see `start_value`.
    """
    size = kernel.shape[-1]
    K = kernel.reshape(-1, size, size)
    Z = start_value(kernel, start).reshape(-1, size, size)
    eye = torch.eye(size, dtype=K.dtype, device=K.device)
    for _ in range(iterations):
        KZ = torch.bmm(K, Z)
        inner = torch.baddbmm(15 * eye, KZ, 7 * eye - KZ, alpha=-1)
        inner = torch.baddbmm(13 * eye, KZ, inner, alpha=-1)
        Z = 0.25 * torch.bmm(Z, inner)
    return Z.reshape(kernel.shape)


def segment_means(x_BHNd: Tensor, landmarks: int) -> Tensor:
    """Return the means of `landmarks` equal segments, (B, H, m, d); N must be a multiple of m."""
    B, H, N, d = x_BHNd.shape
    return x_BHNd.reshape(B, H, landmarks, N // landmarks, d).mean(dim=-2)


def segment_weights(lengths_B: Tensor, tokens: int, landmarks: int) -> Tensor:
    """Return P (B, m, N): row s averages segment s, where token i of a sequence of length n lies in segment ⌊i m / n⌋.

    The segments follow the sequence's own length, so padding never moves a landmark; a sequence with n < m has m − n empty
    segments, whose rows are zero. For n a multiple of m the rows are those of `segment_means`.
    """
    position_N = torch.arange(tokens, device=lengths_B.device)
    segment_BN = position_N * landmarks // lengths_B.clamp(min=1)[:, None]
    segment_BN = segment_BN.masked_fill(position_N >= lengths_B[:, None], landmarks)
    belongs_BmN = segment_BN[:, None] == torch.arange(landmarks, device=lengths_B.device)[:, None]
    return belongs_BmN / belongs_BmN.sum(dim=-1, keepdim=True).clamp(min=1)
