"""Laws of starting from other weights: timm's conversion is applied, everything must fit, and a misfit changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from spectral_conditioning import find_attention
from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.imagenet.weights import load_initial_weights
from spectral_conditioning.training.prepare import prepare


def tiny_swin(seed: int = 0, classes: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=2, embed_dim=8, depths=(1, 1, 1), num_heads=(1, 2, 4),
        num_classes=classes,
    ).eval()  # fmt: skip


def numbered_as_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Microsoft's files: downsampling at the end of a stage instead of the start of the next, a plain `head`, fixed buffers."""
    renamed = {}
    for key, value in weights.items():
        key = re.sub(r"layers\.(\d+)\.downsample", lambda found: f"layers.{int(found[1]) - 1}.downsample", key)
        renamed[key.replace("head.fc.", "head.")] = value
    renamed["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(4, 4)
    return renamed


@pytest.fixture
def picture32() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_published_swin_numbering_is_converted(tmp_path: Path, picture32: Tensor) -> None:
    source, target = tiny_swin(0), tiny_swin(1)
    torch.save({"model": numbered_as_published(source.state_dict()), "epoch": 299}, tmp_path / "swin.pth")
    assert not torch.allclose(source(picture32), target(picture32), atol=1e-3)
    load_initial_weights(target, tmp_path / "swin.pth")
    assert torch.equal(source(picture32), target(picture32))


def test_own_numbering_loads_from_safetensors(tmp_path: Path, picture32: Tensor) -> None:
    source, target = tiny_swin(0), tiny_swin(1)
    save_file(source.state_dict(), tmp_path / "swin.safetensors")
    load_initial_weights(target, tmp_path / "swin.safetensors")
    assert torch.equal(source(picture32), target(picture32))


def test_raw_weights_are_taken_and_not_their_average(tmp_path: Path, picture32: Tensor) -> None:
    raw, average, target = tiny_swin(0), tiny_swin(1), tiny_swin(2)
    torch.save({"state_dict": raw.state_dict(), "state_dict_ema": average.state_dict()}, tmp_path / "both.pth")
    load_initial_weights(target, tmp_path / "both.pth")
    assert torch.equal(raw(picture32), target(picture32))


@pytest.mark.parametrize(
    "family", ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "xcit_nano_12_p8_224", "davit_tiny"]
)
def test_each_family_loads_its_own_weights(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, target = timm.create_model(family, num_classes=5), timm.create_model(family, num_classes=5)
    torch.save(source.state_dict(), tmp_path / "own.pth")
    load_initial_weights(target, tmp_path / "own.pth")
    assert all(
        torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda weights: weights.pop("layers.1.blocks.0.attn.qkv.weight"),
            "1 missing (layers.1.blocks.0.attn.qkv.weight)",
        ),
        (lambda weights: weights.update(extra=torch.zeros(1)), "1 not in the model (extra)"),
        (
            lambda weights: weights.update({"norm.weight": torch.zeros(3)}),
            "1 of another shape (norm.weight (3,) for (32,))",
        ),
    ],
)
def test_misfit_is_named_and_changes_nothing(change: object, said: str, tmp_path: Path) -> None:
    source, target = tiny_swin(0), tiny_swin(1)
    weights = source.state_dict()
    change(weights)  # type: ignore[operator]
    torch.save(weights, tmp_path / "odd.pth")
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(DataError) as caught:
        load_initial_weights(target, tmp_path / "odd.pth")
    assert said in str(caught.value)
    assert "Nothing was loaded" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_other_family_and_other_classes_are_refused(tmp_path: Path) -> None:
    torch.save(timm.create_model("vit_tiny_patch16_224", num_classes=5).state_dict(), tmp_path / "vit.pth")
    with pytest.raises(DataError, match=r"does not fit SwinTransformer: .* missing"):
        load_initial_weights(tiny_swin(), tmp_path / "vit.pth")
    torch.save(tiny_swin(classes=7).state_dict(), tmp_path / "seven.pth")
    with pytest.raises(DataError, match=r"head\.fc\.weight \(7, 32\) for \(5, 32\)"):
        load_initial_weights(tiny_swin(classes=5), tmp_path / "seven.pth")


@pytest.mark.parametrize("name", ["none.pth", "text.pth", "hello.pth", "empty.pth", "text.safetensors", "number.pth"])
def test_files_that_hold_no_weights_are_refused(name: str, tmp_path: Path) -> None:
    if name.startswith(("text", "hello")):
        (tmp_path / name).write_text("no weights" if name.startswith("text") else "hello")
    elif name.startswith("empty"):
        (tmp_path / name).touch()
    elif name.startswith("number"):
        torch.save({"model": {"norm.weight": 3}}, tmp_path / name)
    with pytest.raises(DataError, match=re.escape(name)):
        load_initial_weights(tiny_swin(), tmp_path / name)


def test_a_run_loads_its_weights_before_it_is_conditioned(tiny: Callable[..., Any], tmp_path: Path) -> None:
    source = prepare(tiny("seed=1")).module.model
    torch.save(source.state_dict(), tmp_path / "start.pth")
    start = f"init.weights={tmp_path / 'start.pth'}"
    baseline = prepare(tiny(start))
    conditioned = prepare(tiny(start, "conditioning=identity"))
    for arm in (baseline, conditioned):
        for (name, one), other in zip(arm.module.model.named_parameters(), source.parameters(), strict=True):
            assert torch.equal(one, other), name
    assert baseline.initial_weights == conditioned.initial_weights
    (attention,) = find_attention(conditioned.module.model)
    for projection in attention.projections.values():
        assert torch.equal(projection.effective(), projection.stored() + 10.0 * torch.eye(16))
