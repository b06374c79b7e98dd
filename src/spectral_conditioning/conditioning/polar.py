"""Polar factors and largest singular values of stacks of matrices, without SVD.

With W = U S Vᵀ, polar(W) = U Vᵀ. An odd polynomial p acts on singular values alone, p(W) = U p(S) Vᵀ, so a composition
of polynomials that carries [ℓ, 1] to 1 turns W/σ into U Vᵀ. Each step here is the quintic a x + b x³ + c x⁵ closest to 1
on the interval reached so far (equioscillation, found by Remez exchange): three matrix products a step, eight steps from
ℓ = 1e-4. Matrices with smaller singular values, down to 1e-6 σ and less, are found by ‖XᵀX − I‖ and take more rounds.

Every refresh starts from W alone. Starting from the last factor would save half the products, but singular vectors of small σ
turn freely from step to step, and the factor that follows them lags: κ(W + C) reached 2.07 at AdamW step sizes of 1e-3.

σ_max is bounded from above by repeated squaring: σ_max ≤ (Σ σᵢ^{4q})^{1/4q} = ‖(WᵀW)^q‖_F^{1/2q} with q = 2^squarings.
For n singular values that is at most n^{1/4q} σ_max: at q = 128, 1.3 % high for 768 equal ones, .3 % for a Gaussian 768².
"""

# B batch, n rows, m columns, n ≥ m once transposed.

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

SQUARINGS = 7
# The smallest σ/σ_max that each round of polynomials carries to 1; a round lifts what is smaller by about its inverse.
ROUNDS = (1e-4, 5e-3, 5e-3)
# ‖XᵀX − I‖_F up to which X counts as a polar factor; a missed direction of singular value p adds 1 − p².
ORTHOGONALITY = 5e-3
# Products in TF32 leave more (√m · 2⁻¹¹ a product), and κ(W + C) ≤ 2.05 allows it.
_ORTHOGONALITY_TF32 = 5e-2
# Rounding could bring the bound below σ_max by a few units in the last place of a product.
_MARGIN, _MARGIN_TF32 = 1 + 3e-6, 1 + 2e-3
_NEWTON_SCHULZ = (1.875, -1.25, 0.375)

Quintic = tuple[float, float, float]


@dataclass(frozen=True)
class Polar:
    """Polar factors (B, n, m) with σ̂ ≥ σ_max (B,), and what had to be done for some of the matrices.

    zero: indices of zero matrices, whose factor and σ̂ are 0. A matrix with NaN or infinite entries gives NaN in both.
    completed: {index: number of null directions}, for matrices whose factor had to be completed by SVD.
    """

    factors: Tensor
    sigma: Tensor
    zero: tuple[int, ...]
    completed: dict[int, int]


def sigma_upper(matrices: Tensor, *, squarings: int = SQUARINGS) -> Tensor:
    """Return σ̂ with σ_max ≤ σ̂ ≤ min(n, m)^{1/2^(squarings + 2)} σ_max for each matrix of (B, n, m); 0 for zero ones."""
    scaled, largest = _scaled(matrices)
    sigma: Tensor = _sigma_of_gram(_gram(scaled), squarings) * largest
    return sigma


def polar(matrices: Tensor) -> Polar:
    """Return polar(W) and σ̂ ≥ σ_max(W) of each matrix of (B, n, m), in its dtype (float32 or float64).

    Converges for κ(W) up to at least 1e6 in float32. Exact null directions of W, which no polynomial can lift, are completed
    by SVD and reported. Products follow torch's float32 matmul precision: with "high" on a GPU they run in TF32.
    """
    wide = matrices.shape[-2] < matrices.shape[-1]
    scaled, largest = _scaled(matrices.mT if wide else matrices)
    gram = _gram(scaled)
    sigma = _sigma_of_gram(gram, SQUARINGS)
    unit = torch.where(sigma > 0, 1 / sigma, torch.zeros_like(sigma))[:, None, None]
    first, *rest = schedule(ROUNDS[0], _final_error(matrices.dtype))
    x = _quintic(scaled * unit, first, gram=gram * unit**2)
    for step in rest:
        x = _quintic(x, step)
    zero = tuple(torch.nonzero(sigma == 0).flatten().tolist())
    completed = _finish(x, scaled, sigma)
    return Polar(x.mT if wide else x, sigma * largest, zero, completed)


