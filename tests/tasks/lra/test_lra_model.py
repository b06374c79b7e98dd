"""The encoder and its heads: sizes, pooling, and where conditioning finds its projections."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.lra.config import ModelConfig
from spectral_conditioning.tasks.lra.nystromformer import Encoder, PairClassifier, SequenceClassifier
from spectral_conditioning.tasks.lra.task import LAYOUTS


def exact(**changes: object) -> ModelConfig:
    given = {"mode": "exact", "inverse_start": "matrix", "pooling": "mean", "landmarks": 8, "vocabulary": 20}
    return ModelConfig(**{**given, **changes})  # type: ignore[arg-type]


def build(config: ModelConfig, *, tokens: int = 64, classes: int = 10) -> SequenceClassifier:
    torch.manual_seed(0)
    return SequenceClassifier(config, tokens=tokens, vocabulary=config.vocabulary, classes=classes).double().eval()


def ids_of(batch: int, tokens: int, *, seed: int = 0, vocabulary: int = 20) -> torch.Tensor:
    return torch.randint(1, vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def test_published_sizes() -> None:
    model = SequenceClassifier(ModelConfig(vocabulary=32), tokens=2048, vocabulary=32, classes=10)
    attention = 4 * (64 * 64 + 64) + 2 * 35
    mlp = 64 * 128 + 128 + 128 * 64 + 64
    block = attention + mlp + 2 * 2 * 64
    head = 64 * 128 + 128 + 128 * 10 + 10
    assert sum(p.numel() for p in model.parameters()) == (32 + 2048) * 64 + 2 * block + 2 * 64 + head
    pair = PairClassifier(ModelConfig(), tokens=4096, vocabulary=512, classes=2)
    assert pair.head[0].in_features == 256


def test_embeddings_start_at_a_fiftieth() -> None:
    encoder = Encoder(ModelConfig(), tokens=2048, vocabulary=512)
    for layer in (encoder.token_embedding, encoder.position_embedding):
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_exact_model_ignores_padding_and_batch_mates() -> None:
    model = build(exact())
    ids = ids_of(3, 64)
    lengths = torch.tensor([5, 37, 64])
    together = model(ids.masked_fill(torch.arange(64) >= lengths[:, None], 0), lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = model(ids[i : i + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(together[i], alone[0], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(model(ids[i : i + 1, :length])[0], alone[0], rtol=1e-9, atol=1e-11)


def test_black_pixels_are_data_in_the_exact_mode_and_padding_in_the_published_one() -> None:
    pixels = ids_of(1, 64).index_fill(1, torch.tensor([10, 11]), 0)
    for config, matters in ((exact(), True), (ModelConfig(vocabulary=20, landmarks=8), False)):
        model = build(config)
        before = model(pixels)
        with torch.no_grad():
            model.encoder.token_embedding.weight[0] += torch.linspace(-1, 1, 64).double()
        change = (model(pixels) - before).abs().max().item()
        # A published padded token still reaches others as a zero query among the landmarks, but not through its embedding.
        assert (change > 1e-6) == matters


@pytest.mark.parametrize("pooling", ["mean_padded", "mean", "cls"])
def test_pooling(pooling: str) -> None:
    encoder = build(exact(pooling=pooling)).encoder
    seen: list[torch.Tensor] = []
    encoder.norm.register_forward_hook(lambda module, args, out: seen.append(out))
    lengths = torch.tensor([40, 64])
    pooled = encoder(ids_of(2, 64).masked_fill(torch.arange(64) >= lengths[:, None], 0), lengths)
    (x_BND,) = seen
    for i, length in enumerate(lengths.tolist()):
        real = x_BND[i, :length]
        expected = {"mean_padded": real.sum(0) / 64, "mean": real.mean(0), "cls": x_BND[i, 0]}[pooling]
        torch.testing.assert_close(pooled[i], expected)


def test_cls_token_goes_in_front_and_pushes_the_last_position_out() -> None:
    encoder = build(exact(pooling="cls")).encoder
    seen: list[torch.Tensor] = []
    encoder.token_embedding.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    encoder(torch.tensor([[3, 4, 5, 6]]))
    assert seen[0].tolist() == [[19, 3, 4, 5]]


def test_pair_head_takes_both_their_product_and_difference() -> None:
    torch.manual_seed(0)
    model = PairClassifier(exact(), tokens=32, vocabulary=20, classes=2).double().eval()
    ids = torch.stack([ids_of(3, 32, seed=1), ids_of(3, 32, seed=2)], dim=1)
    first, second = model.encoder(ids[:, 0]), model.encoder(ids[:, 1])
    expected = model.head(torch.cat([first, second, first * second, first - second], dim=-1))
    torch.testing.assert_close(model(ids), expected)
    lengths = torch.tensor([[32, 10]] * 3)
    torch.testing.assert_close(
        model(ids, lengths),
        model(torch.cat([ids[:, :1], ids[:, 1:].masked_fill(torch.arange(32) >= 10, 0)], 1), lengths),
    )


def test_too_long_a_sequence_is_one_error() -> None:
    with pytest.raises(ConfigError, match="65 tokens reached a model with 64 positions"):
        build(exact())(ids_of(1, 65))


def test_dropout_is_where_the_reference_has_it() -> None:
    model = SequenceClassifier(ModelConfig(dropout=0.25), tokens=64, vocabulary=20, classes=2)
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    assert set(rates) == {
        "encoder.dropout",
        *(f"encoder.blocks.{i}.{place}" for i in (0, 1) for place in ("dropout", "mlp.2", "mlp.4")),
    }
    assert set(rates.values()) == {0.25}


@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
def test_conditioning_finds_three_projections_a_layer(attention: str) -> None:
    conditioning = pytest.importorskip("spectral_conditioning.conditioning")
    model = build(exact(attention=attention))
    found = conditioning.find_attention(model, layouts=LAYOUTS)
    assert [a.name for a in found] == ["encoder.blocks.0.attention", "encoder.blocks.1.attention"]
    for attention_module in found:
        assert (attention_module.heads, attention_module.head_dim) == (2, 32)
        assert attention_module.scale == pytest.approx(32**-0.5)
        for role, layer in zip("qkv", ("W_q", "W_k", "W_v"), strict=True):
            stored = attention_module.projections[role].stored()
            assert torch.equal(stored, getattr(attention_module.module, layer).weight)
    plain = {name: p.clone() for name, p in model.named_parameters()}
    ids = ids_of(2, 64)
    before = model(ids)
    report = conditioning.condition(model, conditioning.Conditioning(lam=2.0), layouts=LAYOUTS)
    assert report.count == 6
    assert all(torch.equal(p, plain[name]) for name, p in model.named_parameters())
    by_hand = build(exact(attention=attention))
    with torch.no_grad():
        for block in by_hand.encoder.blocks:
            for layer in (block.attention.W_q, block.attention.W_k, block.attention.W_v):
                layer.weight += 2.0 * torch.eye(64)
    torch.testing.assert_close(model(ids), by_hand(ids))
    assert (model(ids) - before).abs().max() > 1e-6
