"""A pretrained encoder with a classification head: W₂ drop(tanh(W₁ h₀)), h₀ the hidden state of `<cls>`."""

# B examples, N tokens, C outputs.

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.tasks.cramming.config import ModelConfig
from spectral_conditioning.tasks.cramming.crammed_bert import initialise
from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel


class GlueModel(nn.Module):
    """The language model keeps its decoder, so that its masked-LM loss can be measured; fine-tuning leaves the decoder alone."""

    def __init__(self, language_model: MaskedLanguageModel, *, outputs: int, settings: ModelConfig) -> None:
        super().__init__()
        self.language_model = language_model
        self.dense = nn.Linear(language_model.width, settings.head_width)
        self.dropout = nn.Dropout(settings.dropout)
        self.out = nn.Linear(settings.head_width, outputs)
        for layer in (self.dense, self.out):
            initialise(layer)
        for parameter in language_model.decoder_only():
            parameter.requires_grad_(False)

    def forward(self, ids_BN: Tensor, visible_BN: Tensor | None = None) -> Tensor:
        """Return logits (B, C)."""
        first_BD = self.language_model.encode(ids_BN, visible_BN)[:, 0]
        return self.out(self.dropout(F.tanh(self.dense(first_BD))))  # type: ignore[no-any-return]
