"""Closed-form Jacobian of softmax attention with respect to W_Q, W_K and W_V (Theorem 3.3), row by row.

With p_i the i-th row of attention, a_i = Σ_j p_ij v_j its output and s the logit scale,

    ∂a_i/∂W_Q = B_i ⊗ x_iᵀ,   B_i = s Σ_j p_ij (v_j − a_i) k_jᵀ
    ∂a_i/∂W_K = q_iᵀ ⊗ M_i,   M_i = s Σ_j p_ij (v_j − a_i) z_jᵀ
    ∂a_i/∂W_V = I ⊗ y_iᵀ,     y_i = Σ_j p_ij z_j

The theorem's (W_Vᵀ Xᵀ ⊗ I) Λ(softmax(S)) (…) leaves implicit that Λ acts on each row of S; written out it is the above.

# N query tokens, M key tokens, D width, d head width of Q and K, o head width of V, b directions at once,
# r, s ranks of the query and key tokens (D and E when not reduced). Rows of J: (N, o). Columns: [W_Q (d, r); W_K (d, s);
# W_V (o, s)].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spectral_conditioning.analysis.attention_inputs import ROLES, SoftmaxHead
from spectral_conditioning.analysis.gram import gram_columns, gram_rows
from spectral_conditioning.analysis.token_space import TokenSpace, gauge_basis, gauge_dimension, token_space

# Rows of tokens are linearised in chunks whose pivoted values, keys and tokens together stay near this many numbers (128
# MB).
_CHUNK_NUMBERS = 16_000_000


class SoftmaxJacobian:
    """J = ∂ vec A / ∂(W_Q, W_K, W_V) of one softmax head at its weights, kept as B, M, q, x, y and never formed unless asked.

    `reduce` replaces the tokens by their coordinates in their own span, which leaves out exact zero columns and changes
    no non-zero singular value. Everything is computed in float64.
    """

    def __init__(self, head: SoftmaxHead, *, reduce: bool = True) -> None:
        self.head = head = head.double()
        self.q_space = _space(head.tokens_ND, head.rank_tolerance, reduce)
        same = head.context_ME is None
        self.k_space = self.q_space if same else _space(head.key_tokens_ME, head.rank_tolerance, reduce)
        self.x_Nr = self.q_space.coordinates_Nr
        self.z_Ms = self.k_space.coordinates_Nr
        self.q_Nd = head.queries_Nd
        self.p_NM = head.probabilities_NM
        self.B_Nod, self.M_Nos, self.y_Ns, self.a_No = _linearise(
            self.p_NM, head.values_Mo, head.keys_Md, self.z_Ms, head.scale
        )

    @property
    def rows(self) -> int:
        """Outputs of the head, N·o."""
        return self.a_No.numel()

    @property
    def widths(self) -> dict[str, int]:
        """Columns of J that belong to each projection."""
        head, out = self.q_Nd.shape[1], self.a_No.shape[1]
        return {"q": head * self.x_Nr.shape[1], "k": head * self.z_Ms.shape[1], "v": out * self.z_Ms.shape[1]}

    def columns(self, roles: Sequence[str] = ROLES) -> int:
        """Number of columns of the blocks named."""
        return sum(self.widths[role] for role in roles)

    def forward(self, direction_Pb: Tensor, roles: Sequence[str] = ROLES) -> Tensor:
        """Return J @ direction: (columns, b) → (rows, b)."""
        tokens, out = self.a_No.shape
        result_Nob = direction_Pb.new_zeros(tokens, out, direction_Pb.shape[1])
        for role, part_oib in self._parts(direction_Pb, roles):
            if role == "q":
                turned_Ndb = torch.einsum("Nr,drb->Ndb", self.x_Nr, part_oib)
                result_Nob += self.B_Nod @ turned_Ndb
            elif role == "k":
                turned_Nsb = torch.einsum("Nd,dsb->Nsb", self.q_Nd, part_oib)
                result_Nob += self.M_Nos @ turned_Nsb
            else:
                result_Nob += torch.einsum("Ns,osb->Nob", self.y_Ns, part_oib)
        return result_Nob.flatten(0, 1)

    def adjoint(self, cotangent_Rb: Tensor, roles: Sequence[str] = ROLES) -> Tensor:
        """Return Jᵀ @ cotangent: (rows, b) → (columns, b)."""
        u_Nob = cotangent_Rb.reshape(*self.a_No.shape, -1)
        parts = []
        for role in roles:
            if role == "q":
                part = torch.einsum("Ndb,Nr->drb", self.B_Nod.mT @ u_Nob, self.x_Nr)
            elif role == "k":
                part = torch.einsum("Nd,Nsb->dsb", self.q_Nd, self.M_Nos.mT @ u_Nob)
            else:
                part = torch.einsum("Nob,Ns->osb", u_Nob, self.y_Ns)
            parts.append(part.flatten(0, 1))
        return torch.cat(parts)

    def dense(self, roles: Sequence[str] = ROLES) -> Tensor:
        """Return J itself, (N·o, columns). For small heads and for tests: a ViT-B head takes 15 GB unreduced."""
        blocks = []
        for role in roles:
            if role == "q":
                block = torch.einsum("Nod,Nr->Nodr", self.B_Nod, self.x_Nr)
            elif role == "k":
                block = torch.einsum("Nos,Nd->Nods", self.M_Nos, self.q_Nd)
            else:
                eye_oo = torch.eye(self.a_No.shape[1], dtype=self.y_Ns.dtype, device=self.y_Ns.device)
                block = torch.einsum("op,Ns->Nops", eye_oo, self.y_Ns)
            blocks.append(block.reshape(self.rows, -1))
        return torch.cat(blocks, dim=1)

    def gram(self, roles: Sequence[str] = ROLES) -> Tensor:
        """Return the smaller of J Jᵀ and JᵀJ of the blocks named."""
        return gram_rows(self, roles) if self.rows <= self.columns(roles) else gram_columns(self, roles)

    def generic_rank(self, roles: Sequence[str] = ROLES) -> int:
        """Return the rank of the blocks for weights in general position; min(N·d, 3Dd − d²) for tokens in general position.

        Below it lie only exact zeros: directions outside the tokens' span and the symmetries of
        `token_space.gauge_basis`. Masks that hide keys lower it further; the count takes a row that sees m keys to have
        a covariance of rank m − 1.
        """
        tokens, out = self.a_No.shape
        head = self.q_Nd.shape[1]
        bias_NM = self.head.bias_NM
        seen_N = torch.isfinite(torch.zeros_like(self.p_NM) if bias_NM is None else bias_NM).sum(dim=1)
        curved = int(torch.clamp(seen_N - 1, max=min(out, head)).sum())
        centred = self.k_space.rank - (self.k_space.constant_r is not None)
        if tuple(roles) == ("q",):
            return min(curved, self.q_space.rank * min(head, centred))
        if tuple(roles) == ("k",):
            curved = int(torch.clamp(seen_N - 1, max=min(out, centred)).sum())
            biased = _has_bias(self.head.q_bias_d) and self.q_space.constant_r is None
            return min(curved, centred * min(head, tokens, self.q_space.rank + biased))
        if tuple(roles) == ("v",):
            return out * min(tokens, self.k_space.rank)
        if set(roles) != set(ROLES):
            raise ValueError(f"generic rank is known for q, k, v and all three together, not for {tuple(roles)}")
        if tokens <= self.k_space.rank:
            return self.rows
        free = self.columns() - gauge_dimension(
            head=head, q_bias=_has_bias(self.head.q_bias_d), q_space=self.q_space, k_space=self.k_space
        )
        return min(self.rows, free)

    def null_basis(self, roles: Sequence[str] = ROLES) -> Tensor | None:
        """Return an orthonormal basis of the known null space of the blocks, (columns, number), None when there is none."""
        if tuple(roles) != ROLES:
            return None
        q_dr, k_ds = self.head.q_dD @ self.q_space.basis_Dr, self.head.k_dE @ self.k_space.basis_Dr
        basis = gauge_basis(q_dr, k_ds, q_bias_d=self.head.q_bias_d, q_space=self.q_space, k_space=self.k_space)
        return torch.cat([basis, basis.new_zeros(self.widths["v"], basis.shape[1])])

    def weak_rows(self, roles: Sequence[str] = ROLES) -> Tensor | None:
        """Return orthonormal directions of the outputs, (rows, o), on which J_V is smallest; None without J_V.

        J_V = P X ⊗ I: with u the last left singular vector of P X they are u ⊗ I, and ‖J_Vᵀ (u ⊗ I)‖ = σ_min(P X).
        """
        if "v" not in roles:
            return None
        tokens, out = self.a_No.shape
        left, _, _ = torch.linalg.svd(self.y_Ns, full_matrices=tokens > self.y_Ns.shape[1])
        u_N: Tensor = left[:, -1]
        eye_oo = torch.eye(out, dtype=u_N.dtype, device=u_N.device)
        return (u_N[:, None, None] * eye_oo).reshape(tokens * out, out)

    def _parts(self, direction_Pb: Tensor, roles: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield each role with its part of a direction as a weight, (out, in, b)."""
        start = 0
        for role in roles:
            rank = self.x_Nr.shape[1] if role == "q" else self.z_Ms.shape[1]
            part_Cb = direction_Pb[start : start + self.widths[role]]
            start += self.widths[role]
            yield role, part_Cb.reshape(-1, rank, part_Cb.shape[1])


