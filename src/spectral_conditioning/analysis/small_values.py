"""The smallest singular value of a Jacobian too large to decompose, to 1e-12 of the largest.

G, the smaller of J Jᵀ and JᵀJ, holds σ² to about 1e-15 σ_max²: by itself it resolves κ up to 1e6 or 1e7. But its
inverse, applied to anything, returns the directions in which J is small, and J applied to those directions gives their
singular values not squared. So:

1. Factor G + s I (Cholesky; s a few units of rounding; the known null space lifted out of the way).
2. A Krylov space of the inverse, and J on it. When the smallest eigenvalue found stands clear of rounding, this is the
answer. 3. Otherwise rounding has mixed the directions below it, hundreds of them on tokens that resemble each other. A
block wide enough to hold
   them all goes through the inverse twice; J on that block has their singular values. The block is widened until part of
   it lies above the rounding, which shows that nothing below was left out; if it never does, σ_min is an upper bound
   only.

Everything is in units of σ_max.

# n size of G, m width of a block, b columns at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spectral_conditioning.analysis.krylov import largest_eigenvalue

# Eigenvalues of G above this stand clear of its rounding.
_CLEAR = 1e-12
# Rounding of G in units of σ_max², and how far above its root a singular value is untouched by it.
_ROUNDING, _SPILL = 1e-15, 10.0
# Widths of the block: the first, and the largest as a share of n.
_FIRST_WIDTH, _LARGEST_SHARE = 256, 1 / 3


class Side(Protocol):
    """The smaller side of J in units of σ_max: vectors of it go across by Jᵀ or J, and back."""

    size: int

    def gram(self) -> Tensor: ...
    def across(self, block: Tensor) -> Tensor: ...
    def back(self, block: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SmallestValue:
    """σ_min; `settled`: False where it is an upper bound; `error`: estimated relative error of σ_min²."""

    sigma: float
    settled: bool
    error: float


def smallest_value(side: Side, null: Tensor | None, *, widen: bool = True) -> SmallestValue | None:
    """Return the smallest singular value outside the known null space, whose orthonormal basis is `null` (n, k).

    widen: False returns None where G does not resolve it, in place of step 3.
    """
    factor = _Factor(side, null)
    found = largest_eigenvalue(factor.inverse, size=side.size, like=factor.lower, project=factor.project)
    if found.value > 0 and 1 / found.value - factor.shift > _CLEAR:
        return _read(side, factor, found.basis_nm, side.across(found.basis_nm), settled=True)
    if not widen:
        return None
    space, images, settled = _wide_block(side, factor)
    return _read(side, factor, space, images, settled=settled)


class _Factor:
    """Lower Cholesky factor of G + s I, with the null space moved to eigenvalue 1."""

    def __init__(self, side: Side, null: Tensor | None) -> None:
        gram = side.gram()
        self.null = null
        if null is not None:
            gram.addmm_(null, null.T)
        self.shift = _ROUNDING
        gram.diagonal().add_(self.shift)
        self.lower, failed = torch.linalg.cholesky_ex(gram)
        while failed:
            gram.diagonal().add_(9 * self.shift)
            self.shift *= 10
            self.lower, failed = torch.linalg.cholesky_ex(gram)

    def project(self, block_nb: Tensor) -> Tensor:
        """Take the null space out of a block."""
        return block_nb if self.null is None else block_nb - self.null @ (self.null.T @ block_nb)

    def half(self, block_nb: Tensor) -> Tensor:
        """Apply the inverse of the factor."""
        result: Tensor = torch.linalg.solve_triangular(self.lower, block_nb, upper=False)
        return result

    def inverse(self, block_nb: Tensor) -> Tensor:
        """Apply the inverse of G + s I."""
        result: Tensor = torch.linalg.solve_triangular(self.lower.mT, self.half(block_nb), upper=True)
        return self.project(result)


def _wide_block(side: Side, factor: _Factor) -> tuple[Tensor, Tensor, bool]:
    """Return an orthonormal block that holds every direction below rounding, J on it, and whether it holds them all."""
    draws = torch.Generator().manual_seed(1)
    outside = side.size - (0 if factor.null is None else factor.null.shape[1])
    largest = min(outside, max(_FIRST_WIDTH, int(side.size * _LARGEST_SHARE)))
    width = min(largest, max(_FIRST_WIDTH, side.size // 16))
    spill = _SPILL * max(_ROUNDING, factor.shift) ** 0.5
    space = factor.lower.new_empty(side.size, 0)
    images: Tensor | None = None
    while True:
        block = torch.randn(side.size, width, generator=draws, dtype=space.dtype).to(space.device)
        for _ in range(2):
            block = factor.inverse(_orthonormal(factor.project(block), space))
        block = _orthonormal(block, space)
        space = torch.cat([space, block], dim=1)
        image = _in_columns(side.across, block)
        images = image if images is None else torch.cat([images, image], dim=1)
        sigma = torch.linalg.svdvals(torch.linalg.qr(images, mode="r").R)
        # A tenth of the block above the rounding: its weakest directions may be spurious, the wanted ones are not among
        # them.
        settled = space.shape[1] == outside or float(sigma[len(sigma) // 10]) > spill
        if settled or space.shape[1] == largest:
            return space, images, settled
        width = min(space.shape[1], largest - space.shape[1])


def _read(side: Side, factor: _Factor, space: Tensor, images: Tensor, *, settled: bool) -> SmallestValue:
    """Return the smallest singular value of J on a space."""
    _, sigma, right = torch.linalg.svd(torch.linalg.qr(images, mode="r").R)
    smallest = float(sigma[-1])
    if smallest == 0:
        return SmallestValue(0.0, settled, 0.0)
    direction = space @ right[-1][:, None]
    residual = side.back(side.across(direction)) - smallest**2 * direction
    # A stray component of size t along a singular direction σ' adds (tσ')² to σ_min²; the inverse of the factor turns the
    # residual's tσ'² into tσ'.
    stray = float(factor.half(residual).norm())
    return SmallestValue(smallest, settled, (stray / smallest) ** 2)


def _orthonormal(block: Tensor, space: Tensor) -> Tensor:
    """Return an orthonormal basis of a block outside a space, orthogonalised twice."""
    for _ in range(2):
        block, _ = torch.linalg.qr(block - space @ (space.T @ block))
    return block


def _in_columns(apply: Callable[[Tensor], Tensor], block: Tensor, *, columns: int = 128) -> Tensor:
    return torch.cat([apply(part) for part in block.split(columns, dim=1)], dim=1)  # type: ignore[no-untyped-call]
