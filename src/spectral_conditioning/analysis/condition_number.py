"""κ(J) of an attention Jacobian at full size.

1. G, the smaller of J Jᵀ and JᵀJ, from its blocks. 2. σ_max from a Krylov space of G through J itself. 3. A Cholesky
factor of G (the known null space lifted out of the way) and a Krylov space of its inverse: it holds the directions of
the smallest singular values. 4. The singular values of J on that space. Step 4 applies J, not G, so σ_min is not
squared: G only has to point at the right space, which it does far beyond the κ ≈ 1e7 where its own eigenvalues end in
rounding.

# n size of G, m dimension of the Krylov space, P columns of J, R rows of J, b block width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spectral_conditioning.analysis.attention_inputs import ROLES
from spectral_conditioning.analysis.krylov import largest_eigenvalue

# Up to this size all eigenvectors of G are taken, which also gives the numerical rank.
_DENSE_SIZE = 1024
# An estimated relative error of σ_min² above this leaves κ as a lower bound.
_CONVERGED = 1e-2
# A Jacobian whose largest row is shorter than this has no Gram matrix in float64.
_VANISHED = 1e-145


class AttentionJacobian(Protocol):
    """What `condition_number` needs of a Jacobian: its action, its adjoint, a Gram matrix and its generic rank."""

    x_Nr: Tensor

    @property
    def rows(self) -> int: ...
    def columns(self, roles: Sequence[str] = ...) -> int: ...
    def forward(self, direction_Pb: Tensor, roles: Sequence[str] = ...) -> Tensor: ...
    def adjoint(self, cotangent_Rb: Tensor, roles: Sequence[str] = ...) -> Tensor: ...
    def gram(self, roles: Sequence[str] = ...) -> Tensor: ...
    def generic_rank(self, roles: Sequence[str] = ...) -> int: ...
    def null_basis(self, roles: Sequence[str] = ...) -> Tensor | None: ...


@dataclass(frozen=True)
class JacobianCondition:
    """κ(J) = `sigma_max` / `sigma_min`, `sigma_min` being singular value number `rank`.

    `exact`: False makes κ a lower bound (σ_min lies below `threshold`, or its iteration did not settle). `rank`: the
    generic rank over which κ is taken. `numerical_rank`: singular values above `threshold`; None where they were not
    counted. `threshold`: the least σ that float64 tells from zero here, 2.2e-14 √max(rows, columns) σ_max. `side`:
    "rows" for J Jᵀ, "columns" for JᵀJ; `size`: its order. `residual`: estimated relative error of
    σ_min² from directions not yet separated. `seconds`: wall time.
    """

    kappa: float
    exact: bool
    sigma_max: float
    sigma_min: float
    rank: int
    numerical_rank: int | None
    threshold: float
    side: str
    size: int
    residual: float
    seconds: float

    @property
    def text(self) -> str:
        """κ in three digits, "> " before a lower bound."""
        if self.sigma_max == 0:
            return "J = 0"
        return f"{'' if self.exact else '> '}{self.kappa:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def condition_number(jacobian: AttentionJacobian, roles: Sequence[str] = ROLES) -> JacobianCondition:
    """Return κ of J, or of the blocks of J named, over the generic rank.

    A ViT-B head (N = 197, D = 768, d = 64) needs a 12,608² Gram matrix and its factor. Raises ValueError where the null
    space of a single block is not known and its Gram matrix is too large for a full eigendecomposition.
    """
    started = time.perf_counter()
    side = _Side(jacobian, tuple(roles))
    rank = min(side.size, jacobian.generic_rank(roles))
    gram = jacobian.gram(roles)
    side.unit = math.sqrt(float(gram.diagonal().max()))
    numerical_rank: int | None
    if side.unit < _VANISHED:
        sigma_max, sigma_min, residual, numerical_rank = 0.0, 0.0, 0.0, 0
    else:
        gram /= side.unit**2
        sigma_max, sigma_min, residual, numerical_rank = _extremes(gram, side, rank)
    threshold = side.resolution * sigma_max
    return JacobianCondition(
        kappa=sigma_max / max(sigma_min, threshold) if sigma_max > 0 else math.inf,
        exact=sigma_min > threshold and residual < _CONVERGED,
        sigma_max=sigma_max * side.unit,
        sigma_min=sigma_min * side.unit,
        rank=rank,
        numerical_rank=numerical_rank,
        threshold=threshold * side.unit,
        side="rows" if side.by_rows else "columns",
        size=side.size,
        residual=residual,
        seconds=time.perf_counter() - started,
    )


def spectral_norm(jacobian: AttentionJacobian, roles: Sequence[str] = ROLES) -> float:
    """Return ‖J‖ of the blocks named, matrix-free; relative accuracy 1e-6, down to norms of about 1e-150."""

    def normal(block_Rb: Tensor) -> Tensor:
        return jacobian.forward(jacobian.adjoint(block_Rb, roles), roles)

    return math.sqrt(largest_eigenvalue(normal, size=jacobian.rows, like=jacobian.x_Nr).value)


class _Side:
    """The smaller side of J: vectors of outputs when J has fewer rows than columns, else vectors of weights.

    `unit` divides J, so that a Jacobian of size 1e-80, as saturated attention has, leaves no denormal numbers in its
    Gram matrix.
    """

    def __init__(self, jacobian: AttentionJacobian, roles: Sequence[str]) -> None:
        self.jacobian, self.roles, self.unit = jacobian, roles, 1.0
        self.by_rows = jacobian.rows <= jacobian.columns(roles)
        self.size = min(jacobian.rows, jacobian.columns(roles))
        longest = max(jacobian.rows, jacobian.columns(roles))
        self.resolution = 100 * longest**0.5 * torch.finfo(torch.float64).eps

    def across(self, block: Tensor) -> Tensor:
        """To the larger side: Jᵀ from outputs, J from weights."""
        apply = self.jacobian.adjoint if self.by_rows else self.jacobian.forward
        return apply(block, self.roles) / self.unit

    def back(self, block: Tensor) -> Tensor:
        """From the larger side."""
        apply = self.jacobian.forward if self.by_rows else self.jacobian.adjoint
        return apply(block, self.roles) / self.unit


def _extremes(gram: Tensor, side: _Side, rank: int) -> tuple[float, float, float, int | None]:
    """Return σ_max, σ number `rank`, its relative error and the numerical rank, in units of `side.unit`. May overwrite `gram`."""
    if side.size <= _DENSE_SIZE:
        sigma = _all_values(gram, side)
        return float(sigma[0]), float(sigma[rank - 1]), 0.0, int((sigma > side.resolution * sigma[0]).sum())
    null = _known_null_space(side, rank)
    largest = largest_eigenvalue(lambda u: side.back(side.across(u)), size=side.size, like=gram)
    sigma_max = math.sqrt(largest.value)
    sigma_min, residual = _smallest(gram, side, null, sigma_max)
    return sigma_max, sigma_min, residual, rank if sigma_min > side.resolution * sigma_max else None


def _known_null_space(side: _Side, rank: int) -> Tensor | None:
    missing = side.size - rank
    if missing == 0:
        return None
    null = None if side.by_rows else side.jacobian.null_basis(side.roles)
    if null is None or null.shape[1] != missing:
        raise ValueError(
            f"{missing} of {side.size} directions of this Jacobian ({', '.join(side.roles)}) are null and not known in "
            f"closed form; κ then needs a Gram matrix of at most {_DENSE_SIZE}: take fewer tokens"
        )
    return null


def _all_values(gram: Tensor, side: _Side) -> Tensor:
    """Return every singular value, descending; those below 1e-4 of the largest from J on their eigenvectors, not squared."""
    values, vectors = torch.linalg.eigh(gram)
    small = int((values < 1e-8 * values[-1]).sum())
    sigma = values.clamp_min(0).sqrt()
    if small:
        sigma[:small] = torch.linalg.svdvals(side.across(vectors[:, :small])).flip(0)[-small:]
    descending: Tensor = sigma.sort(descending=True).values
    return descending


def _smallest(gram: Tensor, side: _Side, null: Tensor | None, sigma_max: float) -> tuple[float, float]:
    """Return σ_min outside the null space and its relative residual. Overwrites `gram`."""
    project: Callable[[Tensor], Tensor] | None = None
    if null is not None:
        known = null
        gram.addmm_(known, known.T, alpha=sigma_max**2)

        def project(block: Tensor) -> Tensor:
            return block - known @ (known.T @ block)

    factor = _cholesky(gram, sigma_max)

    def inverse(block: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(factor, block, upper=False)
        solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        return solved

    space = largest_eigenvalue(inverse, size=side.size, like=gram, project=project).basis_nm
    images = side.across(space)
    _, sigma, right = torch.linalg.svd(images, full_matrices=False)
    sigma_min = float(sigma[-1])
    if sigma_min == 0:
        return 0.0, 0.0
    direction = space @ right[-1][:, None]
    residual = side.back(side.across(direction)) - sigma_min**2 * direction
    # A stray component of size t along a singular direction σ' adds (tσ')² to σ_min²; the factor's inverse turns the
    # residual's tσ'² into tσ'.
    stray = float(torch.linalg.solve_triangular(factor, residual, upper=False).norm())
    return sigma_min, (stray / sigma_min) ** 2


def _cholesky(gram: Tensor, sigma_max: float) -> Tensor:
    """Return the lower factor of `gram`, raising its diagonal by multiples of rounding until it is definite."""
    shift = len(gram) * torch.finfo(gram.dtype).eps * sigma_max**2
    while True:
        factor, failed = torch.linalg.cholesky_ex(gram)
        if not failed:
            lower: Tensor = factor
            return lower
        gram.diagonal().add_(shift)
        shift *= 10
