"""Values of every correction, against dense float64 algebra."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import Conditioning, condition, find_attention

D, H = 24, 3


@pytest.fixture
def attention() -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, bias=False)
    nn.init.normal_(module.in_proj_weight, std=0.2)
    return module


def effective(attention: nn.Module, **settings: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (W, W + C) of each role, in float64."""
    model = copy.deepcopy(attention)
    condition(model, **settings)
    projections = find_attention(model)[0].projections
    stored = {role: projection.stored().double() for role, projection in projections.items()}
    return stored, {role: projection.effective().double() for role, projection in projections.items()}


def by_head(matrix: Tensor) -> list[Tensor]:
    return list(matrix.unflatten(0, (H, -1)))


def norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, ord=2)


@pytest.mark.parametrize("correction", ["polar", "svd"])
@pytest.mark.parametrize("lam", [0.5, 1.0])
def test_polar_is_theorem_3_5(attention: nn.Module, correction: str, lam: float) -> None:
    stored, corrected = effective(attention, correction=correction, lam=lam)
    for role, weight in stored.items():
        u, s, vh = torch.linalg.svd(weight)
        torch.testing.assert_close(corrected[role], (u * (s + lam * s[0])) @ vh, rtol=0, atol=1e-2 * float(s[0]))
        assert torch.linalg.cond(corrected[role]) <= 1 + 1 / lam + 0.01


def test_polar_equals_svd_to_the_tolerance_of_its_bound(attention: nn.Module) -> None:
    _, polar = effective(attention, correction="polar", lam=1.0)
    stored, svd = effective(attention, correction="svd", lam=1.0)
    for role in "qkv":
        # σ̂ exceeds σ_max by at most n^{1/512} − 1.
        slack = D ** (1 / 512) - 1 + 1e-4
        assert norm(polar[role] - svd[role]) <= slack * norm(stored[role])


def test_per_head_polar(attention: nn.Module) -> None:
    _, corrected = effective(attention, correction="polar", lam=1.0, placement="per_head")
    heads = torch.stack([head for role in "qkv" for head in by_head(corrected[role])])
    assert torch.linalg.cond(heads).max() <= 2.01


def test_fused_polar_corrects_the_stored_tensor(attention: nn.Module) -> None:
    stored, corrected = effective(attention, correction="svd", lam=1.0, placement="fused", targets=("q", "k"))
    whole = torch.cat([stored[role] for role in "qkv"])
    u, s, vh = torch.linalg.svd(whole, full_matrices=False)
    expected = whole + s[0] * u @ vh
    torch.testing.assert_close(corrected["q"], expected[:D], rtol=0, atol=1e-5)
    torch.testing.assert_close(corrected["k"], expected[D : 2 * D], rtol=0, atol=1e-5)
    assert torch.equal(corrected["v"], stored["v"])


def test_scaled_identity_keeps_scale_and_condition_number(attention: nn.Module) -> None:
    stored, corrected = effective(attention, correction="scaled_identity", lam=10.0)
    for role, weight in stored.items():
        shifted = weight + 10.0 * torch.eye(D)
        expected = shifted * norm(weight) / (10.0 + norm(weight))
        torch.testing.assert_close(corrected[role], expected, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(torch.linalg.cond(corrected[role]), torch.linalg.cond(shifted), rtol=1e-4, atol=0)
        assert norm(corrected[role]) <= 1.002 * norm(weight)


def test_orthogonal_has_the_identitys_spectrum_and_its_own_draws(attention: nn.Module) -> None:
    for placement, pieces in (("full", lambda m: [m]), ("per_head", by_head)):
        stored, corrected = effective(attention, correction="orthogonal", lam=3.0, placement=placement, seed=4)
        again = effective(attention, correction="orthogonal", lam=3.0, placement=placement, seed=4)[1]
        other = effective(attention, correction="orthogonal", lam=3.0, placement=placement, seed=5)[1]
        drawn = [piece for role in "qkv" for piece in pieces(corrected[role] - stored[role])]
        for piece in drawn:
            values = torch.linalg.svdvals(piece)
            torch.testing.assert_close(values, torch.full_like(values, 3.0), rtol=1e-5, atol=0)
        assert all(torch.equal(corrected[role], again[role]) for role in "qkv")
        assert not any(torch.allclose(corrected[role], other[role]) for role in "qkv")
        assert not any(torch.allclose(one, two) for i, one in enumerate(drawn) for two in drawn[:i])


def test_orthogonal_is_uniform() -> None:
    """The mean of many draws is zero in every entry: a QR without its signs put right would favour one sign."""
    model = nn.ModuleList([nn.MultiheadAttention(2, 1, bias=False) for _ in range(150)])
    condition(model, correction="orthogonal", lam=1.0)
    draws = torch.cat([layer.correction("in_proj_weight").view(3, 2, 2) for layer in model])
    assert len(draws) == 450
    assert draws.mean(0).abs().max() < 4.5 * (0.5 / 450) ** 0.5
    assert 0.4 < (torch.linalg.det(draws) > 0).float().mean() < 0.6


@pytest.mark.parametrize("placement", ["full", "per_head"])
def test_relative_identity_counts_in_units_of_sigma_max(attention: nn.Module, placement: str) -> None:
    stored, corrected = effective(attention, lam=2.0, relative=True, placement=placement)
    for role, weight in stored.items():
        blocks = by_head(weight) if placement == "per_head" else [weight]
        expected = torch.cat([block + 2.0 * norm(block) * torch.eye(len(block), D) for block in blocks])
        torch.testing.assert_close(corrected[role], expected, rtol=2e-3, atol=2e-3)


def test_relative_orthogonal(attention: nn.Module) -> None:
    stored, corrected = effective(attention, correction="orthogonal", lam=2.0, relative=True)
    for role, weight in stored.items():
        torch.testing.assert_close(norm(corrected[role] - weight), 2.0 * norm(weight), rtol=2e-3, atol=0)


def test_batches_by_shape_do_not_mix_layers() -> None:
    """Layers of several shapes, computed together, get what each gets alone."""
    torch.manual_seed(0)
    sizes = [(8, 2), (12, 3), (8, 4), (12, 2)]
    model = nn.ModuleList([nn.MultiheadAttention(*size) for size in sizes])
    alone = copy.deepcopy(model)
    condition(model, correction="polar", lam=1.0, placement="per_head")
    for layer, single in zip(model, alone, strict=True):
        condition(single, correction="polar", lam=1.0, placement="per_head")
        torch.testing.assert_close(layer.correction("in_proj_weight"), single.correction("in_proj_weight"))


def test_correction_is_formed_in_the_dtype_of_the_sum(attention: nn.Module) -> None:
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        for settings in (Conditioning(lam=0.3), Conditioning(correction="polar", lam=1.0)):
            model = copy.deepcopy(attention).to(dtype)
            condition(model, settings)
            assert model.correction("in_proj_weight").dtype == wide
            assert model.in_proj_weight.dtype == dtype
    double = copy.deepcopy(attention)
    condition(double, lam=0.3)
    double.double()
    assert double.correction("in_proj_weight")[0, 0].item() == 0.3