def _finish(x: Tensor, scaled: Tensor, sigma: Tensor) -> dict[int, int]:
    """Carry on, in place, with the matrices that the first round left short of orthogonal; complete the rest by SVD."""
    for ratio in ROUNDS[1:]:
        short = _short(x, sigma)
        if not short:
            return {}
        part = x[short]
        for step in schedule(ratio, _final_error(x.dtype)):
            part = _quintic(part, step)
        x[short] = part
    completed = {}
    for index in _short(x, sigma):
        u, s, vh = torch.linalg.svd(scaled[index].double(), full_matrices=False)
        x[index] = (u @ vh).to(x.dtype)
        completed[index] = max(1, int((s <= s[0] * torch.finfo(x.dtype).eps).sum()))
    return completed


def _short(x: Tensor, sigma: Tensor) -> list[int]:
    """Return the indices of matrices whose columns are not orthonormal; zero and non-finite ones are beyond help."""
    gram = _gram(x)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    tolerance = _ORTHOGONALITY_TF32 if _is_tf32(x) else ORTHOGONALITY
    # Written so that an iteration that overflowed counts as short.
    short = ~(torch.linalg.matrix_norm(gram) <= tolerance) & (sigma > 0) & sigma.isfinite()
    return [int(index) for index in torch.nonzero(short).flatten().tolist()]


def _scaled(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices divided by their largest entry, which keeps powers in range, and those entries (B,)."""
    largest = matrices.abs().amax((-2, -1))
    return matrices / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None, None], largest


def _gram(x: Tensor) -> Tensor:
    return x.mT @ x if x.shape[-2] >= x.shape[-1] else x @ x.mT


def _sigma_of_gram(gram: Tensor, squarings: int) -> Tensor:
    """Return the bound on σ_max for the Gram matrices of scaled matrices."""
    power, log_norm = gram, torch.zeros_like(gram[:, 0, 0])
    tiny = torch.finfo(gram.dtype).tiny
    for done in range(squarings):
        # Three squarings in a row shrink a norm of 1 to no less than n^-3.5, which every dtype can hold.
        if done % 3 == 0:
            norm = torch.linalg.matrix_norm(power).clamp_min(tiny)
            power = power / norm[:, None, None]
            log_norm = log_norm + norm.log()
        power = power @ power
        log_norm = 2 * log_norm
    log_norm = log_norm + torch.linalg.matrix_norm(power).clamp_min(tiny).log()
    bound = (log_norm / 2 ** (squarings + 1)).exp() * (_MARGIN_TF32 if _is_tf32(gram) else _MARGIN)
    return torch.where(gram.diagonal(dim1=-2, dim2=-1).amax(-1) > 0, bound, torch.zeros_like(bound))


def _is_tf32(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"


def _quintic(x: Tensor, step: Quintic, *, gram: Tensor | None = None) -> Tensor:
    """Return a x + b x xᵀx + c x (xᵀx)², that is a x + b x³ + c x⁵ on singular values."""
    a, b, c = step
    gram = _gram(x) if gram is None else gram
    inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    return torch.baddbmm(x, x, inner, beta=a)


def _final_error(dtype: torch.dtype) -> float:
    return 1e-12 if dtype == torch.float64 else 1e-4


@functools.cache
def schedule(smallest_ratio: float, final_error: float) -> tuple[Quintic, ...]:
    """Return coefficients of the quintics that carry [smallest_ratio, 1] to within `final_error` of 1."""
    low, high = smallest_ratio, 1.0
    steps: list[Quintic] = []
    while True:
        # Rounding may push singular values a little above the interval, where a quintic leaves it fast.
        a, b, c, error = _closest_to_one(low, high * 1.0001)
        # Close to 1 the best quintic is Newton–Schulz's, whose coefficients need no ill-conditioned solve.
        near = 1 - low < 1e-2
        steps.append(_NEWTON_SCHULZ if near else (a, b, c))
        error = 3 * (1 - low) ** 3 if near else error
        low, high = 1 - error, 1 + error
        if error <= final_error:
            return tuple(steps)


def _closest_to_one(low: float, high: float) -> tuple[float, float, float, float]:
    """Return (a, b, c, E): the odd quintic p with the least E = max |1 − p| on [low, high]."""
    # E is reached with alternating sign at four points: both ends and two extrema between them, which solve p'(x) = 0.
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
