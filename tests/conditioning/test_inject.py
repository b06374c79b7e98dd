"""condition() and strip(): what the forward pass uses, what is left alone, what is refused. Pitfalls of injection."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import (
    Conditioning,
    ConditioningError,
    condition,
    conditioned_layers,
    find_attention,
    refresh,
    separate,
    stacked,
    strip,
)

SAVED = [
    {"correction": "polar", "lam": 1.0},
    {"correction": "svd", "lam": 1.0},
    {"correction": "scaled_identity"},
    {"correction": "orthogonal"},
    {"relative": True, "lam": 2.0},
]
EVERY = [{"lam": 10.0}, *SAVED]


class Separate(nn.Module):
    """q, k, v in layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.q(x) + self.k(x) * self.v(x)


LAYOUTS = {Separate: separate("q", "k", "v", heads="heads")}


def test_correction_is_exactly_lambda_e(vit: nn.Module, images: Tensor) -> None:
    """Nothing cancels it: no right_inverse, the stored W unchanged, the function changed."""
    before, outputs = copy.deepcopy(vit.state_dict()), vit(images)
    report = condition(vit, lam=10.0)
    assert report.count == 6
    assert str(report) == "identity λ=10 (full, q k v): 6 projections corrected"
    for layer in conditioned_layers(vit).values():
        identity = 10.0 * torch.eye(32).repeat(3, 1)
        assert torch.equal(layer.correction(), identity)
        assert torch.equal(layer.weight, layer.trained_weight() + identity)
    assert all(torch.equal(vit.state_dict()[key], value) for key, value in before.items())
    assert (vit(images) - outputs).abs().max() > 0.1


def test_lambda_zero_is_the_baseline_bit_for_bit(vit: nn.Module, images: Tensor) -> None:
    classes = {name: type(module) for name, module in vit.named_modules()}
    before, outputs = copy.deepcopy(vit.state_dict()), vit(images)
    report = condition(vit, Conditioning(lam=0.0))
    assert report.count == 0
    assert "baseline" in str(report)
    assert classes == {name: type(module) for name, module in vit.named_modules()}
    assert list(before) == list(vit.state_dict())
    assert torch.equal(vit(images), outputs)


@pytest.mark.parametrize("settings", EVERY)
@pytest.mark.parametrize("preserve", ["weight", "function"])
def test_strip_undoes_condition(vit: nn.Module, images: Tensor, settings: dict[str, Any], preserve: str) -> None:
    plain = copy.deepcopy(vit)
    condition(vit, preserve=preserve, **settings)
    assert strip(vit) == 2
    assert {type(module) for module in vit.modules()} == {type(module) for module in plain.modules()}
    assert list(vit.state_dict()) == list(plain.state_dict())
    for key, value in plain.state_dict().items():
        tolerance = 0.0 if preserve == "weight" else 2e-6
        torch.testing.assert_close(vit.state_dict()[key], value, rtol=0, atol=tolerance)
    assert condition(vit, **settings).count == 6


