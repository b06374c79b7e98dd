"""Attention between channels (XCiT, DaViT): closed form against automatic differentiation."""

import pytest
import torch

from spectral_conditioning.analysis.attention_inputs import ChannelHead
from spectral_conditioning.analysis.channel_jacobian import ChannelJacobian
from spectral_conditioning.analysis.condition_number import condition_number
from spectral_conditioning.analysis.token_space import token_space

SHAPES = [
    {"tokens": 5, "width": 8, "head": 4, "temperature": 1.7},
    {"tokens": 5, "width": 8, "head": 4, "temperature": 1.7, "bias": True},
    {"tokens": 20, "width": 8, "head": 4, "temperature": 0.6},
    {"tokens": 20, "width": 8, "head": 4, "temperature": 1.7, "bias": True},
    {"tokens": 5, "width": 8, "head": 3, "temperature": 0.05, "normalised": False},
    {"tokens": 20, "width": 8, "head": 4, "temperature": 0.05, "normalised": False, "bias": True},
]


def full_jacobian(jacobian: ChannelJacobian) -> torch.Tensor:
    """Undo both reductions: J with rows (token, channel) and columns over all features."""
    head = len(jacobian.a_dR)
    basis_Dr = token_space(jacobian.head.tokens_ND, tolerance=1e-12).basis_Dr
    J = jacobian.dense().view(head, jacobian.a_dR.shape[1], 3 * head, -1)
    J = torch.einsum("NR,cRpr,Dr->NcpD", jacobian.basis_NR, J, basis_Dr)
    return J.reshape(J.shape[0] * head, -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_automatic_differentiation(shape, random_head, jacobian_by_autograd):
    head = random_head(ChannelHead, **shape)
    expected = jacobian_by_autograd(head)
    assert torch.allclose(full_jacobian(ChannelJacobian(head)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adjoint_gram_and_condition_number(shape, random_head, jacobian_by_autograd):
    head = random_head(ChannelHead, **shape)
    jacobian = ChannelJacobian(head)
    J = jacobian.dense()
    left = torch.randn(J.shape[0], 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(jacobian.adjoint(left), J.T @ left, rtol=0, atol=1e-11)
    assert torch.allclose(jacobian.gram(), J @ J.T, rtol=0, atol=1e-11)
    sigma = torch.linalg.svdvals(jacobian_by_autograd(head))
    rank = int((sigma > 1e-11 * sigma[0]).sum())
    found = condition_number(jacobian)
    assert (found.rank, found.numerical_rank, found.exact) == (rank, rank, True)
    assert found.kappa == pytest.approx(float(sigma[0] / sigma[rank - 1]), rel=1e-6)


def test_the_scale_of_queries_and_keys_cancels_when_they_are_normalised(random_head):
    """XCA's output, and so its Jacobian with respect to W_V, does not see λ's size in W_Q and W_K."""
    head = random_head(ChannelHead, tokens=9, width=6, head=4)
    larger = random_head(ChannelHead, tokens=9, width=6, head=4)
    larger = type(head)(larger.tokens_ND, larger.q_dD * 50, larger.k_dE * 50, larger.v_oE)
    assert torch.allclose(head.output_No, larger.output_No, rtol=0, atol=1e-13)
    small, large = ChannelJacobian(head), ChannelJacobian(larger)
    assert torch.allclose(large.dense(("q",)) * 50, small.dense(("q",)), rtol=0, atol=1e-12)
