"""fold and unfold. Pitfalls of export."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import ConditioningError, condition, conditioned_layers, fold

EVERY = [
    {"lam": 10.0},
    {"correction": "polar", "lam": 1.0},
    {"correction": "orthogonal"},
    {"lam": 1.0, "preserve": "function"},
]


@pytest.mark.parametrize("settings", EVERY)
def test_folded_model_is_plain_and_computes_the_same(vit: nn.Module, images: Tensor, settings: dict[str, Any]) -> None:
    plain = copy.deepcopy(vit)
    condition(vit, **settings)
    live = vit(images)
    handle = fold(vit)
    assert handle.layers == 2
    assert conditioned_layers(vit) == {}
    assert {type(m) for m in vit.modules()} == {type(m) for m in plain.modules()}
    assert (vit(images) - live).abs().max() < 1e-4
    plain.load_state_dict(vit.state_dict())
    assert torch.equal(plain(images), vit(images))


@pytest.mark.parametrize("lam", [10.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fold_and_unfold_are_bit_equal(dtype: torch.dtype, lam: float) -> None:
    """std .02, λ = 10: in bfloat16 a naive in-place fold would lose 88 % of the diagonal for good."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(256, 4, dtype=dtype)
    nn.init.normal_(module.in_proj_weight, std=0.02)
    condition(module, lam=lam)
    weight = module.trained_weight("in_proj_weight")
    before, state = weight.detach().clone(), copy.deepcopy(module.state_dict())
    handle = fold(module)
    assert module.in_proj_weight is weight
    expected = before.double() + (lam * torch.eye(256)).double().repeat(3, 1)
    assert torch.equal(module.in_proj_weight, expected.to(dtype))  # added wide, rounded once
    handle.unfold()
    handle.unfold()
    assert torch.equal(module.trained_weight("in_proj_weight"), before)
    assert all(torch.equal(module.state_dict()[key], value) for key, value in state.items())


def test_fold_to_a_dtype_rounds_the_wide_sum_once() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(64, 4)
    condition(module, lam=10.0)
    exact = module.trained_weight("in_proj_weight").double() + module.correction("in_proj_weight").double()
    before = module.trained_weight("in_proj_weight").detach().clone()
    size = before.double().norm()
    handle = fold(module, dtype=torch.bfloat16)
    assert torch.equal(module.in_proj_weight, exact.float().to(torch.bfloat16))
    lost = module.in_proj_weight.double() - exact.float().double()
    assert handle.rounding_error == pytest.approx(float(lost.norm() / size), rel=1e-6)
    assert 0.02 < handle.rounding_error < 0.5
    handle.unfold()
    assert torch.equal(module.trained_weight("in_proj_weight"), before)
    assert fold(module).rounding_error == 0
    with pytest.raises(ConditioningError, match="weights are floating-point"):
        fold(nn.MultiheadAttention(8, 2), dtype=torch.int8)


def test_fold_twice_changes_nothing(vit: nn.Module) -> None:
    condition(vit, lam=10.0)
    first = fold(vit)
    folded = copy.deepcopy(vit.state_dict())
    assert fold(vit).layers == 0
    assert all(torch.equal(vit.state_dict()[key], value) for key, value in folded.items())
    first.unfold()
    assert len(conditioned_layers(vit)) == 2


def test_conditioning_a_folded_model_is_refused(vit: nn.Module) -> None:
    """In the process, through deepcopy and pickle by a mark, and through a state dict by what the weights look like."""
    fresh = copy.deepcopy(vit)
    condition(vit, lam=10.0)
    fold(vit)
    for model in (vit, copy.deepcopy(vit), pickle.loads(pickle.dumps(vit))):
        with pytest.raises(ConditioningError, match=r"was folded: its weights contain C \(identity λ=10\)"):
            condition(model, lam=10.0)
    fresh.load_state_dict(vit.state_dict())
    for name in list(vit.state_dict()):
        assert "spectral" not in name
    with pytest.raises(ConditioningError, match="seems to be conditioned already: all 2 weights have a mean of"):
        condition(fresh, lam=10.0)
    once = fresh.blocks[0].attn.qkv.weight.detach().clone()
    condition(fresh, lam=10.0, allow_folded=True)
    assert torch.equal(fresh.blocks[0].attn.qkv.weight, once + 10.0 * torch.eye(32).repeat(3, 1))


def test_plain_weights_are_not_taken_for_folded_ones() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        for lam in (0.01, 0.1, 1.0, 10.0):
            condition(nn.MultiheadAttention(32, 4), lam=lam)


def test_unfold_after_a_class_change_is_refused(vit: nn.Module) -> None:
    condition(vit, lam=1.0)
    handle = fold(vit)
    vit.blocks[0].attn.qkv.__class__ = type("Other", (nn.Linear,), {})
    with pytest.raises(ConditioningError, match=r"blocks\.0\.attn\.qkv is a Other now"):
        handle.unfold()
    assert conditioned_layers(vit) == {}


def test_ties_between_corrected_weights_survive(stacked_attention: type[nn.Module]) -> None:
    from spectral_conditioning import stacked

    model = nn.Sequential(stacked_attention(8, 2), stacked_attention(8, 2))
    model[1].qkv.weight = model[0].qkv.weight
    condition(model, lam=2.0, layouts={stacked_attention: stacked("qkv", heads="heads")})
    expected = model[0].qkv.weight.detach().clone()
    handle = fold(model)
    assert model[0].qkv.weight is model[1].qkv.weight
    assert torch.equal(model[0].qkv.weight, expected)
    handle.unfold()
    assert torch.equal(model[1].qkv.weight, expected)


def test_folded_model_trains_as_a_plain_one(vit: nn.Module, images: Tensor) -> None:
    condition(vit, lam=1.0)
    optimizer = torch.optim.SGD(vit.parameters(), lr=0.1)
    fold(vit)
    before = vit.blocks[0].attn.qkv.weight.detach().clone()
    vit(images).square().mean().backward()
    optimizer.step()
    assert not torch.equal(vit.blocks[0].attn.qkv.weight, before)
