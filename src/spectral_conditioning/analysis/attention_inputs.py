"""One attention head as plain float64 tensors: what the Jacobian, the bounds and the saturation measures start from.

Weights are stored (out, in), so the paper's W_Q of shape D×d is `q_dD.T` here.

# N query tokens, M key tokens, D width of the queries' tokens, E width of the keys' tokens,
# d head width of Q and K, o head width of V (usually o = d).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

ROLES = ("q", "k", "v")


@dataclass(frozen=True)
class HeadInputs:
    """Tokens and projections of one head, of softmax or of cross-covariance attention.

    `q_dD`, `k_dE`, `v_oE` are weights, `*_bias_*` their biases (None: no bias). `context_ME` holds the tokens that keys
    and values are computed from (None: the query tokens, which is self-attention). `rank_tolerance` decides which
    singular values of the tokens are rounding noise, relative to the largest: 1e-12 fits tokens computed in float64,
    1e-6 tokens that came out of a float32 model.
    """

    tokens_ND: Tensor
    q_dD: Tensor
    k_dE: Tensor
    v_oE: Tensor
    q_bias_d: Tensor | None = None
    k_bias_d: Tensor | None = None
    v_bias_o: Tensor | None = None
    context_ME: Tensor | None = None
    rank_tolerance: float = 1e-12

    def __post_init__(self) -> None:
        problems = []
        if self.q_dD.shape[1] != self.tokens_ND.shape[1]:
            problems.append(f"W_Q takes {self.q_dD.shape[1]} features, the query tokens have {self.tokens_ND.shape[1]}")
        for name, weight in (("W_K", self.k_dE), ("W_V", self.v_oE)):
            if weight.shape[1] != self.key_tokens_ME.shape[1]:
                problems.append(
                    f"{name} takes {weight.shape[1]} features, the key tokens have {self.key_tokens_ME.shape[1]}"
                )
        if self.q_dD.shape[0] != self.k_dE.shape[0]:
            problems.append(f"W_Q has {self.q_dD.shape[0]} outputs and W_K {self.k_dE.shape[0]}; they must agree")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def key_tokens_ME(self) -> Tensor:
        """Tokens that keys and values are computed from."""
        return self.tokens_ND if self.context_ME is None else self.context_ME

    @property
    def queries_Nd(self) -> Tensor:
        """q_i = W_Q x_i + b_Q, one row a token."""
        return _affine(self.tokens_ND, self.q_dD, self.q_bias_d)

    @property
    def keys_Md(self) -> Tensor:
        """k_j = W_K z_j + b_K, one row a token."""
        return _affine(self.key_tokens_ME, self.k_dE, self.k_bias_d)

    @property
    def values_Mo(self) -> Tensor:
        """v_j = W_V z_j + b_V, one row a token."""
        return _affine(self.key_tokens_ME, self.v_oE, self.v_bias_o)

    def double(self) -> Self:
        """Return the same head with every tensor in float64."""
        tensors: dict[str, Any] = {
            key: value.double() for key, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class SoftmaxHead(HeadInputs):
    """A(X) = softmax(s (X W_Qᵀ)(Z W_Kᵀ)ᵀ + bias) Z W_Vᵀ, the softmax over keys (equation 1 of the paper, with s = 1 there).

    `scale` is s: 1/√d in practice, 1 in the paper's formula. `bias_NM` is added to the logits (relative positions, −inf
    where a query may not look).
    """

    scale: float = 1.0
    bias_NM: Tensor | None = None

    @property
    def logits_NM(self) -> Tensor:
        """s q_i·k_j + bias_ij, the numbers the softmax sees."""
        logits_NM = self.scale * self.queries_Nd @ self.keys_Md.T
        return logits_NM if self.bias_NM is None else logits_NM + self.bias_NM

    @property
    def probabilities_NM(self) -> Tensor:
        """Attention P, rows summing to one."""
        logits_NM = self.logits_NM
        blind = torch.isneginf(logits_NM).all(dim=1)
        if blind.any():
            raise ValueError(
                f"{int(blind.sum())} of {len(blind)} query tokens see no key at all; drop them or mend the mask"
            )
        return torch.softmax(logits_NM, dim=1)

    @property
    def output_No(self) -> Tensor:
        """Attention output P (Z W_Vᵀ + b_V), one row a query token."""
        return self.probabilities_NM @ self.values_Mo


@dataclass(frozen=True)
class ChannelHead(HeadInputs):
    """A(X) = (softmax(τ q̂ k̂ᵀ) v)ᵀ, attention between the d channels of a head instead of between tokens.

    With q, k, v the (d, N) matrices of a head, P = softmax(τ q̂ k̂ᵀ) is (d, d) and the output is P v, (d, N).
    `normalised`: q̂ and k̂ are q and k divided by the L2 norm of each channel over the tokens (XCiT); False: q and k
    themselves (DaViT's channel attention). `temperature` is τ.
    """

    temperature: float = 1.0
    normalised: bool = True

    def channels(self) -> tuple[Tensor, Tensor]:
        """Return q̂ and k̂ as (N, d), each column of unit norm when `normalised`."""
        q_Nd, k_Nd = self.queries_Nd, self.keys_Md
        if not self.normalised:
            return q_Nd, k_Nd
        # 1e-12 is the floor of torch.nn.functional.normalize, which the models call.
        return q_Nd / q_Nd.norm(dim=0).clamp_min(1e-12), k_Nd / k_Nd.norm(dim=0).clamp_min(1e-12)

    @property
    def logits_dd(self) -> Tensor:
        """τ q̂_c·k̂_e for every pair of channels."""
        q_Nd, k_Nd = self.channels()
        return self.temperature * q_Nd.T @ k_Nd

    @property
    def probabilities_dd(self) -> Tensor:
        """Channel attention P, rows summing to one."""
        return torch.softmax(self.logits_dd, dim=1)

    @property
    def output_No(self) -> Tensor:
        """Attention output (P v)ᵀ, one row a token."""
        return self.values_Mo @ self.probabilities_dd.T


def _affine(tokens_ND: Tensor, weight_dD: Tensor, bias_d: Tensor | None) -> Tensor:
    product_Nd = tokens_ND @ weight_dD.T
    return product_Nd if bias_d is None else product_Nd + bias_d
