"""State dicts: unchanged weight keys, settings that travel, refusals before anything is copied."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import (
    ConditioningError,
    Layout,
    check_state_dict,
    condition,
    conditioned_layers,
    fold,
    interleaved,
    refresh,
    stacked,
    strip,
)
from spectral_conditioning.conditioning import state

SAVED = [
    {"correction": "polar", "lam": 1.0},
    {"correction": "svd", "lam": 1.0},
    {"correction": "scaled_identity"},
    {"correction": "orthogonal"},
    {"relative": True, "lam": 2.0},
]


class Wrapper(nn.Module):
    """Holds a model the way a Lightning module does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def conditioned(vit: nn.Module, **settings: Any) -> nn.Module:
    model = copy.deepcopy(vit)
    condition(model, **settings)
    return model


def moved(model: nn.Module) -> dict[str, Tensor]:
    """Return a state dict of another point in training: every floating tensor changed."""
    return {k: v + 1 if v.is_floating_point() else v.clone() for k, v in model.state_dict().items()}


def test_keys(vit: nn.Module) -> None:
    plain = list(vit.state_dict())
    layers = ["blocks.0.attn.qkv", "blocks.1.attn.qkv"]
    extra = [f"{layer}._extra_state" for layer in layers]
    assert set(conditioned(vit, lam=1.0).state_dict()) == {*plain, *extra}
    corrections = [f"{layer}.weight_correction" for layer in layers]
    for settings in SAVED:
        assert set(conditioned(vit, **settings).state_dict()) == {*plain, *extra, *corrections}


@pytest.mark.parametrize("settings", [{"lam": 10.0}, *SAVED])
def test_round_trip_is_bit_equal(vit: nn.Module, images: Tensor, settings: dict[str, Any], tmp_path: Path) -> None:
    """Through torch.save and weights_only loading, into a model of other weights and another draw of C."""
    model = conditioned(vit, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = conditioned(vit, **settings)
    assert not torch.equal(other(images), model(images))
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(other(images), model(images))


def test_safetensors(vit: nn.Module, images: Tensor, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = conditioned(vit, correction="polar", lam=1.0)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = conditioned(vit, correction="polar", lam=1.0)
    other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(images), model(images))


def test_last_refresh_travels(vit: nn.Module) -> None:
    model = conditioned(vit, correction="polar", lam=1.0, refresh_every=4)
    refresh(model, step=12)
    other = conditioned(vit, correction="polar", lam=1.0, refresh_every=4)
    other.load_state_dict(model.state_dict())
    assert [layer.payload()["refreshed"] for layer in conditioned_layers(other).values()] == [12, 12]


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"lam": 1.0}, r"lam: 1\.0 here, 10\.0 in the checkpoint"),
    ({"lam": 10.0, "placement": "per_head"}, r"placement: 'per_head' here, 'full'"),
    ({"lam": 10.0, "targets": ("q",)}, r"targets: \['q'\] here"),
    ({"correction": "polar", "lam": 10.0}, r"correction: 'polar' here, 'identity'"),
    ({"lam": 10.0, "decay_toward": "zero"}, r"decay_toward: 'zero' here"),
    ({"lam": 10.0, "include": ("blocks.0.*",)}, r"blocks\.1\.attn\.qkv is conditioned in the checkpoint.*plain"),
    ({"lam": 0.0}, r"is conditioned in the checkpoint \(identity λ=10\) and plain"),
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("settings", "message"), OTHERS)
def test_other_settings_are_refused_before_anything_is_copied(
    vit: nn.Module, settings: dict[str, Any], message: str, wrapped: bool, strict: bool
) -> None:
    checkpoint: nn.Module = conditioned(vit, lam=10.0)
    model: nn.Module = conditioned(vit, **settings)
    if wrapped:
        checkpoint, model = Wrapper(checkpoint), Wrapper(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConditioningError, match=message):
        model.load_state_dict(moved(checkpoint), strict=strict)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("heads", "layout"), [(4, stacked("qkv", heads="heads")), (2, interleaved("qkv", heads="heads"))]
)
def test_rows_read_otherwise_are_refused(stacked_attention: type[nn.Module], heads: int, layout: Layout) -> None:
    """The same settings and shapes with other heads, or with rows in another order, are another C."""
    checkpoint, model = stacked_attention(16, 2), stacked_attention(16, heads)
    condition(checkpoint, lam=1.0, placement="per_head", layouts={stacked_attention: stacked("qkv", heads="heads")})
    condition(model, lam=1.0, placement="per_head", layouts={stacked_attention: layout})
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConditioningError, match=r"qkv: layout: .* here, .* in the checkpoint"):
        model.load_state_dict(moved(checkpoint))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_plain_into_conditioned_is_refused(vit: nn.Module, strict: bool, assign: bool) -> None:
    model = conditioned(vit, lam=10.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ConditioningError, match=r"blocks\.0\.attn\.qkv is conditioned here and plain in the checkpoint"
    ):
        model.load_state_dict(moved(vit), strict=strict, assign=assign)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_conditioned_into_plain(vit: nn.Module) -> None:
    """torch refuses it when strict; check_state_dict refuses it for strict=False, where torch cannot see it."""
    checkpoint = conditioned(vit, lam=10.0).state_dict()
    with pytest.raises(RuntimeError, match="_extra_state"):
        copy.deepcopy(vit).load_state_dict(checkpoint)
    with pytest.raises(ConditioningError, match="2 entries disagree"):
        check_state_dict(vit, checkpoint)
    for undone in (strip, fold):
        model = conditioned(vit, lam=10.0)
        undone(model)
        check_state_dict(vit, model.state_dict())
        vit.load_state_dict(model.state_dict())


