"""Self-attention of the Long Range Arena models: Nyström's approximation in two readings, and exact softmax.

Every class keeps W_q, W_k and W_v as separate `nn.Linear` layers, as the reference code does, so that `condition()` serves
them by one layout (`LAYOUTS` in `task.py`).
"""

# B batch, N tokens, D width (= H d), H heads, d head width, m landmarks. Weights are (out, in).

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.lra.landmarks import pseudo_inverse, segment_means, segment_weights

MODES = ("published", "exact")


class Padding(NamedTuple):
    """Which positions hold tokens.

    mask_BN: float, 1 at a token and 0 at padding. lengths_B: number of leading tokens of each sequence, where padding is
    known to be a suffix; None where it is not (the published mode takes every id 0 for padding, wherever it stands).
    """

    mask_BN: Tensor
    lengths_B: Tensor | None = None


class SelfAttention(nn.Module):
    """Project to queries, keys and values, attend, project back: out = W_o concat_h A_h(X W_q, X W_k, X W_v).

    A subclass writes `attend`. Queries, keys and values enter it in float32 or wider, under autocast too, as in the
    reference code.
    """

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.W_q = nn.Linear(width, heads * head_dim)
        self.W_k = nn.Linear(width, heads * head_dim)
        self.W_v = nn.Linear(width, heads * head_dim)
        self.out = nn.Linear(heads * head_dim, width)

    def _heads(self, x_BND: Tensor) -> Tensor:
        return x_BND.view(*x_BND.shape[:-1], self.heads, self.head_dim).transpose(1, 2)

    def attend(self, q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, padding: Padding | None) -> Tensor:
        """Return (B, H, N, d)."""
        raise NotImplementedError

    def forward(self, x_BND: Tensor, padding: Padding | None = None) -> Tensor:
        projected = [layer(x_BND) for layer in (self.W_q, self.W_k, self.W_v)]
        with torch.autocast(x_BND.device.type, enabled=False):
            q, k, v = (self._heads(p.to(torch.promote_types(p.dtype, torch.float32))) for p in projected)
            mixed_BHNd = self.attend(q, k, v, padding)
        merged: Tensor = self.out(mixed_BHNd.transpose(1, 2).flatten(-2))
        return merged


def key_bias(mask_BN: Tensor, amount: float) -> Tensor:
    """Return the additive mask of the keys, (B, 1, 1, N): 0 at tokens, −amount at padding."""
    return ((mask_BN - 1) * amount)[:, None, None, :]


class SoftmaxAttention(SelfAttention):
    """softmax(Q Kᵀ/√d) V, quadratic in N. Padded keys get −1e6, as in the reference code."""

    def __init__(self, width: int, heads: int, head_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, heads, head_dim)
        self.dropout = dropout

    def attend(self, q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, padding: Padding | None) -> Tensor:
        bias = None if padding is None else key_bias(padding.mask_BN.to(q_BHNd.dtype), 1e6)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q_BHNd, k_BHNd, v_BHNd, attn_mask=bias, dropout_p=dropout)


