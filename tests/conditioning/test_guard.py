"""Edits in place of a weight that is computed, W + C, would be lost; they are caught, and reads cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import ConditioningError, condition, conditioned_layers, fold, strip


@pytest.mark.parametrize(
    "edit",
    [
        nn.init.zeros_,
        nn.init.xavier_uniform_,
        lambda weight: weight.detach().mul_(2),
        lambda weight: weight.data.normal_(),
        lambda weight: weight.data.copy_(torch.zeros(96, 32)),
    ],
)
def test_lost_in_place_edit_is_caught(vit: nn.Module, images: Tensor, edit: Any) -> None:
    condition(vit, lam=1.0)
    edit(vit.blocks[0].attn.qkv.weight)
    with pytest.raises(ConditioningError, match=r"blocks\.0\.attn\.qkv\.weight was edited in place"):
        vit(images)
    vit(images)


def test_reinitialising_the_model_is_caught_at_the_second_layer(vit: nn.Module) -> None:
    condition(vit, lam=1.0)
    with pytest.raises(ConditioningError, match="was edited in place"):
        vit.apply(lambda m: nn.init.normal_(m.weight) if isinstance(m, nn.Linear) else None)


@pytest.mark.parametrize("undo", [fold, strip])
def test_edit_is_caught_before_the_layers_become_plain(vit: nn.Module, undo: Callable[[nn.Module], Any]) -> None:
    condition(vit, lam=1.0)
    nn.init.zeros_(vit.blocks[1].attn.qkv.weight)
    with pytest.raises(ConditioningError, match=r"blocks\.1\.attn\.qkv\.weight was edited in place"):
        undo(vit)
    assert len(conditioned_layers(vit)) == 2


def test_failing_read_does_not_fall_back_on_the_plain_weight(vit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """An AttributeError inside a property makes Python ask nn.Module.__getattr__, which knows W only."""
    condition(vit, lam=1.0)

    def broken(*_: Any) -> None:
        raise AttributeError("gone")

    monkeypatch.setattr("spectral_conditioning.conditioning.guard.watch", broken)
    with pytest.raises(RuntimeError, match=r"reading blocks\.0\.attn\.qkv\.weight failed: gone"):
        _ = vit.blocks[0].attn.qkv.weight


def test_reads_without_edits_are_free(vit: nn.Module, images: Tensor) -> None:
    condition(vit, lam=1.0)
    assert vit.blocks[0].attn.qkv.weight.sum().isfinite()
    vit(images)
    vit.state_dict()
