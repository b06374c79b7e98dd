"""Every timm family on its real, tiny model: forward, keys, folding and counts against weights edited by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spectral_conditioning import condition, conditioned_layers, families, find_attention, fold

timm = pytest.importorskip("timm")

SMALL = {"img_size": 32, "num_classes": 5}
PLAIN = {**SMALL, "depth": 2, "embed_dim": 32, "num_heads": 2}
STAGED = {**SMALL, "window_size": 4, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 4)}
QKV = ("*attn.qkv.weight", "qkv", "stacked", 2, 2)
# model, arguments, how its weights are packed, number of projections
MODELS: dict[str, tuple[dict[str, Any], list[Any], int]] = {
    "vit_tiny_patch16_224": (PLAIN, [QKV], 6),
    "deit_tiny_patch16_224": (PLAIN, [QKV], 6),
    "swin_tiny_patch4_window7_224": (STAGED, [("*attn.qkv.weight", "qkv", "stacked", 2, 2)], 9),
    "swinv2_tiny_window8_256": (STAGED, [QKV], 9),
    "xcit_nano_12_p16_224": (
        PLAIN,
        [QKV, *((f"cls_attn_blocks.*.attn.{role}.weight", role, "stacked", 2, 2) for role in "qkv")],
        12,
    ),
    "davit_tiny": (
        {"num_classes": 5, "depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 4), "window_size": 4},
        [QKV],
        12,
    ),
    "beit_base_patch16_224": (PLAIN, [QKV], 6),
    "cait_xxs24_224": (
        {**PLAIN, "depth_token_only": 1},
        [QKV, *((f"blocks_token_only.*.attn.{role}.weight", role, "stacked", 2, 2) for role in "qkv")],
        9,
    ),
    "eva02_tiny_patch14_224": ({**PLAIN, "patch_size": 16}, [QKV], 6),
    "eva02_base_patch14_224": (
        {**PLAIN, "patch_size": 16},
        [(f"*attn.{role}_proj.weight", role, "stacked", 2, 2) for role in "qkv"],
        6,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_family(name: str, hand_edited: Callable[..., int], randomised: Callable[..., nn.Module]) -> None:
    arguments, packings, count = MODELS[name]
    plain = randomised(timm.create_model(name, **arguments))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    reference = copy.deepcopy(plain)
    edited = hand_edited(reference, 0.7, packings)
    model = copy.deepcopy(plain)
    report = condition(model, lam=0.7)

    assert report.count == count
    assert len(conditioned_layers(model)) == edited
    effective = {name: layer.effective_weight() for name, layer in conditioned_layers(model).items()}
    for layer, weight in effective.items():
        torch.testing.assert_close(weight, reference.get_submodule(layer).weight, rtol=0, atol=0)
    with torch.no_grad():
        expected, before = reference(x), plain(x)
        assert (expected - before).abs().max() > 1e-2 * before.abs().max()  # the correction matters in this model
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
        extra = {f"{layer}._extra_state" for layer in effective}
        assert set(model.state_dict()) == set(plain.state_dict()) | extra
        assert all(torch.equal(plain.state_dict()[key], model.state_dict()[key]) for key in plain.state_dict())
        fold(model)
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert list(model.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize(("name", "count"), [item for family in families() for item in family.models.items()])
def test_full_size_counts(name: str, count: int) -> None:
    """The paper's models, on the meta device: 12 × 3 in a ViT-B, 24 × 3 in a Swin-B, (24 + 2) × 3 in an XCiT-M24, …"""
    with torch.device("meta"):
        model = timm.create_model(name)
    assert sum(len(attention.projections) for attention in find_attention(model)) == count
    assert condition(model, lam=10.0).count == count


def test_published_counts_are_listed() -> None:
    listed = {name: count for family in families() for name, count in family.models.items()}
    published = {
        "vit_base_patch16_224": 36,
        "deit_base_patch16_224": 36,
        "swin_base_patch4_window7_224": 72,
        "xcit_medium_24_p16_224": 78,
        "davit_base": 72,
    }
    assert published.items() <= listed.items()


def test_weight_readers_are_corrected(randomised: Callable[..., nn.Module]) -> None:
    """BEiT and SwinV2 call F.linear(x, self.qkv.weight, …): a correction in the layer's forward would be skipped."""
    for name in ("beit_base_patch16_224", "swinv2_tiny_window8_256"):
        model = randomised(timm.create_model(name, **MODELS[name][0]))
        calls: list[Any] = []
        for layer in find_attention(model):
            layer.module.qkv.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        x = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            before = model(x)
            condition(model, lam=1.0)
            after = {"eval": model(x)}
        with torch.inference_mode():
            after["inference"] = model(x)
        assert not calls, "this model no longer reads the weight itself; choose another for this test"
        assert (after["eval"] - before).abs().max() > 1e-3
        assert torch.equal(after["eval"], after["inference"])