@pytest.mark.parametrize("settings", EVERY)
def test_preserve_function(vit: nn.Module, images: Tensor, settings: dict[str, Any]) -> None:
    weight, outputs = vit.blocks[0].attn.qkv.weight.detach().clone(), vit(images)
    condition(vit, preserve="function", **settings)
    layer = vit.blocks[0].attn.qkv
    torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(vit(images), outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.trained_weight(), weight - layer.correction(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", EVERY)
def test_gradient_is_that_of_the_sum(vit: nn.Module, images: Tensor, settings: dict[str, Any]) -> None:
    """∂L/∂W of the conditioned model is ∂L/∂θ at θ = W + C of a plain one: no gradient flows through C."""
    plain = copy.deepcopy(vit)
    condition(vit, **settings)
    with torch.no_grad():
        for name, layer in conditioned_layers(vit).items():
            plain.get_submodule(name).weight.copy_(layer.effective_weight())
    vit(images).square().sum().backward()
    plain(images).square().sum().backward()
    for (name, parameter), other in zip(vit.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=0, atol=0, msg=name)


def test_no_global_draws_and_no_reads_of_the_generators(vit: nn.Module) -> None:
    for settings in EVERY:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        condition(copy.deepcopy(vit), **settings)
        assert torch.equal(torch.rand(3), expected)


def test_parameters_stay_the_same_objects_under_the_same_names(vit: nn.Module) -> None:
    before = dict(vit.named_parameters())
    condition(vit, lam=1.0)
    after = dict(vit.named_parameters())
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)


def test_second_call_is_refused_and_adds_nothing(vit: nn.Module) -> None:
    condition(vit, lam=10.0)
    once = vit.blocks[0].attn.qkv.weight.detach().clone()
    for lam in (10.0, 0.0):
        with pytest.raises(ConditioningError, match=r"conditioned already: 2 layers, the first 'blocks\.0\.attn\.qkv'"):
            condition(vit, lam=lam)
    assert torch.equal(vit.blocks[0].attn.qkv.weight, once)


def test_in_place_on_the_model_that_is_passed(vit: nn.Module) -> None:
    baseline = copy.deepcopy(vit)
    condition(vit, lam=10.0)
    assert conditioned_layers(baseline) == {}
    assert len(conditioned_layers(vit)) == 2


def test_reset_parameters_reaches_the_stored_weight() -> None:
    for module, name in ((nn.MultiheadAttention(8, 2), "in_proj_weight"), (Separate(), "weight")):
        condition(module, lam=5.0, layouts=LAYOUTS if isinstance(module, Separate) else None)
        layer = next(iter(conditioned_layers(module).values()))
        before = layer.trained_weight(name).detach().clone()
        reset = getattr(layer, "_reset_parameters", None) or layer.reset_parameters
        reset()
        assert not torch.equal(layer.trained_weight(name), before)
        assert layer.trained_weight(name).abs().max() < 2
        assert torch.equal(layer.effective_weight(name), layer.trained_weight(name) + layer.correction(name))


def test_assignment() -> None:
    module = nn.MultiheadAttention(8, 2)
    condition(module, lam=5.0)
    module.in_proj_weight = nn.Parameter(torch.zeros(24, 8))
    assert torch.equal(module.in_proj_weight, 5.0 * torch.eye(8).repeat(3, 1))
    with pytest.raises((ConditioningError, TypeError)):
        module.in_proj_weight = torch.zeros(24, 8)


@pytest.mark.parametrize("settings", EVERY)
@pytest.mark.parametrize("preserve", ["weight", "function"])
def test_tied_owners_are_all_corrected_once(settings: dict[str, Any], preserve: str) -> None:
    """Both owners compute what the first one computes without the tie, through refresh() and strip()."""
    torch.manual_seed(0)
    model = nn.Sequential(Separate(), Separate())
    alone = nn.Sequential(copy.deepcopy(model[0]))
    model[1].q.weight = model[0].q.weight
    start = model[0].q.weight.detach().clone()
    first, second, reference = model[0].q, model[1].q, alone[0].q
    for net in (model, alone):
        condition(net, preserve=preserve, layouts=LAYOUTS, **settings)
    for change in (None, refresh, strip):
        if change is not None:
            change(model)
            change(alone)
        assert torch.equal(first.weight, second.weight)
        torch.testing.assert_close(first.weight, reference.weight, rtol=0, atol=1e-6)
        if change is not strip:
            assert first.trained_weight() is second.trained_weight()
            assert torch.equal(first.correction(), second.correction())
            torch.testing.assert_close(first.correction(), reference.correction(), rtol=0, atol=1e-6)
    assert first.weight is second.weight
    torch.testing.assert_close(first.weight.detach(), start, rtol=0, atol=2e-6)


def test_module_in_two_places_is_corrected_once() -> None:
    attention = Separate()
    model = nn.ModuleDict({"one": attention, "two": attention})
    weight = attention.q.weight.detach().clone()
    assert condition(model, lam=10.0, layouts=LAYOUTS).count == 3
    assert torch.equal(attention.q.weight, weight + 10.0 * torch.eye(8))
    model.load_state_dict(model.state_dict())
    assert torch.equal(attention.q.weight, weight + 10.0 * torch.eye(8))
    assert strip(model) == 3
    assert torch.equal(attention.q.weight, weight)


def test_parameter_shared_with_another_kind_of_layer_is_refused() -> None:
    model = nn.ModuleDict({"attention": Separate(), "other": nn.Linear(8, 8, bias=False)})
    model["other"].weight = model["attention"].k.weight
    with pytest.raises(ConditioningError, match=r"attention\.k\.weight \(corrected\), other\.weight \(not corrected\)"):
        condition(model, lam=1.0, layouts=LAYOUTS)
    assert conditioned_layers(model) == {}
    assert condition(model, lam=1.0, targets=("q", "v"), layouts=LAYOUTS).count == 2


def test_layer_that_serves_two_roles() -> None:
    """Shared-QK attention: corrected once when both roles are targeted, refused when only one is."""
    layouts = {Separate: separate("q", "q", "v", heads="heads")}
    model = Separate()
    with pytest.raises(ConditioningError, match="its rows serve as q and k, but only q is targeted"):
        condition(model, lam=1.0, targets=("q",), layouts=layouts)
    condition(model, lam=1.0, layouts=layouts)
    assert torch.equal(model.q.weight, model.q.trained_weight() + torch.eye(8))


class LowRank(nn.Linear):
    """A LoRA-like subclass: its forward does not only read the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class Renamed(nn.Linear):
    """A subclass that inherits everything."""


def quantised() -> nn.Module:
    layer = nn.Linear(8, 8, bias=False)
    layer.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.int8), requires_grad=False)
    return layer


def frozen() -> nn.Module:
    return nn.Linear(8, 8, bias=False).requires_grad_(False)


def flattened() -> nn.Module:
    layer = nn.Linear(8, 8, bias=False)
    layer.weight = nn.Parameter(torch.zeros(64))
    return layer


def not_finite() -> nn.Module:
    layer = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LowRank(8, 8, bias=False), r"k is a .*LowRank: served are nn\.Linear"),
        (quantised, r"k\.weight has dtype torch\.int8"),
        (frozen, r"k\.weight is frozen"),
        (flattened, r"k\.weight has shape \(64,\): a flattened weight \(FSDP1\)"),
        (not_finite, r"k\.weight holds values that are not finite"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), r"does not have the weights of its layout"),
        (lambda: nn.Conv2d(8, 8, 3), r"k is a convolution of kernel \(3, 3\)"),
        (lambda: nn.Bilinear(8, 8, 8), r"k is a .*Bilinear|rows"),
    ],
)
def test_layers_that_are_refused_by_name(make: Any, message: str) -> None:
    model = Separate()
    model.k = make()
    with pytest.raises(ConditioningError, match=message) as caught:
        condition(model, lam=1.0, layouts=LAYOUTS)
    assert "Nothing was changed" in str(caught.value)
    assert type(model.q) is nn.Linear
    assert not model._load_state_dict_pre_hooks


def test_subclass_that_inherits_the_forward_is_served() -> None:
    model = Separate()
    model.k = Renamed(8, 8, bias=False)
    condition(model, lam=1.0, layouts=LAYOUTS)
    assert isinstance(model.k, Renamed)
    assert torch.equal(copy.deepcopy(model).k.weight, model.k.trained_weight() + torch.eye(8))
    strip(model)
    assert type(model.k) is Renamed


def test_every_problem_is_in_one_message() -> None:
    model = Separate()
    model.q, model.k = frozen(), quantised()
    with pytest.raises(ConditioningError, match="2 problems") as caught:
        condition(model, lam=1.0, layouts=LAYOUTS)
    assert re.search(r"q\.weight is frozen.*\n.*k\.weight has dtype", str(caught.value))


def test_meta_device() -> None:
    """Without values the identity is served; what needs values is refused."""
    with torch.device("meta"):
        model = nn.MultiheadAttention(8, 2)
    for settings in SAVED:
        with pytest.raises(ConditioningError, match="is on the meta device"):
            condition(model, **settings)
    condition(model, lam=3.0)
    model.to_empty(device="cpu")
    model._reset_parameters()
    weight = model.trained_weight("in_proj_weight")
    assert torch.equal(model.in_proj_weight, weight + 3.0 * torch.eye(8).repeat(3, 1))


def test_report_table(vit: nn.Module) -> None:
    report = condition(vit, lam=1.0)
    lines = report.table().splitlines()
    assert len(lines) == 2 + 6
    assert re.search(r"blocks\.0\.attn\.qkv\.weight +q +timm ViT, DeiT .* 2×16 +32×32", lines[2])


def test_identities_of_equal_layers_share_memory(vit: nn.Module) -> None:
    condition(vit, lam=1.0)
    first, second = (layer.correction() for layer in conditioned_layers(vit).values())
    assert first is second
    assert copy.deepcopy(vit).blocks[0].attn.qkv.correction() is first


def test_corrected_rows_match_between_stacked_and_separate(stacked_attention: type[nn.Module]) -> None:
    """One attention stored twice: equal corrected matrices, whatever the correction."""
    torch.manual_seed(0)
    one, two = stacked_attention(8, 2), Separate()
    with torch.no_grad():
        for layer, rows in zip((two.q, two.k, two.v), one.qkv.weight.split(8), strict=True):
            layer.weight.copy_(rows)
    for settings in EVERY:
        if settings.get("correction") == "orthogonal":
            continue  # drawn by name
        a, b = copy.deepcopy(one), copy.deepcopy(two)
        condition(a, layouts={stacked_attention: stacked("qkv", heads="heads")}, **settings)
        condition(b, layouts=LAYOUTS, **settings)
        (left,) = find_attention(a, layouts={stacked_attention: stacked("qkv", heads="heads")})
        (right,) = find_attention(b, layouts=LAYOUTS)
        for role in "qkv":
            torch.testing.assert_close(left.projections[role].effective(), right.projections[role].effective())
