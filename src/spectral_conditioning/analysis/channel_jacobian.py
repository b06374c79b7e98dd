"""Closed-form Jacobian of attention between channels: XCiT's cross-covariance attention and DaViT's channel attention.

With v_e the (N,) values of channel e, P = softmax(τ q̂ k̂ᵀ) over channels and a_c = Σ_e P_ce v_e the output of channel c,

    ∂a_c/∂W_V[e] = P_ce X                               ∂a_c/∂W_Q[c] = τ Σ_e P_ce (v_e − a_c) (Π_q,c k̂_e)ᵀ X / ‖q_c‖
    ∂a_c/∂W_K[e] = τ P_ce (v_e − a_c) (Π_k,e q̂_c)ᵀ X / ‖k_e‖

where Π_q,c = I − q̂_c q̂_cᵀ and Π_k,e = I − k̂_e k̂_eᵀ are the derivative of the L2 normalisation (absent, with the
norms, when q and k are not normalised). The other derivatives ∂a_c/∂W_Q[c'] are zero.

# N tokens, D width, r rank of the tokens, R dimension of the outputs' span, d head width (c output channel, e attended
# channel), b directions at once. Rows of J: (d, R), in an orthonormal basis of the outputs' span. Columns: [W_Q; W_K;
# W_V], each (d, r).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_conditioning.analysis.attention_inputs import ROLES, ChannelHead
from spectral_conditioning.analysis.token_space import token_space


class ChannelJacobian:
    """J of one channel-attention head with respect to its three projections, kept in factored form.

    Outputs lie in the span of the tokens (and of the constant vector, when V has a bias), so J has rank at most d·R and
    full row rank in that basis: J Jᵀ (d·R square) is always the matrix to take. Computed in float64.
    """

    def __init__(self, head: ChannelHead) -> None:
        if head.context_ME is not None:
            raise ValueError(
                "attention between channels takes queries, keys and values from the same tokens; leave `context_ME` out"
            )
        self.head = head = head.double()
        space = token_space(head.tokens_ND, tolerance=head.rank_tolerance)
        self.x_Nr = space.coordinates_Nr
        self.basis_NR = self._output_basis(biased=head.v_bias_o is not None and bool(head.v_bias_o.any()))
        q_Nd, k_Nd = head.channels()
        self.p_dd = head.probabilities_dd
        values_Rd = self.basis_NR.T @ head.values_Mo
        self.a_dR = self.p_dd @ values_Rd.T
        # (c, e, R): how output channel c moves when attention flows to channel e, weighted by P_ce.
        self.pull_ceR = head.temperature * self.p_dd[:, :, None] * (values_Rd.T[None] - self.a_dR[:, None])
        self.x_Rr = self.basis_NR.T @ self.x_Nr
        # (c, e, r): derivative of q̂_c·k̂_e with respect to W_Q[c] and to W_K[e].
        self.by_q_cer, self.by_k_cer = self._logit_gradients(q_Nd, k_Nd)

    @property
    def rows(self) -> int:
        """Independent outputs of the head, d·R."""
        return self.a_dR.numel()

    @property
    def widths(self) -> dict[str, int]:
        """Columns of J that belong to each projection."""
        return dict.fromkeys(ROLES, self.a_dR.shape[0] * self.x_Nr.shape[1])

    def columns(self, roles: Sequence[str] = ROLES) -> int:
        """Number of columns of the blocks named."""
        return sum(self.widths[role] for role in roles)

    def forward(self, direction_Pb: Tensor, roles: Sequence[str] = ROLES) -> Tensor:
        """Return J @ direction: (columns, b) → (rows, b)."""
        result_dRb = direction_Pb.new_zeros(*self.a_dR.shape, direction_Pb.shape[1])
        parts = direction_Pb.reshape(len(roles), len(self.a_dR), self.x_Nr.shape[1], -1)
        for role, part_drb in zip(roles, parts, strict=True):
            if role == "q":
                result_dRb += self.pull_ceR.mT @ (self.by_q_cer @ part_drb)
            elif role == "k":
                logits_ceb = torch.einsum("cer,erb->ceb", self.by_k_cer, part_drb)
                result_dRb += self.pull_ceR.mT @ logits_ceb
            else:
                result_dRb += torch.einsum("ce,Rr,erb->cRb", self.p_dd, self.x_Rr, part_drb)
        return result_dRb.flatten(0, 1)

    def adjoint(self, cotangent_Qb: Tensor, roles: Sequence[str] = ROLES) -> Tensor:
        """Return Jᵀ @ cotangent: (rows, b) → (columns, b)."""
        u_dRb = cotangent_Qb.reshape(*self.a_dR.shape, -1)
        pulled_ceb = self.pull_ceR @ u_dRb
        parts = []
        for role in roles:
            if role == "q":
                part = self.by_q_cer.mT @ pulled_ceb
            elif role == "k":
                part = torch.einsum("cer,ceb->erb", self.by_k_cer, pulled_ceb)
            else:
                part = torch.einsum("ce,Rr,cRb->erb", self.p_dd, self.x_Rr, u_dRb)
            parts.append(part.flatten(0, 1))
        return torch.cat(parts)

    def dense(self, roles: Sequence[str] = ROLES) -> Tensor:
        """Return J itself, (d·R, columns)."""
        eye = torch.eye(self.columns(roles), dtype=self.a_dR.dtype, device=self.a_dR.device)
        return self.forward(eye, roles)

    def gram(self, roles: Sequence[str] = ROLES) -> Tensor:
        """Return J Jᵀ, (d·R, d·R), block by block of output channels."""
        head, span = self.a_dR.shape
        gram = self.a_dR.new_zeros(head, span, head, span)
        if "v" in roles:
            xx_RR = self.x_Rr @ self.x_Rr.T
            gram += torch.einsum("cf,RS->cRfS", self.p_dd @ self.p_dd.T, xx_RR)
        for channel in range(head):
            pull_eR = self.pull_ceR[channel]
            if "q" in roles:
                row_Rr = pull_eR.T @ self.by_q_cer[channel]
                gram[channel, :, channel] += row_Rr @ row_Rr.T
            if "k" in roles:
                alike_fe = torch.einsum("er,fer->fe", self.by_k_cer[channel], self.by_k_cer)
                weighted_efR = (alike_fe[:, :, None] * self.pull_ceR).transpose(0, 1)
                gram[channel] += (pull_eR.T @ weighted_efR.flatten(1)).view(span, head, span)
        return gram.view(self.rows, self.rows)

    def generic_rank(self, roles: Sequence[str] = ROLES) -> int:
        """Return d·R, the rank of J for weights in general position, or d·r for J_V alone."""
        if set(roles) == set(ROLES):
            return self.rows
        if tuple(roles) == ("v",):
            return self.a_dR.shape[0] * self.x_Nr.shape[1]
        raise ValueError(
            f"generic rank of channel attention is known for v and for q, k and v together, not for {tuple(roles)}"
        )

    def null_basis(self, roles: Sequence[str] = ROLES) -> Tensor | None:
        """Return None: J Jᵀ is the matrix taken, and it has no null space in general position."""
        return None

    def weak_rows(self, roles: Sequence[str] = ROLES) -> Tensor | None:
        """Return None: no directions are suspected of being smallest."""
        return None

    def _output_basis(self, *, biased: bool) -> Tensor:
        spanning_Nm = self.x_Nr
        if biased:
            spanning_Nm = torch.cat([spanning_Nm, spanning_Nm.new_ones(len(spanning_Nm), 1)], dim=1)
        left, sigma, _ = torch.linalg.svd(spanning_Nm / spanning_Nm.norm(dim=0), full_matrices=False)
        basis_NR: Tensor = left[:, sigma > self.head.rank_tolerance * sigma[0]]
        return basis_NR

    def _logit_gradients(self, q_Nd: Tensor, k_Nd: Tensor) -> tuple[Tensor, Tensor]:
        qx_dr, kx_dr = q_Nd.T @ self.x_Nr, k_Nd.T @ self.x_Nr
        head = len(qx_dr)
        if not self.head.normalised:
            return kx_dr.expand(head, *kx_dr.shape), qx_dr[:, None].expand(head, *kx_dr.shape)
        cosine_ce = q_Nd.T @ k_Nd
        norm_q_c = self.head.queries_Nd.norm(dim=0)[:, None, None]
        norm_k_e = self.head.keys_Md.norm(dim=0)[None, :, None]
        by_q_cer = (kx_dr[None] - cosine_ce[:, :, None] * qx_dr[:, None]) / norm_q_c
        by_k_cer = (qx_dr[:, None] - cosine_ce[:, :, None] * kx_dr[None]) / norm_k_e
        return by_q_cer, by_k_cer
