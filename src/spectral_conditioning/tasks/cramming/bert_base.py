"""BERT-base as transformers builds it, behind the interface of the other models; for the reading of the paper's "110M"."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel, Sizes

PADDING = 0


class BertBase(MaskedLanguageModel):
    """`BertForMaskedLM`: post-norm, biases, learned positions, q, k and v in layers of their own."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.width
        config = BertConfig(
            vocab_size=sizes.vocabulary,
            hidden_size=sizes.width,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            intermediate_size=sizes.ffn,
            max_position_embeddings=sizes.length,
            hidden_dropout_prob=sizes.dropout,
            attention_probs_dropout_prob=sizes.dropout,
            pad_token_id=PADDING,
            attn_implementation="sdpa",
        )
        self.model = BertForMaskedLM(config)

    def encode(self, ids_BN: Tensor, visible_BN: Tensor | None = None) -> Tensor:
        mask = None if visible_BN is None else visible_BN.long()
        hidden_BND: Tensor = self.model.bert(input_ids=ids_BN, attention_mask=mask).last_hidden_state
        return hidden_BND

    def decode(self, hidden: Tensor) -> Tensor:
        return self.model.cls(hidden)  # type: ignore[no-any-return]

    def decoder_only(self) -> list[nn.Parameter]:
        shared = self.model.bert.embeddings.word_embeddings.weight
        return [parameter for parameter in self.model.cls.parameters() if parameter is not shared]
