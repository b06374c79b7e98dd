"""κ(J) of an attention Jacobian at full size, over its generic rank.

σ_max comes from a Krylov space of J. σ_min of a small J from all its singular values; of a large one, where J is not
below the resolution of float64 already on the directions in which it should be smallest, from `small_values.py`. Neither
squares it.

# n size of the Gram matrix, P columns of J, R rows of J, b block width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spectral_conditioning.analysis.attention_inputs import ROLES
from spectral_conditioning.analysis.krylov import largest_eigenvalue
from spectral_conditioning.analysis.small_values import SmallestValue, smallest_value

# Up to this size of the Gram matrix J itself is decomposed; beyond, only where the Gram matrix does not resolve σ_min,
# and while J has no more than so many entries (0.5 GB).
_DIRECT_SIZE, _WHOLE_NUMBERS = 512, 60_000_000
# An estimated relative error of σ_min² above this leaves κ as a lower bound.
_CONVERGED = 1e-2


class AttentionJacobian(Protocol):
    """What `condition_number` needs of a Jacobian: its action, its adjoint, a Gram matrix and its generic rank."""

    x_Nr: Tensor

    @property
    def rows(self) -> int: ...
    def columns(self, roles: Sequence[str] = ...) -> int: ...
    def forward(self, direction_Pb: Tensor, roles: Sequence[str] = ...) -> Tensor: ...
    def dense(self, roles: Sequence[str] = ...) -> Tensor: ...
    def adjoint(self, cotangent_Rb: Tensor, roles: Sequence[str] = ...) -> Tensor: ...
    def gram(self, roles: Sequence[str] = ...) -> Tensor: ...
    def generic_rank(self, roles: Sequence[str] = ...) -> int: ...
    def null_basis(self, roles: Sequence[str] = ...) -> Tensor | None: ...
    def weak_rows(self, roles: Sequence[str] = ...) -> Tensor | None: ...


@dataclass(frozen=True)
class JacobianCondition:
    """κ(J) = `sigma_max` / `sigma_min`, `sigma_min` being singular value number `rank`.

    `exact`: False makes κ a lower bound (σ_min lies below `threshold`, or its iteration did not settle). `rank`: the
    generic rank over which κ is taken. `numerical_rank`: singular values above `threshold`; None where they were not
    counted. `threshold`: the least σ that float64 tells from zero here, 2.2e-14 √max(rows, columns) σ_max. `side`:
    "rows" for J Jᵀ, "columns" for JᵀJ; `size`: its order. `error`: estimated relative error of
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
    error: float
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
    space of a single block is not known and J is too large to decompose.
    """
    started = time.perf_counter()
    side = _Side(jacobian, tuple(roles))
    rank = min(side.size, jacobian.generic_rank(roles))
    side.unit = spectral_norm(jacobian, roles)
    sigma_min, error, numerical_rank, settled = (0.0, 0.0, 0, True) if side.unit == 0 else _smallest(side, rank)
    exact = settled and sigma_min > side.resolution and error < _CONVERGED
    return JacobianCondition(
        kappa=1 / max(sigma_min, side.resolution) if side.unit > 0 else math.inf,
        exact=exact,
        sigma_max=side.unit,
        sigma_min=sigma_min * side.unit,
        rank=rank,
        numerical_rank=numerical_rank,
        threshold=side.resolution * side.unit,
        side="rows" if side.by_rows else "columns",
        size=side.size,
        error=error,
        seconds=time.perf_counter() - started,
    )


def spectral_norm(jacobian: AttentionJacobian, roles: Sequence[str] = ROLES) -> float:
    """Return ‖J‖ of the blocks named, matrix-free; relative accuracy 1e-6, down to norms of about 1e-150."""

    def normal(block_Rb: Tensor) -> Tensor:
        return jacobian.forward(jacobian.adjoint(block_Rb, roles), roles)

    return math.sqrt(largest_eigenvalue(normal, size=jacobian.rows, like=jacobian.x_Nr).value)


class _Side:
    """The smaller side of J: vectors of outputs when J has fewer rows than columns, else vectors of weights.

    J is divided by `unit`, its norm, so that a Jacobian of size 1e-80, as saturated attention has, leaves no denormal
    numbers in its Gram matrix.
    """

    def __init__(self, jacobian: AttentionJacobian, roles: Sequence[str]) -> None:
        self.jacobian, self.roles, self.unit = jacobian, roles, 1.0
        self.by_rows = jacobian.rows <= jacobian.columns(roles)
        self.size = min(jacobian.rows, jacobian.columns(roles))
        longest = max(jacobian.rows, jacobian.columns(roles))
        self.resolution = 100 * longest**0.5 * torch.finfo(torch.float64).eps

    @property
    def numbers(self) -> int:
        """Entries of J."""
        return self.jacobian.rows * self.jacobian.columns(self.roles)

    def whole(self) -> Tensor:
        """J or Jᵀ itself, (larger side, n)."""
        whole = self.jacobian.dense(self.roles) / self.unit
        return whole.T if self.by_rows else whole

    def gram(self) -> Tensor:
        """The Gram matrix of this side."""
        return self.jacobian.gram(self.roles).div_(self.unit).div_(self.unit)

    def across(self, block: Tensor) -> Tensor:
        """To the larger side: Jᵀ from outputs, J from weights."""
        apply = self.jacobian.adjoint if self.by_rows else self.jacobian.forward
        return apply(block, self.roles) / self.unit

    def back(self, block: Tensor) -> Tensor:
        """From the larger side."""
        apply = self.jacobian.forward if self.by_rows else self.jacobian.adjoint
        return apply(block, self.roles) / self.unit


def _smallest(side: _Side, rank: int) -> tuple[float, float, int | None, bool]:
    """Return σ number `rank` in units of σ_max, its relative error, the numerical rank, and whether it is more than a bound."""
    found: SmallestValue | None = None
    fits = side.numbers <= _WHOLE_NUMBERS
    if side.size > _DIRECT_SIZE:
        bound = _weak(side, rank)
        if bound < side.resolution:
            return bound, 0.0, None, False
        null = _known_null_space(side, rank, needed=not fits)
        if null is not None or rank == side.size:
            found = smallest_value(side, null, widen=not fits)
    if found is not None:
        return found.sigma, found.error, rank if found.sigma > side.resolution else None, found.settled
    sigma = torch.linalg.svdvals(torch.linalg.qr(side.whole(), mode="r").R)
    return float(sigma[rank - 1]), 0.0, int((sigma > side.resolution).sum()), True


def _weak(side: _Side, rank: int) -> float:
    """Return an upper bound of the smallest singular value in units of σ_max; infinity where no direction is suspected."""
    if not side.by_rows or rank < side.size:
        return math.inf
    rows_Rb = side.jacobian.weak_rows(side.roles)
    return math.inf if rows_Rb is None else float(torch.linalg.svdvals(side.across(rows_Rb))[-1])


def _known_null_space(side: _Side, rank: int, *, needed: bool) -> Tensor | None:
    missing = side.size - rank
    if missing == 0:
        return None
    null = None if side.by_rows else side.jacobian.null_basis(side.roles)
    if null is not None and null.shape[1] == missing:
        return null
    if needed:
        raise ValueError(
            f"{missing} of {side.size} directions of this Jacobian ({', '.join(side.roles)}) are null and not known in "
            f"closed form, and it is too large to decompose ({side.numbers:,} numbers, at most {_WHOLE_NUMBERS:,}): take "
            "fewer tokens"
        )
    return None
