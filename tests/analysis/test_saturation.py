"""Saturation measured on real models, against attention computed by hand."""

import math
import random

import pytest
import timm
import torch
from torch import nn

from spectral_conditioning import condition
from spectral_conditioning.analysis.saturation import measure_saturation


def vit(**changes: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3, **changes}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_first_layer_agrees_with_attention_by_hand():
    model = vit().eval()
    block = model.blocks[0]
    with torch.no_grad():
        x = model.norm_pre(model._pos_embed(model.patch_embed(IMAGES)))
        q, k, _ = block.attn.qkv(block.norm1(x)).reshape(3, 17, 3, 2, 16).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-1, -2) / 4
        p = logits.softmax(-1)
        entropy = -(p * p.log()).sum(-1).mean() / math.log(17)
        self_weight = p.diagonal(dim1=-2, dim2=-1).mean()
        seen = (p * (logits - (p * logits).sum(-1, keepdim=True)) ** 2).sum(-1).mean()
        sensitivity = seen / logits.var(-1, correction=0).mean()
    layer = measure_saturation(model, lambda: model(IMAGES)).layers[0]
    assert layer.entropy == pytest.approx(float(entropy), rel=1e-5)
    assert layer.self_weight == pytest.approx(float(self_weight), rel=1e-5)
    assert layer.sensitivity == pytest.approx(float(sensitivity), rel=1e-4)
    assert layer.max_logit == pytest.approx(float(logits.abs().max()), rel=1e-5)


def test_lambda_ten_on_q_k_and_v_is_flagged_and_the_other_readings_are_not():
    found = {}
    for name, settings in {"full": {}, "fused": {"placement": "fused"}, "one": {"lam": 0.5}, "none": None}.items():
        model = vit()
        if settings is not None:
            condition(model, **{"lam": 10.0, **settings})
        found[name] = measure_saturation(model, lambda model=model: model(IMAGES))
    assert {name: report.saturated for name, report in found.items()} == {"full": 2, "fused": 0, "one": 0, "none": 0}
    # λ²√d = 400 for λ = 10, d = 16: the largest diagonal logit is of that size.
    assert 200 < found["full"].layers[0].max_logit < 1600
    assert "identity" in found["full"].warning()
    assert found["none"].warning() is None


def test_equal_tokens_do_not_hide_a_hard_maximum():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(32, 2, batch_first=True)
    condition(attention, lam=10.0)
    x = nn.functional.layer_norm(torch.randn(2, 6, 32), (32,)).repeat_interleave(2, dim=1)
    layer = measure_saturation(attention, lambda: attention(x, x, x)).layers[0]
    assert layer.self_weight == pytest.approx(0.5, abs=0.01)
    assert layer.saturated


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_attention_is_read_from_its_inputs(batch_first: bool):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(32, 4, batch_first=batch_first)
    nn.init.normal_(attention.in_proj_bias)
    x = torch.randn(3, 7, 32) * 2
    weights = attention(x, x, x, average_attn_weights=False)[1]
    layer = measure_saturation(attention, lambda: attention(x, x, x)).layers[0]
    assert layer.self_weight == pytest.approx(float(weights.detach().diagonal(dim1=-2, dim2=-1).mean()), rel=1e-5)


def test_separate_torch_projections_take_their_own_biases():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 2, kdim=12, vdim=12, batch_first=True)
    nn.init.normal_(attention.in_proj_bias, std=3)
    x, z = torch.randn(3, 5, 16), torch.randn(3, 7, 12)
    weights = attention(x, z, z, average_attn_weights=False)[1].detach()
    layer = measure_saturation(attention, lambda: attention(x, z, z)).layers[0]
    assert layer.entropy == pytest.approx(float(-(weights * weights.log()).sum(-1).mean() / math.log(7)), rel=1e-5)
    assert layer.self_weight is None


def test_normalised_queries_are_exempt():
    report = measure_saturation(vit(qk_norm=True), lambda: None)
    assert [layer.exempt for layer in report.layers] == [True, True]


def test_channel_attention_is_exempt_and_class_attention_is_not():
    model = timm.create_model("xcit_nano_12_p16_224", img_size=32, num_classes=3, depth=1)
    condition(model, lam=10.0)
    report = measure_saturation(model, lambda: model(torch.randn(2, 3, 32, 32)))
    assert [layer.exempt for layer in report.layers] == [True, False, False]
    assert report.total == 2


def test_nothing_is_left_behind_and_nothing_drawn():
    model = vit(drop_path_rate=0.5).train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(3), random.random()
    torch.manual_seed(5)
    random.seed(5)
    measure_saturation(model, lambda: (model(IMAGES), torch.rand(9), random.random()))
    found = torch.rand(3), random.random()
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]
    assert [module.training for module in model.modules()] == modes
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
