"""Spectra of projections against torch's own decomposition of each matrix, on layouts that stack, interleave and split."""

import math

import pytest
import timm
import torch
from torch import nn

from spectral_conditioning import condition
from spectral_conditioning.analysis.spectra import singular_values, spectra, spectra_summary
from spectral_conditioning.conditioning import interleaved


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=48, num_heads=4)


def test_stacked_and_per_head_values_are_those_of_the_weights():
    model = vit()
    condition(model, lam=2.0, placement="per_head")
    qkv = model.blocks[1].attn.qkv
    for role, effective, stored in zip(
        "qkv", qkv.effective_weight().detach().chunk(3), qkv.trained_weight().detach().chunk(3), strict=True
    ):
        for kept, matrix in ((False, effective), (True, stored)):
            found = next(s for s in spectra(model, stored=kept) if (s.attention, s.role) == ("blocks.1.attn", role))
            assert torch.allclose(found.stacked_k, torch.linalg.svdvals(matrix.double()), rtol=1e-6, atol=0)
            heads = torch.linalg.svdvals(matrix.double().view(4, 12, 48))
            assert torch.allclose(found.heads_Hk, heads, rtol=1e-9, atol=0)
            assert found.kappa == pytest.approx(found.sigma_max / found.sigma_min)
            assert found.kappa_heads == pytest.approx((heads[:, 0] / heads[:, -1]).tolist())


def test_interleaved_rows_are_put_together_by_role():
    torch.manual_seed(0)

    class Interleaved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.query_key_value = 2, nn.Linear(8, 24)

    model = Interleaved()
    layouts = {Interleaved: interleaved("query_key_value", heads="heads")}
    rows = model.query_key_value.weight.detach().double().view(2, 3, 4, 8)
    for spectrum, index in zip(spectra(model, layouts=layouts), range(3), strict=True):
        assert torch.allclose(spectrum.stacked_k, torch.linalg.svdvals(rows[:, index].reshape(8, 8)), rtol=1e-8)


@pytest.mark.parametrize("kappa", [1e2, 1e5, 1e8, 1e11])
@pytest.mark.parametrize("shape", [(20, 50), (50, 20)])
def test_small_singular_values_are_resolved(kappa: float, shape: tuple[int, int]):
    draws = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(shape[0], 20, generator=draws, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(shape[1], 20, generator=draws, dtype=torch.float64)).Q
    sigma = torch.logspace(0, -math.log10(kappa), 20, dtype=torch.float64)
    (found,) = singular_values([(left * sigma) @ right.T])
    assert float(found[0] / found[-1]) == pytest.approx(kappa, rel=1e-3)


def test_batches_of_mixed_shapes_keep_their_order():
    draws = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=draws) for shape in ((3, 5), (4, 4), (3, 5), (5, 3))]
    for matrix, found in zip(matrices, singular_values(matrices), strict=True):
        assert torch.allclose(found, torch.linalg.svdvals(matrix.double()), rtol=1e-9)


def test_a_singular_matrix_has_infinite_condition_number_or_close_to():
    model = vit()
    model.blocks[0].attn.qkv.weight.data[0] = 0
    found = spectra(model, include=["blocks.0.attn"])[0]
    assert found.kappa > 1e12


def test_summary_is_the_mean_over_layers():
    model = vit()
    condition(model, lam=10.0)
    found = spectra(model)
    summary = spectra_summary(model)
    for role in "qkv":
        of_role = [s for s in found if s.role == role]
        assert summary[f"sigma_min/{role}"] == pytest.approx(sum(s.sigma_min for s in of_role) / 3)
        assert summary[f"kappa/{role}"] == pytest.approx(sum(s.kappa for s in of_role) / 3)
        assert summary[f"kappa_head/{role}"] == pytest.approx(sum(k for s in of_role for k in s.kappa_heads) / 12)
        # Weyl: λ = 10 and σ_max(W) about 0.25 leave κ(W + λI) within (10 + 0.3)/(10 − 0.3).
        assert summary[f"kappa/{role}"] < 1.1
    assert spectra_summary(model, stored=True)["kappa/q"] > 10
    assert spectra_summary(model, layers=1)["sigma_max/q"] == pytest.approx(found[0].sigma_max)
