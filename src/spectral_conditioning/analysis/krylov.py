"""Largest eigenvalues of a symmetric operator from a block Krylov space.

# n size of the operator, b block width, m basis vectors so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KrylovResult:
    """The largest Ritz value with its relative residual ‖A u − θ u‖ / θ, and the orthonormal basis it was found in."""

    value: float
    residual: float
    basis_nm: Tensor
    applications: int


def largest_eigenvalue(
    apply: Callable[[Tensor], Tensor],
    *,
    size: int,
    like: Tensor,
    project: Callable[[Tensor], Tensor] | None = None,
    block: int = 8,
    tolerance: float = 1e-6,
    max_applications: int = 40,
) -> KrylovResult:
    """Return the largest eigenvalue of a symmetric positive semi-definite operator given as a function of an (n, b) block.

    Rayleigh–Ritz over span{Q, AQ, …} with full reorthogonalisation; the value's relative error is about `residual`
    squared over the relative gap, and never above `residual`. `project` confines the space to an invariant subspace of
    the operator. The start is drawn from a generator of its own.
    """
    draws = torch.Generator().manual_seed(0)
    start = torch.randn(size, min(block, size), generator=draws, dtype=like.dtype).to(like.device)
    newest_nb = torch.linalg.qr(start if project is None else project(start)).Q
    basis, images = [newest_nb], []
    value, residual = 0.0, float("inf")
    for count in range(1, max_applications + 1):
        images.append(apply(newest_nb))
        basis_nm, images_nm = torch.cat(basis, dim=1), torch.cat(images, dim=1)
        ritz_mm = basis_nm.T @ images_nm
        values_m, vectors_mm = torch.linalg.eigh((ritz_mm + ritz_mm.T) / 2)
        value = float(values_m[-1])
        if value <= 0:
            return KrylovResult(0.0, 0.0, basis_nm, count)
        # Divided first: the norm of a vector of size 1e-200 is zero in float64.
        residual = float(((images_nm @ vectors_mm[:, -1]) / value - basis_nm @ vectors_mm[:, -1]).norm())
        room = size - basis_nm.shape[1]
        if residual <= tolerance or room <= 0:
            break
        newest_nb = images[-1]
        for _ in range(2):
            newest_nb = newest_nb - basis_nm @ (basis_nm.T @ newest_nb)
            newest_nb = torch.linalg.qr(newest_nb).Q
        newest_nb = newest_nb[:, :room]
        basis.append(newest_nb)
    return KrylovResult(value, residual, torch.cat(basis, dim=1), len(images))
