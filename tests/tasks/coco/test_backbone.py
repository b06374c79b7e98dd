"""The backbone: features of the right blocks at the right strides, and no parameter without a gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.coco.backbone import XcitPyramid, build_body, synchronise_batch_norm
from spectral_conditioning.tasks.coco.config import ModelConfig

WIDE = {8: "xcit_nano_12_p8_224", 16: "xcit_nano_12_p16_224"}


def build(tiny: ModelConfig, patch_size: int) -> XcitPyramid:
    torch.manual_seed(0)
    model = dataclasses.replace(tiny, name=WIDE[patch_size], depth=6, taps=(0, 1, 3, 4))
    return XcitPyramid(build_body(model), model.taps)


@pytest.mark.parametrize("patch_size", [8, 16])
def test_levels_are_block_features_at_strides_4_to_32(tiny: ModelConfig, patch_size: int) -> None:
    backbone = build(tiny, patch_size).eval()
    seen: dict[int, torch.Tensor] = {}
    for number, block in enumerate(backbone.body.blocks):
        block.register_forward_hook(lambda _, __, out, number=number: seen.update({number: out}))
    levels = backbone(torch.randn(2, 3, 96, 64))
    assert [tuple(level.shape) for level in levels] == [(2, 16, 96 // s, 64 // s) for s in (4, 8, 16, 32)]
    rows, columns = 96 // patch_size, 64 // patch_size
    untouched = {8: 1, 16: 2}[patch_size]
    expected = seen[backbone.taps[untouched]].transpose(1, 2).reshape(2, 16, rows, columns)
    assert torch.equal(levels[untouched], expected)
    assert set(seen) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("patch_size", [8, 16])
def test_every_parameter_gets_a_gradient(tiny: ModelConfig, patch_size: int) -> None:
    backbone = build(tiny, patch_size)
    sum(level.square().sum() for level in backbone(torch.randn(2, 3, 64, 64))).backward()  # type: ignore[union-attr]
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is None] == []


def test_the_paper_s_backbone_has_its_sizes() -> None:
    """XCiT-S12/16: 12 blocks of width 384 with 8 heads, layer scale 1, drop path 0.05 in every block."""
    body = build_body(ModelConfig())
    backbone = XcitPyramid(body, (3, 5, 7, 11))
    assert len(backbone.body.blocks) == 12
    for block in backbone.body.blocks:
        assert tuple(block.attn.qkv.weight.shape) == (3 * 384, 384)
        assert block.attn.num_heads == 8
        assert [getattr(block, f"drop_path{i}").drop_prob for i in (1, 2, 3)] == [0.05] * 3
        assert torch.equal(block.gamma1, torch.ones(384))
    kinds = [type(layer) for layer in backbone.pyramid[0]]  # type: ignore[arg-type]
    assert kinds == [nn.ConvTranspose2d, nn.BatchNorm2d, nn.GELU, nn.ConvTranspose2d]


def test_synchronised_statistics_keep_parameters_and_names(tiny: ModelConfig) -> None:
    backbone = build(tiny, 16)
    before = dict(backbone.named_parameters())
    keys = list(backbone.state_dict())
    converted = synchronise_batch_norm(backbone)
    assert all(parameter is before[name] for name, parameter in converted.named_parameters())
    assert list(converted.state_dict()) == keys
    norms = [type(part) for part in converted.modules() if "BatchNorm" in type(part).__name__]
    assert set(norms) == {nn.SyncBatchNorm}
    # Patch embedding, local interaction of every block, first level.
    assert len(norms) == 4 + 5 + 1


def test_names_and_taps_that_do_not_fit_are_refused(tiny: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="closest 'xcit_small_12_p16_384'"):
        build_body(dataclasses.replace(tiny, name="xcit_small_12_p16_385"))
    with pytest.raises(ConfigError, match=r"ends at block 11 but .* has 4 blocks"):
        build_body(dataclasses.replace(tiny, taps=(3, 5, 7, 11)))
