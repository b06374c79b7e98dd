"""Laws of the tokenizer: the recipe's normalisation, repeatable training, and a fast encoder that equals the slow one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.cramming.wordpiece import (
    SPECIALS,
    FastEncoder,
    decoded_lengths,
    load_tokenizer,
    train_wordpiece,
)

from .cramming_text import sentences


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece([sentences(seed, 400) for seed in range(10)], vocabulary=260)


def test_training_twice_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    again = train_wordpiece([sentences(seed, 400) for seed in range(10)], vocabulary=260)
    assert again.to_str() == tokenizer.to_str()


def test_vocabulary_is_exact_and_begins_with_the_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 260
    assert [tokenizer.id_to_token(i) for i in range(7)] == list(SPECIALS)
    with pytest.raises(DataError, match=r"vocabulary of \d+ words, not 5000"):
        train_wordpiece([sentences(0, 50)], vocabulary=5000)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Über  Ça", "uber ca"),
        ("naïve £5 日本 café", "naive 5 cafe"),
        ("ﬁn İstanbul K", "n istanbul k"),  # a ligature is no accent; the Kelvin sign is a letter
    ],
)
def test_normalisation_of_the_recipe(tokenizer: Tokenizer, text: str, normal: str) -> None:
    """Lower case, accents dropped, other non-ASCII characters removed."""
    plain = tokenizer.encode(normal, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special_tokens=False).ids == plain
    assert FastEncoder(tokenizer).encode(text).tolist() == plain


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
@example("don't stop—the “show” (ΑΣ) x\x1cy\x85z\u2028w \ud7ff\n\t a_b 1,000.50")
@example("a" * 101 + " " + "b" * 100)
@example("")
def test_fast_encoder_equals_the_tokenizer(text: str) -> None:
    tokenizer = train_once()
    assert FastEncoder(tokenizer).encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids


_trained: list[Tokenizer] = []


def train_once() -> Tokenizer:
    if not _trained:
        _trained.append(train_wordpiece([sentences(seed, 400) for seed in range(10)], vocabulary=260))
    return _trained[0]


def test_decoded_lengths_are_those_of_the_decoded_text(tokenizer: Tokenizer) -> None:
    lengths = decoded_lengths(tokenizer)
    tokenizer.decoder.cleanup = False
    for seed in range(5):
        ids = tokenizer.encode(sentences(seed, 30), add_special_tokens=False).ids
        assert lengths[ids].sum() == len(tokenizer.decode(ids)) + 1  # no space before the first word


def test_pairs_are_marked_as_fine_tuning_needs_them(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("the of", "to").tokens
    assert (tokens[0], tokens[-1], tokens.count("<sep>")) == ("<cls>", "<sep>", 2)


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DataError, match="does not exist"):
        load_tokenizer(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer"):
        load_tokenizer(path)
    Tokenizer(models.WordPiece({"a": 0}, unk_token="a")).save(str(path))
    with pytest.raises(DataError, match="lacks the special tokens <pad>, <cls>, <sep>, <mask>"):
        load_tokenizer(path)