@pytest.mark.parametrize("strict", [True, False])
def test_missing_correction_is_refused(vit: nn.Module, strict: bool) -> None:
    model = conditioned(vit, correction="polar", lam=1.0)
    checkpoint = moved(model)
    del checkpoint["blocks.1.attn.qkv.weight_correction"]
    with pytest.raises(ConditioningError, match="lacks weight_correction"):
        model.load_state_dict(checkpoint, strict=strict)


def test_renamed_prefix_is_refused_even_when_not_strict(vit: nn.Module) -> None:
    """A DDP prefix that matches nothing would leave random weights behind without an error."""
    model = conditioned(vit, lam=10.0)
    checkpoint = {f"module.{key}": value for key, value in model.state_dict().items()}
    with pytest.raises(ConditioningError, match="plain, or absent, here"):
        model.load_state_dict(checkpoint, strict=False)


def test_loading_a_part_checks_that_part(vit: nn.Module) -> None:
    model = conditioned(vit, lam=10.0)
    with pytest.raises(ConditioningError, match=r"lam: 10\.0 here, 1\.0 in the checkpoint"):
        model.blocks.load_state_dict(conditioned(vit, lam=1.0).blocks.state_dict())
    heads = {key: value for key, value in model.state_dict().items() if key.startswith("head.")}
    model.load_state_dict(heads, strict=False)


def test_other_extra_states_are_left_alone() -> None:
    class WithState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

        def get_extra_state(self) -> Tensor:
            return torch.arange(5, dtype=torch.uint8)

        def set_extra_state(self, value: Tensor) -> None:
            self.loaded = value

    model = WithState()
    condition(model, lam=1.0)
    model.load_state_dict(model.state_dict())
    assert torch.equal(model.loaded, torch.arange(5, dtype=torch.uint8))


def test_encoding() -> None:
    payload = {"settings": {"lam": 0.1}, "tensors": {}, "refreshed": 3}
    encoded = state.encode(payload)
    assert encoded.dtype == torch.uint8
    assert state.decode(encoded) == {"format": state.FORMAT, **payload}
    for foreign in (torch.zeros(4), torch.zeros(4, dtype=torch.uint8), {"a": 1}, state.encode({})[:-3]):
        assert state.decode(foreign) is None
