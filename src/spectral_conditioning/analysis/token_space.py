"""The subspace that a head's tokens span, and the symmetries that leave attention unchanged.

A weight acts on tokens only, so its components outside the tokens' span, and every direction below, are exact null
directions of the attention Jacobian. κ(J) is the largest singular value over the one at the rank that remains.

# N tokens, D width, r rank of the tokens, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenSpace:
    """Tokens in an orthonormal basis of their own row space: `tokens_ND` = `coordinates_Nr` @ `basis_Dr.T`.

    Replacing the tokens by their coordinates and each weight W by W @ `basis_Dr` leaves attention, and every non-zero
    singular value of its Jacobian, as they were. `constant_r` solves `coordinates_Nr` @ `constant_r` = 1, None where no
    combination of features is constant over tokens.
    """

    coordinates_Nr: Tensor
    basis_Dr: Tensor
    constant_r: Tensor | None

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return self.basis_Dr.shape[1]


def token_space(tokens_ND: Tensor, *, tolerance: float) -> TokenSpace:
    """Return the span of the tokens, leaving out singular values below `tolerance` times the largest."""
    left_Nm, sigma_m, right_mD = torch.linalg.svd(tokens_ND, full_matrices=False)
    kept = sigma_m > tolerance * sigma_m[0]
    left_Nr, sigma_r, right_rD = left_Nm[:, kept], sigma_m[kept], right_mD[kept]
    ones_N = torch.ones(len(tokens_ND), dtype=tokens_ND.dtype, device=tokens_ND.device)
    share_r = left_Nr.T @ ones_N
    missed = (ones_N - left_Nr @ share_r).norm() / ones_N.norm()
    constant_r = share_r / sigma_r if missed < 100 * tolerance else None
    return TokenSpace(left_Nr * sigma_r, right_rD.T, constant_r)


def gauge_basis(
    q_dr: Tensor, k_ds: Tensor, *, q_bias_d: Tensor | None, q_space: TokenSpace, k_space: TokenSpace
) -> Tensor:
    """Return an orthonormal basis, rows in the order [W_Q; W_K] flattened, of the weight changes that no logit difference sees.

    For a (d, d) matrix a, (W_Q, W_K) → (a W_Q, −aᵀ W_K) keeps every q·k to first order: d² directions. A query bias b
    breaks those with a b ≠ 0 unless it can be written as W b for the tokens at hand. Where some combination w of
    features is constant over the key tokens, W_K → W_K + c wᵀ shifts all logits of a row alike: d more. Shape (d(r + s),
    number of directions).
    """
    head = len(q_dr)
    bent_dr, free_dn = _absorb_bias(q_dr, q_bias_d, q_space)
    # With a = u_m w_nᵀ (left singular vectors of W_K and W_Q) the directions come out orthogonal: no QR of d² columns.
    left_q, sigma_q, right_q = _full_svd(free_dn.T @ bent_dr)
    left_q = free_dn @ left_q
    left_k, sigma_k, right_k = _full_svd(k_ds)
    q_part = torch.einsum("cm,n,nr->crmn", left_k, sigma_q, right_q)
    k_part = -torch.einsum("cn,m,ms->csmn", left_q, sigma_k, right_k)
    basis = torch.cat([q_part.flatten(0, 1).flatten(1), k_part.flatten(0, 1).flatten(1)])
    norm = basis.norm(dim=0)
    alive = norm > 1e-12 * norm.max()
    basis = torch.div(basis[:, alive], norm[alive])
    if k_space.constant_r is None:
        return basis
    shift = torch.zeros(len(basis), head, dtype=basis.dtype, device=basis.device)
    eye = torch.eye(head, dtype=basis.dtype, device=basis.device)
    unit_s = k_space.constant_r / k_space.constant_r.norm()
    shift[q_dr.numel() :] = torch.einsum("ce,s->cse", eye, unit_s).flatten(0, 1)
    shift = shift - basis @ (basis.T @ shift)
    new, sigma, _ = torch.linalg.svd(shift, full_matrices=False)
    new = new[:, sigma > 1e-8]
    new, _ = torch.linalg.qr(new - basis @ (basis.T @ new))
    return torch.cat([basis, new], dim=1)


def gauge_dimension(*, head: int, q_bias: bool, q_space: TokenSpace, k_space: TokenSpace) -> int:
    """Return how many directions `gauge_basis` has for weights in general position, without building it."""
    free = head if not q_bias or q_space.constant_r is not None else head - 1
    rank_q, rank_k = min(free, q_space.rank), min(head, k_space.rank)
    gauge = free * head - (free - rank_q) * (head - rank_k)
    if k_space.constant_r is None:
        return gauge
    # A shift c wᵀ with c outside the queries' span is already a gauge direction when W_K reaches every token direction.
    return gauge + (rank_q + head - free if k_space.rank <= head else head)


def _absorb_bias(q_dr: Tensor, q_bias_d: Tensor | None, space: TokenSpace) -> tuple[Tensor, Tensor]:
    """Return W_Q with its bias folded in where a constant feature allows it, and a basis of the vectors a may act on."""
    eye = torch.eye(len(q_dr), dtype=q_dr.dtype, device=q_dr.device)
    if q_bias_d is None or not bool(q_bias_d.any()):
        return q_dr, eye
    if space.constant_r is not None:
        return q_dr + torch.outer(q_bias_d, space.constant_r), eye
    complement = torch.linalg.svd(q_bias_d[:, None]).U[:, 1:]
    return q_dr, complement


def _full_svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U (m, m), σ (m) and Vᵀ (m, n) of an (m, n) matrix, with zeros where m exceeds n."""
    rows, columns = matrix.shape
    left, sigma, right = torch.linalg.svd(matrix, full_matrices=rows > columns)
    missing = rows - len(sigma)
    if missing > 0:
        sigma = torch.cat([sigma, sigma.new_zeros(missing)])
        right = torch.cat([right, right.new_zeros(missing, columns)])
    return left, sigma, right[:rows]
