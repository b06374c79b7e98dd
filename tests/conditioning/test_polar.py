"""The polynomial iteration against float64 singular value decompositions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spectral_conditioning import Conditioning
from spectral_conditioning.conditioning.corrections import Source, compute
from spectral_conditioning.conditioning.placement import RoleRows, TensorPlan
from spectral_conditioning.conditioning.polar import ROUNDS, polar, schedule, sigma_upper

SHAPES = [(64, 64), (64, 24), (24, 64)]
SPECTRA = ["geometric", "one small", "one large"]


def with_condition_number(shape: tuple[int, int], kappa: float, spectrum: str, dtype: torch.dtype) -> Tensor:
    """Return three matrices U S Vᵀ of the given condition number, formed in float64."""
    generator = torch.Generator().manual_seed(0)
    count = min(shape)
    u = torch.linalg.qr(torch.randn(3, shape[0], count, dtype=torch.float64, generator=generator))[0]
    v = torch.linalg.qr(torch.randn(3, shape[1], count, dtype=torch.float64, generator=generator))[0]
    if spectrum == "geometric":
        s = torch.logspace(0, -math.log10(kappa), count, dtype=torch.float64)
    else:
        s = torch.full((count,), 1.0 if spectrum == "one small" else 1 / kappa, dtype=torch.float64)
        s[0] = 1 / kappa if spectrum == "one small" else 1.0
    return (0.037 * (u * s) @ v.mT).to(dtype)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("kappa", [1.0, 30.0, 1e4, 1e6])
@pytest.mark.parametrize("shape", SHAPES)
def test_theorem_3_5(shape: tuple[int, int], kappa: float, spectrum: str) -> None:
    """κ(W + σ̂ polar(W)) ≤ 2.01, and σ̂ is never below σ_max nor more than 1.3 % above."""
    matrices = with_condition_number(shape, kappa, spectrum, torch.float32)
    result = polar(matrices)
    exact = torch.linalg.matrix_norm(matrices.double(), ord=2)
    sigma = result.sigma.double()
    assert (sigma >= exact).all()
    assert (sigma <= 1.013 * exact).all()
    conditioned = matrices.double() + sigma[:, None, None] * result.factors.double()
    assert torch.linalg.cond(conditioned).max() <= 2.01
    assert result.zero == ()
    assert result.completed == {}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-11)])
def test_equals_the_svd(dtype: torch.dtype, tolerance: float) -> None:
    for shape in SHAPES:
        matrices = with_condition_number(shape, 100.0, "geometric", dtype)
        u, _, vh = torch.linalg.svd(matrices.double(), full_matrices=False)
        torch.testing.assert_close(polar(matrices).factors.double(), u @ vh, rtol=0, atol=tolerance)


def test_sigma_bound_of_gaussian_and_equal_spectra() -> None:
    torch.manual_seed(0)
    gaussian = torch.randn(4, 200, 150)
    exact = torch.linalg.matrix_norm(gaussian.double(), ord=2)
    bound = sigma_upper(gaussian).double()
    assert (bound >= exact).all()
    assert (bound <= 1.004 * exact).all()
    for scale in (1e-18, 1e18):  # squares of these leave the range of float32
        bound = sigma_upper(scale * torch.eye(64)[None])
        assert scale <= bound.item() <= scale * 64 ** (1 / 512) * 1.00001


def test_zero_and_singular_matrices() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(5, 32, 32)
    matrices[1] = 0
    matrices[2, :, 3] = 0
    matrices[3, 5:7] = 0
    matrices[4] = matrices[4, :, :1] @ matrices[4, :1]
    result = polar(matrices)
    assert result.zero == (1,)
    assert result.completed == {2: 1, 3: 2, 4: 31}
    assert torch.equal(result.factors[1], torch.zeros(32, 32))
    conditioned = matrices + result.sigma[:, None, None] * result.factors
    assert torch.linalg.cond(conditioned[[0, 2, 3, 4]].double()).max() <= 2.01


def test_zero_and_singular_weights_are_reported_by_name() -> None:
    torch.manual_seed(0)
    plan = TensorPlan((24, 8), tuple(RoleRows(r, (8 * i,), 8) for i, r in enumerate("qkv")), "full")
    weight = torch.randn(24, 8)
    weight[8:16] = 0
    weight[16] = 0
    computed = compute([Source("attn.qkv.weight", plan, weight)], Conditioning(correction="polar", lam=1.0))
    assert any("attn.qkv.weight:k is a zero matrix" in remark for remark in computed.remarks)
    assert any("attn.qkv.weight:v has 1 null direction" in remark for remark in computed.remarks)
    assert torch.equal(computed.matrices[0][8:16], torch.zeros(8, 8))


def test_diverged_weights_give_nan_and_spare_the_others() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, 8, 8)
    expected = polar(matrices).factors[1:]
    for value in (math.nan, math.inf):
        matrices[0, 0, 0] = value
        result = polar(matrices)
        assert result.factors[0].isnan().all()
        assert result.sigma[0].isnan()
        torch.testing.assert_close(result.factors[1:], expected)


@pytest.mark.parametrize("ratio", [*ROUNDS, 0.3, 0.9])
def test_schedule_carries_the_interval_to_one(ratio: float) -> None:
    x = torch.logspace(math.log10(ratio), 0, 20001, dtype=torch.float64)
    for a, b, c in schedule(ratio, 1e-4):
        x = a * x + b * x**3 + c * x**5
    assert (x - 1).abs().max() <= 1.01e-4


def test_first_quintic_is_the_best() -> None:
    """No odd quintic of a fine grid around the coefficients comes closer to 1 on the interval."""
    a, b, c = schedule(0.1, 1e-4)[0]
    x = torch.linspace(0.1, 1.0001, 4001, dtype=torch.float64)

    def error(a: float, b: float, c: float) -> float:
        return float((a * x + b * x**3 + c * x**5 - 1).abs().max())

    for step in (1e-2, 1e-3):
        for da in (-step, 0, step):
            for db in (-step, 0, step):
                for dc in (-step, 0, step):
                    assert error(a + da, b + db, c + dc) >= error(a, b, c) - 1e-9
