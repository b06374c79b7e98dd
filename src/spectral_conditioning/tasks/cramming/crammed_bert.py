"""The crammed BERT of Geiping & Goldstein (2023), "Cramming: training a language model on a single GPU in one day".

    h = norm(E[x] + p);  h ← h + drop(attention(norm(h)));  h ← h + drop(ffn(norm(h)));  logits = head(norm(h)) Eᵀ

`crammed_bert`: 16 layers, gated feed-forward, no biases, scaled sinusoidal positions, a final norm and no head; 119.6 M
parameters at 32,768 words. `crammed_bert_simple`: 12 layers, GELU, biases, learned positions, a head and no final norm; 110.9 M.
Sizes, initialisation and order of operations follow cramming/architectures and config/arch of JonasGeiping/cramming.

The attention keeps Q, K and V in one weight whose rows go head by head, [q_h; k_h; v_h], each d rows (as GPT-NeoX).
"""

# B sequences, N tokens, D width, H heads, d head width. Weights are (out, in).

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel, Sizes

NORM_EPS = 1e-12
INIT_STD = 0.02
PADDING = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """What tells the two crammed architectures apart."""

    gated: bool
    biases: bool
    learned_positions: bool
    final_norm: bool
    head: bool


FULL = Design(gated=True, biases=False, learned_positions=False, final_norm=True, head=False)
SIMPLE = Design(gated=False, biases=True, learned_positions=True, final_norm=False, head=True)


class InterleavedAttention(nn.Module):
    """softmax(q kᵀ/√d) v in H heads, with one weight for q, k and v whose rows are interleaved head by head."""

    def __init__(self, *, width: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.dense = nn.Linear(width, width, bias=bias)

    def forward(self, x_BND: Tensor, visible_B11N: Tensor | None = None) -> Tensor:
        B, N, D = x_BND.shape
        fused = self.query_key_value(x_BND).view(B, N, self.heads, 3 * (D // self.heads)).transpose(1, 2)
        q_BHNd, k_BHNd, v_BHNd = fused.chunk(3, dim=-1)
        rate = self.dropout if self.training else 0.0
        y_BHNd = F.scaled_dot_product_attention(q_BHNd, k_BHNd, v_BHNd, attn_mask=visible_B11N, dropout_p=rate)
        return self.dense(y_BHNd.transpose(1, 2).reshape(B, N, D))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """W₂ GELU(W₁ x), or gated: W₂ (a ⊙ GELU(g)) with [a; g] = W₁ x."""

    def __init__(self, *, width: int, inner: int, gated: bool, bias: bool) -> None:
        super().__init__()
        self.gated = gated
        self.dense_in = nn.Linear(width, inner, bias=bias)
        self.dense_out = nn.Linear(inner // 2 if gated else inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense_in(x)
        if self.gated:
            value, gate = x.chunk(2, dim=-1)
            return self.dense_out(value * F.gelu(gate))  # type: ignore[no-any-return]
        return self.dense_out(F.gelu(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, sizes: Sizes, design: Design) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width, eps=NORM_EPS)
        self.attn = InterleavedAttention(
            width=sizes.width, heads=sizes.heads, dropout=sizes.dropout, bias=design.biases
        )
        self.norm2 = nn.LayerNorm(sizes.width, eps=NORM_EPS)
        self.ffn = FeedForward(width=sizes.width, inner=sizes.ffn, gated=design.gated, bias=design.biases)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BND: Tensor, visible_B11N: Tensor | None) -> Tensor:
        x_BND = x_BND + self.dropout(self.attn(self.norm1(x_BND), visible_B11N))
        return x_BND + self.dropout(self.ffn(self.norm2(x_BND)))  # type: ignore[no-any-return]


class ScaledSinusoid(nn.Module):
    """s · p with one trained scalar s, initially 1/√D, and p[n, 2i] = sin(n/10⁴^(2i/D)), p[n, 2i+1] = cos of the same."""

    table_ND: Tensor

    def __init__(self, *, length: int, width: int) -> None:
        super().__init__()
        angle = torch.arange(length).unsqueeze(1) * torch.exp(-math.log(1e4) / width * torch.arange(0, width, 2))
        table_ND = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        self.register_buffer("table_ND", table_ND, persistent=False)
        self.scale = nn.Parameter(torch.tensor([width**-0.5]))

    def forward(self, tokens: int) -> Tensor:
        return self.scale * self.table_ND[:tokens]


class LearnedPositions(nn.Module):
    """One trained vector per position."""

    def __init__(self, *, length: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(length, width)

    def forward(self, tokens: int) -> Tensor:
        return self.embedding.weight[:tokens]


class PredictionHead(nn.Module):
    """norm(GELU(W h))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(hidden)))  # type: ignore[no-any-return]


class CrammedBert(MaskedLanguageModel):
    """Either crammed architecture. The embedding is also the decoder's weight; row 0 (padding) is zero and stays it."""

    def __init__(self, sizes: Sizes, design: Design) -> None:
        super().__init__()
        self.width, self.length = sizes.width, sizes.length
        positions = LearnedPositions if design.learned_positions else ScaledSinusoid
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width, padding_idx=PADDING)
        self.positions = positions(length=sizes.length, width=sizes.width)
        self.embedding_norm = nn.LayerNorm(sizes.width, eps=NORM_EPS)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.ModuleList(Layer(sizes, design) for _ in range(sizes.layers))
        self.final_norm = nn.LayerNorm(sizes.width, eps=NORM_EPS) if design.final_norm else nn.Identity()
        self.head = PredictionHead(sizes.width) if design.head else nn.Identity()
        self.decoder_bias = nn.Parameter(torch.zeros(sizes.vocabulary)) if design.biases else None
        self.apply(initialise)

    def encode(self, ids_BN: Tensor, visible_BN: Tensor | None = None) -> Tensor:
        visible_B11N = None if visible_BN is None else visible_BN[:, None, None, :]
        x_BND = self.embedding(ids_BN) + self.positions(ids_BN.shape[1])
        x_BND = self.dropout(self.embedding_norm(x_BND))
        for layer in self.layers:
            x_BND = layer(x_BND, visible_B11N)
        return self.final_norm(x_BND)  # type: ignore[no-any-return]

    def decode(self, hidden: Tensor) -> Tensor:
        return F.linear(self.head(hidden), self.embedding.weight, self.decoder_bias)

    def decoder_only(self) -> list[nn.Parameter]:
        bias = [] if self.decoder_bias is None else [self.decoder_bias]
        return [*self.head.parameters(), *bias]


def initialise(module: nn.Module) -> None:
    """Draw matrices and embeddings from N(0, 0.02²); biases, and the padding row, start at zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
