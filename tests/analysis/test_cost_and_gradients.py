"""Costs against torch's counters and by hand; gradients against backward()."""

import copy

import pytest
import timm
import torch
from torch import nn

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.analysis.cost import conditioning_cost
from spectral_conditioning.analysis.gradients import gradient_norms
from spectral_conditioning.conditioning import find_attention


def vit() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_identity_adds_one_addition_an_entry_and_nothing_else():
    model = vit()
    weights = copy.deepcopy(model.state_dict())
    cost = conditioning_cost(model, Conditioning(lam=10.0), IMAGES)
    entries = 2 * 3 * 32 * 32
    assert cost["added_additions"] == cost["expected_additions"] == entries
    assert cost["added_parameters"] == cost["added_matmul_flops"] == cost["refresh_flops"] == 0
    assert cost["sum_bytes"] == 4 * entries
    # Two layers of one shape share one λI.
    assert cost["correction_bytes"] == 4 * entries // 2
    assert cost["added_share"] == pytest.approx(entries / (cost["plain_forward_flops"] + cost["plain_backward_flops"]))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert type(model.blocks[0].attn.qkv) is nn.Linear


def test_forward_flops_are_those_of_a_vit():
    """Two FLOPs a multiply-add: patch embedding, qkv, attention, projection, MLP of ratio 4, head."""
    cost = conditioning_cost(vit(), Conditioning(lam=1.0), IMAGES)
    B, N, D = 3, 17, 32
    block = 3 * D * D + 2 * N * D + D * D + 8 * D * D
    embedding, head = 16 * (3 * 4 * 4) * D, D * 3
    assert cost["plain_forward_flops"] == 2 * B * (embedding + 2 * N * block + head)
    assert cost["plain_backward_flops"] > 1.9 * cost["plain_forward_flops"]


def test_additions_do_not_grow_with_the_batch_and_follow_the_targets():
    one, three = (conditioning_cost(vit(), Conditioning(lam=1.0), IMAGES[:count]) for count in (1, 3))
    assert one["added_additions"] == three["added_additions"]
    assert three["added_share"] < one["added_share"]


def test_a_correction_that_follows_the_weight_costs_products_at_each_refresh():
    cost = conditioning_cost(vit(), Conditioning(correction="polar", lam=1.0, refresh_every=1), IMAGES)
    assert cost["refresh_flops"] > 2 * 2 * 3 * 32**3
    assert cost["added_matmul_flops"] == 0
    assert cost["correction_bytes"] == 2 * 3 * 32 * 32 * 4


@pytest.mark.parametrize("conditioned", [False, True])
def test_gradient_norms_are_those_of_backward(conditioned: bool):
    model = vit().train()
    if conditioned:
        condition(model, lam=0.5)
    attentions = find_attention(model)
    labels = torch.tensor([0, 1, 2])

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(model(IMAGES), labels)

    found = gradient_norms(model, attentions, loss)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    model.eval()
    loss().backward()
    for index, attention in enumerate(attentions):
        layer = model.blocks[index].attn.qkv
        gradient = (layer.trained_weight() if conditioned else layer.weight).grad
        for role, part in zip("qkv", gradient.chunk(3), strict=True):
            assert found[attention.name][role] == pytest.approx(float(part.norm()), rel=1e-5)


def test_frozen_projections_have_no_gradient_norm():
    model = vit()
    model.blocks[0].attn.qkv.weight.requires_grad_(False)
    found = gradient_norms(model, find_attention(model), lambda: model(IMAGES).sum())
    assert list(found) == ["blocks.1.attn"]