class NystromAttention(SelfAttention):
    """Attention through m landmarks, linear in N (Xiong et al. 2021), plus a depth-wise convolution of the values.

        A = softmax(Q K̃ᵀ/√d) softmax(Q̃ K̃ᵀ/√d)⁺ softmax(Q̃ Kᵀ/√d) V + conv(V),   Q̃, K̃ (m, d) segment means

    mode: "published", the arithmetic of the reference code: segments of the padded length, in which padded queries and keys
    count as zero vectors; the mask reaches the third kernel and the convolution only. Padding and, with start "batch",
    batch-mates change a token's output. "exact": segments of each sequence's own length, every kernel masked, so that
    neither does. tokens: the padded length, the only one that the published mode takes. landmarks = tokens is exact
    softmax, and so is, in the exact mode, every sequence of at most m tokens. kernel_size: odd, 0 for no convolution.
    iterations, start: of `pseudo_inverse`. The product is taken from the right, so no N×m matrix is multiplied by an m×m one.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        *,
        tokens: int,
        landmarks: int,
        mode: str = "published",
        kernel_size: int = 35,
        iterations: int = 6,
        start: str = "batch",
    ) -> None:
        super().__init__(width, heads, head_dim)
        if tokens % landmarks and mode == "published":
            raise ConfigError(
                f"task.model.landmarks is {landmarks}, which does not divide the padded length {tokens}; the published mode "
                f"needs equal segments: choose a divisor of {tokens}, or task.model.mode=exact"
            )
        self.tokens, self.landmarks, self.mode = tokens, landmarks, mode
        self.iterations, self.start = iterations, start
        self.conv_weight: nn.Parameter | None = None
        if kernel_size:
            convolution = nn.Conv2d(heads, heads, (kernel_size, 1), groups=heads, bias=False)
            self.conv_weight = nn.Parameter(convolution.weight.detach().clone())

    @property
    def exact_softmax(self) -> bool:
        """Whether every token is its own landmark, so that no approximation takes place."""
        return self.landmarks == self.tokens

    def extra_repr(self) -> str:
        branch = "exact softmax" if self.exact_softmax else f"{self.landmarks} landmarks of {self.tokens} tokens"
        return f"{self.mode}, {branch}, start={self.start}, iterations={self.iterations}"

    def attend(self, q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, padding: Padding | None) -> Tensor:
        if self.mode == "published":
            mixed_BHNd = self._published(q_BHNd, k_BHNd, v_BHNd, padding)
        else:
            mixed_BHNd = self._exact(q_BHNd, k_BHNd, v_BHNd, padding)
        if self.conv_weight is not None:
            mixed_BHNd = mixed_BHNd + self._convolution(v_BHNd, padding)
        return mixed_BHNd

    def _published(self, q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, padding: Padding | None) -> Tensor:
        tokens = q_BHNd.shape[2]
        if tokens != self.tokens:
            raise ConfigError(
                f"the published mode was built for sequences padded to {self.tokens} tokens and got {tokens}; "
                f"pad to {self.tokens}, or use task.model.mode=exact, which takes any length"
            )
        bias = None
        if padding is not None:
            mask_B1N1 = padding.mask_BN.to(q_BHNd.dtype)[:, None, :, None]
            q_BHNd, k_BHNd = q_BHNd * mask_B1N1, k_BHNd * mask_B1N1
            bias = key_bias(mask_B1N1[:, 0, :, 0], 1e9)
        if self.exact_softmax:
            return F.scaled_dot_product_attention(q_BHNd, k_BHNd, v_BHNd, attn_mask=bias)
        q_BHmd, k_BHmd = segment_means(q_BHNd, self.landmarks), segment_means(k_BHNd, self.landmarks)
        return self._three_kernels(q_BHNd, k_BHNd, v_BHNd, q_BHmd, k_BHmd, key_mask=bias, landmark_mask=None)

    def _exact(self, q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, padding: Padding | None) -> Tensor:
        B, _, N, _ = q_BHNd.shape
        if padding is None:
            lengths_B, bias = torch.full((B,), N, device=q_BHNd.device), None
        elif padding.lengths_B is None:
            raise ConfigError("the exact mode needs the length of each sequence, not a mask alone")
        else:
            lengths_B, mask_BN = padding.lengths_B, padding.mask_BN.to(q_BHNd.dtype)
            bias = key_bias(mask_BN, torch.finfo(mask_BN.dtype).max / 2)
        if self.landmarks >= N:
            return F.scaled_dot_product_attention(q_BHNd, k_BHNd, v_BHNd, attn_mask=bias)
        if padding is None and N % self.landmarks == 0:
            q_BHmd, k_BHmd = segment_means(q_BHNd, self.landmarks), segment_means(k_BHNd, self.landmarks)
            return self._three_kernels(q_BHNd, k_BHNd, v_BHNd, q_BHmd, k_BHmd, key_mask=None, landmark_mask=None)
        P_B1mN = segment_weights(lengths_B, N, self.landmarks).to(q_BHNd.dtype)[:, None]
        used_Bm = torch.arange(self.landmarks, device=lengths_B.device) < lengths_B[:, None]
        mixed_BHNd = self._three_kernels(
            q_BHNd, k_BHNd, v_BHNd, P_B1mN @ q_BHNd, P_B1mN @ k_BHNd, key_mask=bias, landmark_mask=used_Bm
        )
        if padding is None:
            return mixed_BHNd
        return self._short_sequences(q_BHNd, k_BHNd, v_BHNd, mixed_BHNd, lengths_B, bias)

    def _three_kernels(
        self,
        q_BHNd: Tensor,
        k_BHNd: Tensor,
        v_BHNd: Tensor,
        q_BHmd: Tensor,
        k_BHmd: Tensor,
        *,
        key_mask: Tensor | None,
        landmark_mask: Tensor | None,
    ) -> Tensor:
        scores_BHmm = q_BHmd @ k_BHmd.transpose(-1, -2) * self.head_dim**-0.5
        landmark_bias = None
        if landmark_mask is not None:
            scores_BHmm = self._separate_unused(scores_BHmm, landmark_mask)
            landmark_bias = torch.zeros_like(landmark_mask, dtype=q_BHNd.dtype)
            landmark_bias = landmark_bias.masked_fill(~landmark_mask, torch.finfo(q_BHNd.dtype).min)[:, None, None]
        inverse_BHmm = pseudo_inverse(scores_BHmm.softmax(dim=-1), iterations=self.iterations, start=self.start)
        gathered_BHmd = F.scaled_dot_product_attention(q_BHmd, k_BHNd, v_BHNd, attn_mask=key_mask)
        return F.scaled_dot_product_attention(q_BHNd, k_BHmd, inverse_BHmm @ gathered_BHmd, attn_mask=landmark_bias)

    @staticmethod
    def _separate_unused(scores_BHmm: Tensor, used_Bm: Tensor) -> Tensor:
        """Make the middle kernel block-diagonal, [[K, 0], [0, I]]: its inverse then holds K⁺ as if the rest were not there."""
        lowest = torch.finfo(scores_BHmm.dtype).min
        both_B1mm = (used_Bm[:, None, :] & used_Bm[:, :, None])[:, None]
        eye = torch.eye(used_Bm.shape[1], dtype=torch.bool, device=used_Bm.device)
        return scores_BHmm.masked_fill(~both_B1mm, lowest).masked_fill(~both_B1mm & eye, 0.0)

    def _short_sequences(
        self, q: Tensor, k: Tensor, v: Tensor, mixed_BHNd: Tensor, lengths_B: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Give sequences of at most m tokens exact softmax, whatever the length of their batch-mates."""
        m = self.landmarks
        q, k, v = (x[:, :, :m] for x in (q, k, v))
        softmax_BHmd = F.scaled_dot_product_attention(q, k, v, attn_mask=None if bias is None else bias[..., :m])
        short_B111 = (lengths_B <= m)[:, None, None, None]
        head = torch.where(short_B111, softmax_BHmd, mixed_BHNd[:, :, :m])
        return torch.cat([head, mixed_BHNd[:, :, m:]], dim=2)

    def _convolution(self, v_BHNd: Tensor, padding: Padding | None) -> Tensor:
        """Convolve each head's values along the sequence, one kernel per head shared by its d channels.

        Run as a channels-last convolution over D channels: many times faster on a CPU than over (B, H, N, d) images.
        """
        assert self.conv_weight is not None
        if padding is not None:
            v_BHNd = v_BHNd * padding.mask_BN.to(v_BHNd.dtype)[:, None, :, None]
        v_BDN1 = v_BHNd.transpose(1, 2).flatten(-2).transpose(1, 2)[..., None]
        kernel_D1K1 = self.conv_weight.to(v_BHNd.dtype).repeat_interleave(self.head_dim, dim=0)
        out_BDN1 = F.conv2d(
            v_BDN1, kernel_D1K1, padding=(kernel_D1K1.shape[2] // 2, 0), groups=self.heads * self.head_dim
        )
        B, _, N, d = v_BHNd.shape
        return out_BDN1.reshape(B, self.heads, d, N).transpose(2, 3)
