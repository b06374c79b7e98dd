"""The encoder of the Long Range Arena experiments and its two heads: one document, or a pair of documents.

Two pre-norm layers of width 64 in the published setting (mlpen/Nystromformer, LRA/code), with attention from `attention.py`.
"""

# B batch, N tokens (padded length), D width, C classes.

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.lra.attention import NystromAttention, Padding, SelfAttention, SoftmaxAttention
from spectral_conditioning.tasks.lra.config import ModelConfig


def build_attention(config: ModelConfig, tokens: int) -> SelfAttention:
    """Return the attention that `config.attention` names, for sequences padded to `tokens`."""
    if config.attention == "softmax":
        return SoftmaxAttention(config.width, config.heads, config.head_dim, dropout=config.attention_dropout)
    return NystromAttention(
        config.width,
        config.heads,
        config.head_dim,
        tokens=tokens,
        landmarks=config.landmarks,
        mode=config.mode,
        kernel_size=config.kernel_size,
        iterations=config.inverse_iterations,
        start=config.inverse_start,
    )


class Block(nn.Module):
    """x ← x + dropout(attention(norm(x))); x ← x + MLP(norm(x)), MLP = Linear, GELU, dropout, Linear, dropout."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = build_attention(config, tokens)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.mlp_width),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.mlp_width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x_BND: Tensor, padding: Padding | None) -> Tensor:
        x_BND = x_BND + self.dropout(self.attention(self.norm1(x_BND), padding))
        out: Tensor = x_BND + self.mlp(self.norm2(x_BND))
        return out


class Encoder(nn.Module):
    """Token ids → one vector per sequence: embeddings, blocks, a final norm and pooling.

    mode "published": an id 0 is padding wherever it stands, black pixels included, as in the reference code, and `lengths_B` is
    not looked at. Mode "exact": padding is what lies behind each sequence's length.
    pooling: "mean_padded", the sum over real tokens divided by the padded length (published); "mean", divided by their
    number; "cls", the vector of a token with the last id of the vocabulary, which is put in front and pushes the last
    position out.
    """

    def __init__(self, config: ModelConfig, *, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.vocabulary = tokens, vocabulary
        self.mode, self.pooling = config.mode, config.pooling
        self.token_embedding = nn.Embedding(vocabulary, config.width)
        self.position_embedding = nn.Embedding(tokens, config.width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, tokens) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def padding(self, ids_BN: Tensor, lengths_B: Tensor | None) -> Padding | None:
        """Return where the padding is, None when the exact mode is told of none."""
        if self.mode == "published":
            return Padding((ids_BN != 0).float())
        if lengths_B is None:
            return None
        position_N = torch.arange(ids_BN.shape[1], device=ids_BN.device)
        return Padding((position_N < lengths_B[:, None]).float(), lengths_B)

    def _prepend_cls(self, ids_BN: Tensor, lengths_B: Tensor | None) -> tuple[Tensor, Tensor | None]:
        cls_B1 = torch.full_like(ids_BN[:, :1], self.vocabulary - 1)
        lengths_B = None if lengths_B is None else (lengths_B + 1).clamp(max=ids_BN.shape[1])
        return torch.cat([cls_B1, ids_BN[:, :-1]], dim=1), lengths_B

    def forward(self, ids_BN: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        N = ids_BN.shape[1]
        if self.tokens < N:
            raise ConfigError(
                f"a sequence of {N} tokens reached a model with {self.tokens} positions; raise data.padded_length"
            )
        if self.pooling == "cls":
            ids_BN, lengths_B = self._prepend_cls(ids_BN, lengths_B)
        padding = self.padding(ids_BN, lengths_B)
        x_BND = self.dropout(self.token_embedding(ids_BN) + self.position_embedding.weight[:N])
        for block in self.blocks:
            x_BND = block(x_BND, padding)
        return self._pool(self.norm(x_BND), padding)

    def _pool(self, x_BND: Tensor, padding: Padding | None) -> Tensor:
        if self.pooling == "cls":
            return x_BND[:, 0]
        if padding is None:
            return x_BND.mean(dim=1)
        sum_BD = (x_BND * padding.mask_BN[:, :, None]).sum(dim=1)
        if self.pooling == "mean_padded":
            return sum_BD / x_BND.shape[1]
        return sum_BD / padding.mask_BN.sum(dim=1, keepdim=True).clamp(min=1)


def _head(inputs: int, config: ModelConfig, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, config.mlp_width), nn.ReLU(), nn.Linear(config.mlp_width, classes))


class SequenceClassifier(nn.Module):
    """Logits (B, C) of one sequence."""

    def __init__(self, config: ModelConfig, *, tokens: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, tokens=tokens, vocabulary=vocabulary)
        self.head = _head(config.width, config, classes)

    def forward(self, ids_BN: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        logits_BC: Tensor = self.head(self.encoder(ids_BN, lengths_B))
        return logits_BC


class PairClassifier(nn.Module):
    """Logits (B, C) of two documents through one encoder: head([x₀, x₁, x₀ x₁, x₀ − x₁]).

    ids_B2N: both documents; each is encoded in a pass of its own, since the published start value looks at a whole batch.
    """

    def __init__(self, config: ModelConfig, *, tokens: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, tokens=tokens, vocabulary=vocabulary)
        self.head = _head(4 * config.width, config, classes)

    def forward(self, ids_B2N: Tensor, lengths_B2: Tensor | None = None) -> Tensor:
        first_BD, second_BD = (
            self.encoder(ids_B2N[:, i], None if lengths_B2 is None else lengths_B2[:, i]) for i in (0, 1)
        )
        joined = torch.cat([first_BD, second_BD, first_BD * second_BD, first_BD - second_BD], dim=-1)
        logits_BC: Tensor = self.head(joined)
        return logits_BC
