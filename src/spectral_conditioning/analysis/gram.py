"""J Jᵀ or JᵀJ of softmax attention from its block structure, whichever is smaller, without forming J.

    J Jᵀ block (i, j) = (x_i·x_j) B_i B_jᵀ + (q_i·q_j) M_i M_jᵀ + (y_i·y_j) I
    JᵀJ  blocks       = Σ_i B_iᵀB_i ⊗ x_i x_iᵀ,   Σ_i q_i q_iᵀ ⊗ M_iᵀM_i,   I ⊗ Σ_i y_i y_iᵀ and their mixed products

# N query tokens, r, s token ranks, d head width of Q and K, o head width of V (legend of jacobian.py).
# The suffix n marks a chunk of query tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spectral_conditioning.analysis.attention_inputs import ROLES

if TYPE_CHECKING:
    from spectral_conditioning.analysis.jacobian import SoftmaxJacobian

# Chunks hold about this many numbers (256 MB), small beside the Gram matrix of a ViT-B head (1.3 GB).
_CHUNK_NUMBERS = 32_000_000


def gram_rows(jacobian: SoftmaxJacobian, roles: Sequence[str] = ROLES) -> Tensor:
    """Return J Jᵀ, (N·o, N·o), of the blocks named.

    Cost: N²o²(d + r + 2) multiplications and one N·o square matrix, 1.3 GB for N = 197, o = 64.
    """
    tokens, out = jacobian.a_No.shape
    size = jacobian.rows
    gram = jacobian.a_No.new_empty(size, size)
    B_Rd, M_Rs = jacobian.B_Nod.flatten(0, 1), jacobian.M_Nos.flatten(0, 1)
    xx_NN, qq_NN, yy_NN = (rows @ rows.T for rows in (jacobian.x_Nr, jacobian.q_Nd, jacobian.y_Ns))
    step = max(1, _CHUNK_NUMBERS // max(1, size * out))
    for start in range(0, tokens, step):
        stop = min(tokens, start + step)
        here, seen = slice(start * out, stop * out), slice(0, stop * out)
        block = gram.new_zeros(stop - start, out, stop, out)
        for role, left_Rc, weights_NN in (("q", B_Rd, xx_NN), ("k", M_Rs, qq_NN)):
            if role in roles:
                product = (left_Rc[here] @ left_Rc[seen].T).view_as(block)
                block += product.mul_(weights_NN[start:stop, None, :stop, None])
        if "v" in roles:
            block.diagonal(dim1=1, dim2=3).add_(yy_NN[start:stop, :stop, None])
        gram[here, seen] = block.flatten(2).flatten(0, 1)
        gram[: start * out, here] = gram[here, : start * out].T
    return gram


def gram_columns(jacobian: SoftmaxJacobian, roles: Sequence[str] = ROLES) -> Tensor:
    """Return JᵀJ, (columns, columns), of the blocks named.

    Cost: up to 6 N d² r² multiplications; the matrix is (3Dd)² numbers, 0.3 GB for D = 64, d = 32.
    """
    widths = [jacobian.widths[role] for role in roles]
    starts = {role: sum(widths[:index]) for index, role in enumerate(roles)}
    gram = jacobian.a_No.new_zeros(sum(widths), sum(widths))
    tokens = len(jacobian.a_No)
    widest = max(jacobian.x_Nr.shape[1], jacobian.z_Ms.shape[1], jacobian.q_Nd.shape[1]) ** 2
    step = max(1, _CHUNK_NUMBERS // (4 * widest))
    for left, right in combinations_with_replacement(roles, 2):
        block = sum(
            _column_block(jacobian, left, right, slice(start, start + step)) for start in range(0, tokens, step)
        )
        assert isinstance(block, Tensor)
        rows = slice(starts[left], starts[left] + block.shape[0])
        columns = slice(starts[right], starts[right] + block.shape[1])
        gram[rows, columns] = block
        if left != right:
            gram[columns, rows] = block.T
    return gram


def _column_block(jacobian: SoftmaxJacobian, left: str, right: str, chunk: slice) -> Tensor:
    """Return Σ_i over a chunk of tokens of (∂a_i/∂W_left)ᵀ (∂a_i/∂W_right), weights flattened row by row."""
    x_nr, q_nd, y_ns = jacobian.x_Nr[chunk], jacobian.q_Nd[chunk], jacobian.y_Ns[chunk]
    B_nod, M_nos = jacobian.B_Nod[chunk], jacobian.M_Nos[chunk]
    # Each block is a sum over tokens of an outer product, so it is one matrix product of two flattened factors,
    # whose four indices are then put in the order (left out, left in, right out, right in).
    if (left, right) == ("q", "q"):
        return _contract(B_nod.mT @ B_nod, _outer(x_nr, x_nr), "cdef->cedf")
    if (left, right) == ("k", "k"):
        return _contract(_outer(q_nd, q_nd), M_nos.mT @ M_nos, "cdef->cedf")
    if (left, right) == ("q", "k"):
        return _contract(B_nod.mT @ M_nos, _outer(x_nr, q_nd), "cfed->cedf")
    if (left, right) == ("q", "v"):
        return _contract(B_nod, _outer(x_nr, y_ns), "ocef->ceof")
    if (left, right) == ("k", "v"):
        return _contract(M_nos, _outer(q_nd, y_ns), "oecf->ceof")
    eye_oo = torch.eye(B_nod.shape[1], dtype=y_ns.dtype, device=y_ns.device)
    return torch.kron(eye_oo, y_ns.T @ y_ns)


def _outer(left_na: Tensor, right_nb: Tensor) -> Tensor:
    return left_na[:, :, None] * right_nb[:, None, :]


def _contract(left_nab: Tensor, right_ncd: Tensor, order: str) -> Tensor:
    product = left_nab.flatten(1).T @ right_ncd.flatten(1)
    product = product.view(*left_nab.shape[1:], *right_ncd.shape[1:])
    return torch.einsum(order, product).flatten(2).flatten(0, 1)
