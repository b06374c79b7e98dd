"""The table of masked language models: name → sizes and constructor."""

from __future__ import annotations

from collections.abc import Callable

from spectral_conditioning.tasks.cramming.config import ARCHITECTURES, ModelConfig
from spectral_conditioning.tasks.cramming.crammed_bert import FULL, SIMPLE, CrammedBert
from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel, Sizes


def _bert_base(sizes: Sizes) -> MaskedLanguageModel:
    from spectral_conditioning.tasks.cramming.bert_base import BertBase

    return BertBase(sizes)


CONSTRUCTORS: dict[str, Callable[[Sizes], MaskedLanguageModel]] = {
    "crammed_bert": lambda sizes: CrammedBert(sizes, FULL),
    "crammed_bert_simple": lambda sizes: CrammedBert(sizes, SIMPLE),
    "bert_base": _bert_base,
}
assert tuple(CONSTRUCTORS) == ARCHITECTURES


def build_language_model(model: ModelConfig, *, vocabulary: int, length: int) -> MaskedLanguageModel:
    """Build the named architecture at the given vocabulary and longest sequence."""
    assert model.architecture is not None
    sizes = Sizes(
        vocabulary=vocabulary,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        ffn=model.ffn,
        length=max(length, model.length),
        dropout=model.dropout,
    )
    return CONSTRUCTORS[model.architecture](sizes)
