"""What the masked language models of this task have in common, and the table of their names.

A model encodes token ids into hidden states and decodes hidden states into logits over the vocabulary. Only masked positions are
decoded (sparse prediction): of 128 hidden states a quarter or less reaches the 32,768-way matrix product.
"""

# B sequences, N tokens, D width, M predicted positions per sequence, V vocabulary.

from __future__ import annotations

import abc
import dataclasses

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers that a named architecture is built from. ffn: rows of the first feed-forward layer."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    ffn: int
    length: int
    dropout: float


class MaskedLanguageModel(nn.Module, abc.ABC):
    """Token ids → hidden states → logits. `width` is the size of a hidden state."""

    width: int

    @abc.abstractmethod
    def encode(self, ids_BN: Tensor, visible_BN: Tensor | None = None) -> Tensor:
        """Return hidden states (B, N, D); tokens with `visible_BN` false are attended to by none."""

    @abc.abstractmethod
    def decode(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) of hidden states (..., D)."""

    @abc.abstractmethod
    def decoder_only(self) -> list[nn.Parameter]:
        """Return the parameters that `decode` alone uses, which fine-tuning leaves out."""

    def forward(self, ids_BN: Tensor, positions_BM: Tensor | None = None) -> Tensor:
        """Return logits at the given positions (B, M, V), or at all (B, N, V)."""
        hidden_BND = self.encode(ids_BN)
        return self.decode(hidden_BND if positions_BM is None else select(hidden_BND, positions_BM))


def select(hidden_BND: Tensor, positions_BM: Tensor) -> Tensor:
    """Return the hidden states at `positions_BM` as (B, M, D)."""
    return torch.take_along_dim(hidden_BND, positions_BM.unsqueeze(-1), dim=1)