def _space(tokens_ND: Tensor, tolerance: float, reduce: bool) -> TokenSpace:
    space = token_space(tokens_ND, tolerance=tolerance)
    if reduce:
        return space
    width = tokens_ND.shape[1]
    constant_D = None if space.constant_r is None else space.basis_Dr @ space.constant_r
    return TokenSpace(tokens_ND, torch.eye(width, dtype=tokens_ND.dtype, device=tokens_ND.device), constant_D)


def _linearise(
    p_NM: Tensor, v_Mo: Tensor, k_Md: Tensor, z_Ms: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return B, M, y and a of the file's legend.

    Covariances under p_i are taken about the row's most attended key. About zero they would be differences of numbers of
    order one, and a saturated row, whose true B is 1e-21, would return rounding noise of 1e-16.
    """
    tokens, out = len(p_NM), v_Mo.shape[1]
    B_Nod = p_NM.new_empty(tokens, out, k_Md.shape[1])
    M_Nos = p_NM.new_empty(tokens, out, z_Ms.shape[1])
    y_Ns, a_No = p_NM.new_empty(tokens, z_Ms.shape[1]), p_NM.new_empty(tokens, out)
    for rows in _chunks(tokens, len(v_Mo) * (out + k_Md.shape[1] + z_Ms.shape[1])):
        p_nM = p_NM[rows]
        top_n = p_nM.argmax(dim=1)
        v_nMo = v_Mo - v_Mo[top_n][:, None]
        weighted_nMo = p_nM[:, :, None] * v_nMo
        mean_v_no = weighted_nMo.sum(dim=1)
        for source, target in ((k_Md, B_Nod), (z_Ms, M_Nos)):
            moved_nMc = source - source[top_n][:, None]
            mean_nc = torch.einsum("nM,nMc->nc", p_nM, moved_nMc)
            target[rows] = scale * (weighted_nMo.mT @ moved_nMc - mean_v_no[:, :, None] * mean_nc[:, None])
            if source is z_Ms:
                y_Ns[rows] = z_Ms[top_n] + mean_nc
        a_No[rows] = v_Mo[top_n] + mean_v_no
    return B_Nod, M_Nos, y_Ns, a_No


def _chunks(rows: int, numbers_per_row: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // max(1, numbers_per_row))
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


def _has_bias(bias_d: Tensor | None) -> bool:
    return bias_d is not None and bool(bias_d.any())
