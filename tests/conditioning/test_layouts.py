"""Packings, torch's own attention, user-written attention, and everything find_attention refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import (
    ConditioningError,
    Layout,
    condition,
    find_attention,
    fused_kv,
    interleaved,
    separate,
    stacked,
)

# H heads, G key/value heads, d head width, D model width
D, H, G, d = 16, 4, 2, 4


class Packed(nn.Module):
    """Grouped-query attention whose weights may be packed in any way; the packing does not matter to `pieces`."""

    def __init__(self, packing: str, kv_heads: int = G, conv: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads = H, kv_heads
        sizes = {"q": H * d, "k": kv_heads * d, "v": kv_heads * d}
        groups = {"separate": ("q", "k", "v"), "fused_kv": ("q", "kv"), "kv per group": ("q", "kv")}
        for name in groups.get(packing, ("qkv",)):
            out = sum(sizes[role] for role in name)
            self.add_module(name, nn.Conv2d(D, out, 1, bias=False) if conv else nn.Linear(D, out, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return x


LAYOUTS: dict[str, Layout] = {
    "separate": separate("q", "k", "v", heads="heads", kv_heads="kv_heads"),
    "stacked": stacked("qkv", heads="heads", kv_heads="kv_heads"),
    "interleaved": interleaved("qkv", heads="heads", kv_heads="kv_heads"),
    "fused_kv": fused_kv("q", "kv", heads="heads", kv_heads="kv_heads"),
    "kv per group": fused_kv("q", "kv", heads="heads", kv_heads="kv_heads", order="interleaved"),
}


def pack(packing: str, q: Tensor, k: Tensor, v: Tensor, kv_heads: int, conv: bool = False) -> Packed:
    """Store given matrices in a module, by slices written out for each packing."""
    module = Packed(packing, kv_heads, conv)
    ratio = H // kv_heads
    if packing == "separate":
        weights = {"q": q, "k": k, "v": v}
    elif packing == "fused_kv":
        weights = {"q": q, "kv": torch.cat([k, v])}
    elif packing == "kv per group":
        rows = [part[g * d : (g + 1) * d] for g in range(kv_heads) for part in (k, v)]
        weights = {"q": q, "kv": torch.cat(rows)}
    elif packing == "stacked":
        weights = {"qkv": torch.cat([q, k, v])}
    else:
        rows = []
        for g in range(kv_heads):
            rows += [q[g * ratio * d : (g + 1) * ratio * d], k[g * d : (g + 1) * d], v[g * d : (g + 1) * d]]
        weights = {"qkv": torch.cat(rows)}
    with torch.no_grad():
        for name, weight in weights.items():
            stored = module.get_submodule(name).weight
            stored.copy_(weight.reshape(stored.shape))
    return module


@pytest.mark.parametrize("placement", ["full", "per_head"])
@pytest.mark.parametrize("kv_heads", [H, G])
@pytest.mark.parametrize("packing", LAYOUTS)
@pytest.mark.parametrize("conv", [False, True])
def test_every_packing_corrects_the_same_matrices(packing: str, kv_heads: int, placement: str, conv: bool) -> None:
    """q, k and v packed in five ways, in linear layers and 1×1 convolutions: each unpacked matrix is W + λE."""
    generator = torch.Generator().manual_seed(0)
    plain = {
        role: torch.randn((H if role == "q" else kv_heads) * d, D, generator=generator) for role in ("q", "k", "v")
    }
    model = pack(packing, **plain, kv_heads=kv_heads, conv=conv)
    report = condition(model, lam=10.0, placement=placement, layouts={Packed: LAYOUTS[packing]})
    assert report.count == 3
    (attention,) = find_attention(model, layouts={Packed: LAYOUTS[packing]})
    for role, weight in plain.items():
        identity = torch.eye(len(weight), D)
        if placement == "per_head":
            identity = torch.eye(d, D).repeat(len(weight) // d, 1)
        assert torch.equal(attention.projections[role].stored(), weight)
        assert torch.equal(attention.projections[role].effective(), weight + 10.0 * identity)


@pytest.mark.parametrize("settings", [{"lam": 10.0}, {"lam": 10.0, "placement": "fused"}, {"correction": "polar"}])
def test_transposed_layer_computes_what_its_linear_twin_does(
    stacked_attention: type[nn.Module], settings: dict[str, Any]
) -> None:
    """Conv1D of transformers, 8 → 24, stores (in, out): a correction on the wrong axis fits a square weight only."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    plain = stacked_attention(8, 2)
    twin = stacked_attention(8, 2, layer=lambda columns, rows: conv1d(rows, columns))
    with torch.no_grad():
        twin.qkv.weight.copy_(plain.qkv.weight.T)
        twin.qkv.bias.copy_(plain.qkv.bias)
    for module in (plain, twin):
        condition(module, layouts={stacked_attention: stacked("qkv", heads="heads")}, **settings)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(twin.qkv(x), plain.qkv(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(twin.qkv.weight, plain.qkv.weight.T, rtol=1e-5, atol=1e-5)
    assert (plain.qkv.weight - plain.qkv.trained_weight()).abs().max() > 0.1


def test_fused_identity_lies_on_q_alone_when_stacked(stacked_attention: type[nn.Module]) -> None:
    model = stacked_attention()
    report = condition(model, lam=10.0, placement="fused", layouts={stacked_attention: stacked("qkv", heads="heads")})
    assert [row.role for row in report.projections] == ["q"]
    assert torch.equal(model.qkv.weight, model.qkv.trained_weight() + 10.0 * torch.eye(48, 16))


def test_fused_identity_hits_q_k_v_of_the_first_heads_when_interleaved(
    identity_added: Callable[..., None],
) -> None:
    model = pack("interleaved", torch.zeros(D, D), torch.zeros(D, D), torch.zeros(D, D), H)
    targets = ("q", "v")
    condition(model, lam=3.0, placement="fused", targets=targets, layouts={Packed: LAYOUTS["interleaved"]})
    # Rows 0-3 are q of head 0, 4-7 k of head 0 (not targeted), 8-11 v of head 0, 12-15 q of head 1.
    expected = torch.diag(torch.tensor([3.0] * 4 + [0.0] * 4 + [3.0] * 8))
    assert torch.equal(model.qkv.weight[:16], expected)
    assert torch.equal(model.qkv.weight[16:], torch.zeros(32, 16))


@pytest.mark.parametrize("targets", [("q",), ("k", "v"), ("q", "k", "v")])
@pytest.mark.parametrize("placement", ["full", "per_head", "fused"])
def test_targets(
    placement: str,
    targets: tuple[str, ...],
    stacked_attention: type[nn.Module],
    identity_added: Callable[..., None],
) -> None:
    model = stacked_attention()
    reference = model.qkv.weight.detach().clone()
    identity_added(reference, 2.0, ("", "qkv", "stacked", 2, 2), placement=placement, targets="".join(targets))
    layout = stacked("qkv", heads="heads")
    condition(model, lam=2.0, placement=placement, targets=targets, layouts={stacked_attention: layout})
    assert torch.equal(model.qkv.weight.detach(), reference)


def test_multihead_attention_in_all_its_layouts() -> None:
    x, kx, vx = torch.randn(2, 5, 16), torch.randn(2, 5, 8), torch.randn(2, 5, 12)
    same = nn.MultiheadAttention(16, 4, batch_first=True)
    other = nn.MultiheadAttention(16, 4, kdim=8, vdim=12, batch_first=True)
    for module, values, names in (
        (same, (x, x, x), ["in_proj_weight"]),
        (other, (x, kx, vx), ["q_proj_weight", "k_proj_weight", "v_proj_weight"]),
    ):
        reference = copy.deepcopy(module)
        with torch.no_grad():
            for name in names:
                weight = getattr(reference, name)
                for block in weight.split(16):
                    block += 0.5 * torch.eye(16, weight.shape[1])
        assert condition(module, lam=0.5).count == 3
        expected = reference(*values)[0].detach()
        torch.testing.assert_close(module(*values)[0], expected)
        module.eval()
        for without_gradients in (torch.no_grad, torch.inference_mode):  # where torch takes its fast path
            with without_gradients():
                torch.testing.assert_close(module(*values)[0], expected)
        assert [name for name, _ in module.named_parameters()] == [name for name, _ in reference.named_parameters()]


def test_only_the_targeted_separate_weights_of_multihead_attention() -> None:
    module = nn.MultiheadAttention(16, 4, kdim=8, vdim=12)
    condition(module, lam=1.0, targets=("k",))
    assert module.q_proj_weight is module.trained_weight("q_proj_weight")
    assert torch.equal(module.k_proj_weight, module.trained_weight("k_proj_weight") + torch.eye(16, 8))


def test_transformer_encoder_fast_path() -> None:
    """With and without gradients, in train and eval mode and with a padding mask, the encoder computes with W + C."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    plain = copy.deepcopy(encoder)
    condition(encoder, lam=1.0)
    x, mask = torch.randn(3, 6, 32), torch.zeros(3, 6, dtype=torch.bool)
    mask[0, 4:] = True
    with_grad = encoder(x)
    encoder.train()
    torch.testing.assert_close(encoder(x), with_grad, rtol=1e-4, atol=1e-5)
    encoder.eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), with_grad, rtol=1e-4, atol=1e-5)
        assert (encoder(x) - plain(x)).abs().max() > 0.1
    with torch.inference_mode():
        fast = encoder(x, src_key_padding_mask=mask)
    slow = encoder(x, src_key_padding_mask=mask)
    valid = ~mask[:, : fast.shape[1]]
    torch.testing.assert_close(fast[valid], slow[:, : fast.shape[1]][valid], rtol=1e-4, atol=1e-5)


def test_include_and_exclude() -> None:
    def selected(include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
        return [attention.name for attention in find_attention(model, include=include, exclude=exclude)]

    model = nn.Sequential(*(nn.MultiheadAttention(8, 2) for _ in range(3)))
    assert selected(include=["[01]"]) == ["0", "1"]
    assert selected(exclude=["1"]) == ["0", "2"]
    assert condition(model, lam=1.0, include=("2",)).count == 3
    assert type(model[0]) is nn.MultiheadAttention


def test_pattern_without_match_names_the_nearest(vit: nn.Module) -> None:
    with pytest.raises(ConditioningError, match=r"'blocks\.0\.atn' matched 0 of 2 .* closest 'blocks\.0\.attn'"):
        condition(vit, lam=1.0, include=("blocks.0.atn",))
    assert type(vit.blocks[0].attn.qkv) is nn.Linear


def test_no_attention() -> None:
    with pytest.raises(ConditioningError, match="no attention found in Sequential"):
        condition(nn.Sequential(nn.Linear(4, 4)), lam=1.0)


class UnknownAttention(nn.Module):
    """Fits every shape of a stacked layout; nothing may be guessed from that."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv = nn.Linear(8, 24)


def test_unknown_attention_is_an_error_even_beside_known_attention() -> None:
    model = nn.ModuleDict({"known": nn.MultiheadAttention(8, 2), "mine": UnknownAttention()})
    with pytest.raises(ConditioningError, match=r"mine is a .*UnknownAttention.*layouts="):
        condition(model, lam=1.0)
    assert type(model["known"]) is nn.MultiheadAttention
    assert condition(copy.deepcopy(model), lam=1.0, exclude=("mine",)).count == 3
    assert condition(model, lam=1.0, layouts={"mine": stacked("qkv", heads="num_heads")}).count == 6


def test_subclass_with_a_forward_of_its_own_is_unknown() -> None:
    class Inherits(nn.MultiheadAttention):
        pass

    class MyAttention(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return x

    assert find_attention(Inherits(8, 2))[0].family == "torch MultiheadAttention"
    with pytest.raises(ConditioningError, match="MyAttention"):
        find_attention(MyAttention(8, 2))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (stacked("qkv", heads="nheads"), "number of heads at 'nheads' is None"),
        (stacked("qkv", heads=5), "24 rows, which 15 heads"),
        (stacked("to_qkv", heads=2), "does not have the weights of its layout: to_qkv"),
        (stacked("qkv", heads=2, kv_heads=3), "2 query heads do not split over 3"),
    ],
)
def test_layouts_that_do_not_fit(layout: Layout, message: str) -> None:
    with pytest.raises(ConditioningError, match=message):
        condition(UnknownAttention(), lam=1.0, layouts={UnknownAttention: layout})


def test_layout_that_matches_nothing() -> None:
    with pytest.raises(ConditioningError, match=r"\['encoder\.\*'\] matched no module"):
        condition(nn.MultiheadAttention(8, 2), lam=1.0, layouts={"encoder.*": stacked("qkv", heads=2)})


def test_works_on_plain_and_conditioned_models(vit: nn.Module) -> None:
    plain = [projection.stored() for a in find_attention(vit) for projection in a.projections.values()]
    condition(vit, lam=1.0)
    found = [projection for a in find_attention(vit) for projection in a.projections.values()]
    assert all(torch.equal(before, p.stored()) for before, p in zip(plain, found, strict=True))
    assert all(torch.equal(p.effective(), p.stored() + torch.eye(32)) for p in found)
    assert not any(p.stored().requires_grad or p.effective().requires_grad for p in found)
