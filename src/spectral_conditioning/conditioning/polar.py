"""Polar factors and largest singular values of stacks of matrices, without SVD.

With W = U S Vᵀ, polar(W) = U Vᵀ. An odd polynomial p acts on singular values alone, p(W) = U p(S) Vᵀ, so a composition of
polynomials that carries [ℓ, 1] to 1 turns W/σ into U Vᵀ. Each step here is the quintic p(x) = a x + b x³ + c x⁵ that is closest to 1
on the interval reached so far (equioscillation, found by Remez exchange): three matrix products a step, thirteen steps from
ℓ = 5e-7 and eight from 1e-3 to an error of 1e-6.

σ_max is bounded from above: σ_max ≤ (Σ σᵢ^{4q})^{1/4q} = ‖(WᵀW)^q‖_F^{1/2q} with q = 2^SQUARINGS by repeated squaring. For n singular
values the bound is at most n^{1/4q} σ_max: 0.65 % high for 768 equal ones at q = 256, and within 0.1 % for Gaussian matrices.
"""

# B batch, n rows, m columns with n ≥ m.

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

SQUARINGS = 8
# Rounding in the Gram matrix could bring the bound below σ_max by a few units in the last place.
_ROUNDING_MARGIN = 1 + 2e-6
SMALLEST_RATIO = 5e-7
# ‖I − XᵀX‖_F up to which X counts as a polar factor; what is missed is a null direction (≥ 1) or κ(W) > 1e6.
ORTHOGONALITY = 1e-2
_EXTRA_STEPS = 6


@dataclass(frozen=True)
class Polar:
    """Polar factors (B, n, m) with σ̂ ≥ σ_max (B,), and what had to be done for some of the matrices.

    zero: indices of matrices without a finite direction, for which factor and σ̂ are 0.
    completed: {index: number of null directions completed by SVD}.
    """

    factors: Tensor
    sigma: Tensor
    zero: tuple[int, ...]
    completed: dict[int, int]


def sigma_upper(matrices: Tensor, *, squarings: int = SQUARINGS) -> Tensor:
    """Return σ̂ ≥ σ_max for each matrix of (B, n, m), at most min(n, m)^{1/2^(squarings + 2)} times too high; 0 for zero ones."""
    largest = matrices.abs().amax((-2, -1), keepdim=True)
    scaled = matrices / torch.where(largest > 0, largest, torch.ones_like(largest))
    power = scaled.mT @ scaled if scaled.shape[-2] >= scaled.shape[-1] else scaled @ scaled.mT
    log_norm = torch.zeros_like(largest[:, 0, 0])
    for _ in range(squarings):
        norm = torch.linalg.matrix_norm(power, keepdim=True).clamp_min(torch.finfo(power.dtype).tiny)
        power = power / norm
        log_norm = 2 * (log_norm + norm[:, 0, 0].log())
        power = power @ power
    log_norm = log_norm + torch.linalg.matrix_norm(power).clamp_min(torch.finfo(power.dtype).tiny).log()
    bound = (log_norm / 2 ** (squarings + 1)).exp() * _ROUNDING_MARGIN
    return bound * largest[:, 0, 0]


def polar(matrices: Tensor, *, smallest_ratio: float = SMALLEST_RATIO) -> Polar:
    """Return polar(W) and σ̂ for each matrix of (B, n, m), computed in the dtype of `matrices` (float32 or float64).

    smallest_ratio: the σ_min/σ_max that the polynomials start from; matrices below it take more steps, and exact null directions
    are completed by SVD and reported.
    """
    sigma = sigma_upper(matrices)
    wide = matrices.shape[-2] < matrices.shape[-1]
    tall = matrices.mT if wide else matrices
    safe = torch.where(sigma > 0, sigma, torch.ones_like(sigma))
    x = tall / safe[:, None, None]
    for a, b, c in schedule(smallest_ratio, _final_error(matrices.dtype)):
        x = _quintic(x, a, b, c)
    factors, completed, zero = _repair(x, tall, sigma)
    return Polar(factors.mT if wide else factors, sigma, zero, completed)


def _repair(x: Tensor, tall: Tensor, sigma: Tensor) -> tuple[Tensor, dict[int, int], tuple[int, ...]]:
    """Finish the matrices that the common schedule left short of orthogonal, and name the zero ones."""
    zero = tuple(torch.nonzero(sigma == 0).flatten().tolist())
    for _ in range(_EXTRA_STEPS):
        short = _short(x, zero)
        if not short:
            return x, {}, zero
        x[short] = _quintic(x[short], *_first_quintic())
        x[short] = _quintic(x[short], 1.875, -1.25, 0.375)
    completed = {}
    for index in _short(x, zero):
        u, s, vh = torch.linalg.svd(tall[index].double(), full_matrices=False)
        x[index] = (u @ vh).to(x.dtype)
        completed[index] = max(1, int((s <= s[0] * torch.finfo(x.dtype).eps).sum()))
    return x, completed, zero


def _short(x: Tensor, zero: tuple[int, ...]) -> list[int]:
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    residual = torch.linalg.matrix_norm(x.mT @ x - eye)
    return [
        index for index in torch.nonzero(residual > ORTHOGONALITY).flatten().tolist() if index not in zero
    ]


def _quintic(x: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a x + b x xᵀx + c x (xᵀx)²: a x + b x³ + c x⁵ on singular values."""
    gram = x.mT @ x
    inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    return torch.baddbmm(x, x, inner, beta=a)


def _final_error(dtype: torch.dtype) -> float:
    return 1e-13 if dtype == torch.float64 else 1e-6


def _first_quintic() -> tuple[float, float, float]:
    return schedule(SMALLEST_RATIO, 1e-6)[0]


@functools.cache
def schedule(smallest_ratio: float, final_error: float) -> tuple[tuple[float, float, float], ...]:
    """Return coefficients of the quintics that carry [smallest_ratio, 1] to within `final_error` of 1."""
    low, high = smallest_ratio, 1.0
    steps: list[tuple[float, float, float]] = []
    while max(1 - low, high - 1) > final_error:
        # Rounding may push singular values a little above the interval, where a quintic can grow fast.
        a, b, c, error = _closest_to_one(low, high * 1.001 if not steps else high * 1.0001)
        if error < 1e-7:
            a, b, c, error = 1.875, -1.25, 0.375, error
        steps.append((a, b, c))
        low, high = 1 - error, 1 + error
        if error < 1e-4:
            steps.append((1.875, -1.25, 0.375))
            break
    return tuple(steps)


def _closest_to_one(low: float, high: float) -> tuple[float, float, float, float]:
    """Return (a, b, c, E): the odd quintic with the least E = max |1 − p| on [low, high]."""
    # Four points of equal error of alternating sign: both ends and the two extrema between, which solve p'(x) = 0.
    inner = [low + (high - low) * 0.3, low + (high - low) * 0.8]
    solution = [0.0] * 4
    for _ in range(60):
        points = torch.tensor([low, *inner, high], dtype=torch.float64, device="cpu")
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64, device="cpu")
        system = torch.stack([points, points**3, points**5, signs], dim=1)
        solution = torch.linalg.solve(system, torch.ones(4, dtype=torch.float64, device="cpu")).tolist()
        a, b, c, _ = solution
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0.0))
        squares = sorted(((-3 * b - root) / (10 * c), (-3 * b + root) / (10 * c)))
        moved = [math.sqrt(max(square, low * low)) for square in squares]
        if max(abs(new - old) for new, old in zip(moved, inner, strict=True)) < 1e-14:
            break
        inner = moved
    a, b, c, error = solution
    return a, b, c, abs(error)
