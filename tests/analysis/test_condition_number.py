"""κ(J) from Gram matrices against singular values of the whole Jacobian, in both rank regimes and far past κ = 1e7."""

from dataclasses import replace

import pytest
import torch

from spectral_conditioning.analysis import condition_number as module
from spectral_conditioning.analysis.condition_number import condition_number, spectral_norm
from spectral_conditioning.analysis.jacobian import SoftmaxJacobian

# Fewer outputs than weights (rank N d), more (rank 3Dd − d² and less), and between.
SHAPES = [
    {"tokens": 5, "width": 8, "head": 4},
    {"tokens": 3, "width": 8, "head": 6, "bias": True},
    {"tokens": 9, "width": 8, "head": 4},
    {"tokens": 20, "width": 8, "head": 4, "bias": True},
    {"tokens": 40, "width": 8, "head": 4},
    {"tokens": 40, "width": 8, "head": 4, "bias": True},
    {"tokens": 40, "width": 8, "head": 4, "norm": "layer"},
    {"tokens": 40, "width": 8, "head": 4, "norm": "layer", "bias": True},
    {"tokens": 40, "width": 8, "head": 4, "norm": "affine", "bias": True},
    {"tokens": 40, "width": 8, "head": 8, "norm": "affine", "bias": True},
    {"tokens": 30, "width": 4, "head": 6, "norm": "affine", "bias": True},
    {"tokens": 30, "width": 4, "head": 6, "bias": True},
    {"tokens": 1, "width": 8, "head": 4, "context": 9, "bias": True},
    {"tokens": 30, "width": 4, "head": 4, "context": 5, "bias": True},
]


@pytest.fixture(params=["direct", "gram, then whole", "gram, then wide block"])
def method(request, monkeypatch):
    """Take small Jacobians through the ways of large ones."""
    if request.param != "direct":
        monkeypatch.setattr(module, "_DIRECT_SIZE", 0)
    if request.param == "gram, then wide block":
        monkeypatch.setattr(module, "_WHOLE_NUMBERS", 0)
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_singular_values_of_the_whole_jacobian(shape, method, random_head, jacobian_by_autograd):
    head = random_head(scale=0.5, **shape)
    found = condition_number(SoftmaxJacobian(head))
    sigma = torch.linalg.svdvals(jacobian_by_autograd(head))
    assert found.rank == int((sigma > 1e-11 * sigma[0]).sum())
    assert found.exact
    assert found.kappa == pytest.approx(float(sigma[0] / sigma[found.rank - 1]), rel=1e-6)


@pytest.mark.parametrize("role", ["q", "k", "v"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_block_alone(shape, role, random_head):
    head = random_head(scale=0.5, **shape)
    jacobian = SoftmaxJacobian(head)
    sigma = torch.linalg.svdvals(jacobian.dense((role,)))
    rank = int((sigma > 1e-11 * sigma[0]).sum())
    found = condition_number(jacobian, (role,))
    assert found.rank == rank
    assert found.sigma_max == pytest.approx(float(sigma[0]), rel=1e-9)
    assert found.sigma_min == pytest.approx(float(sigma[rank - 1]), rel=1e-6)
    assert spectral_norm(jacobian, (role,)) == pytest.approx(float(sigma[0]), rel=1e-6)


def test_generic_rank_is_the_papers_for_tokens_in_general_position(random_head):
    for tokens in (5, 9, 15, 20, 60):
        jacobian = SoftmaxJacobian(random_head(tokens=tokens, width=8, head=4))
        assert jacobian.generic_rank() == min(tokens * 4, 3 * 8 * 4 - 4**2)


def test_singular_values_of_the_value_block_are_those_of_attended_tokens(random_head):
    head = random_head(tokens=7, width=9, head=3)
    sigma = torch.linalg.svdvals(SoftmaxJacobian(head).dense(("v",)))
    attended = torch.linalg.svdvals(head.probabilities_NM @ head.tokens_ND)
    assert torch.allclose(sigma, attended.repeat_interleave(3), rtol=1e-10, atol=0)


@pytest.mark.parametrize(("tokens", "width", "head"), [(12, 40, 8), (60, 10, 6)])
@pytest.mark.parametrize("growth", [1e2, 1e5, 1e7])
def test_resolves_far_beyond_the_gram_matrix(tokens, width, head, growth, method, random_head):
    """W_V and its output grown by a factor: κ up to 1e9, where a squared matrix in float64 holds no digit of σ_min."""
    inputs = random_head(tokens=tokens, width=width, head=head, bias=True, scale=2 / head**0.5)
    inputs = replace(inputs, v_oE=inputs.v_oE * growth, v_bias_o=inputs.v_bias_o * growth)
    jacobian = SoftmaxJacobian(inputs)
    sigma = torch.linalg.svdvals(jacobian.dense())
    found = condition_number(jacobian)
    assert found.exact
    assert found.kappa == pytest.approx(float(sigma[0] / sigma[found.rank - 1]), rel=1e-4)


def test_says_lower_bound_when_rounding_hides_the_smallest_value(method, random_head):
    """λ = 10 on more tokens than features: J_Q and J_K vanish below rounding, and σ at the generic rank with them."""
    head = random_head(tokens=40, width=8, head=4, norm="layer")
    eye_dD = torch.eye(4, 8, dtype=torch.float64)
    head = replace(head, q_dD=head.q_dD + 10 * eye_dD, k_dE=head.k_dE + 10 * eye_dD, scale=8.0)
    found = condition_number(SoftmaxJacobian(head))
    assert not found.exact
    assert found.text.startswith("> ")
    assert found.kappa > 1e11
    assert found.numerical_rank is None or found.numerical_rank < found.rank
    assert (found.numerical_rank is None) == (method == "gram, then wide block")


@pytest.mark.parametrize("size", [1e-60, 1e-130])
def test_a_jacobian_of_any_size_has_its_condition_number(random_head, size, method):
    """J_V does not depend on W_V, but tokens scaled by `size` with weights of one over it scale J."""
    head = random_head(tokens=5, width=8, head=4)
    small = replace(head, tokens_ND=head.tokens_ND * size, q_dD=head.q_dD / size, k_dE=head.k_dE / size)
    expected = condition_number(SoftmaxJacobian(head), ("v",))
    found = condition_number(SoftmaxJacobian(small), ("v",))
    assert found.sigma_max == pytest.approx(size * expected.sigma_max, rel=1e-6, abs=0)
    assert found.kappa == pytest.approx(expected.kappa, rel=1e-6)


def test_a_jacobian_that_vanished_says_so(random_head, method):
    eye_dD = torch.eye(4, 8, dtype=torch.float64)
    head = random_head(tokens=5, width=8, head=4, norm="layer")
    head = replace(head, q_dD=1e4 * eye_dD, k_dE=1e4 * eye_dD)
    found = condition_number(SoftmaxJacobian(head), ("q",))
    assert (found.text, found.numerical_rank, found.exact) == ("J = 0", 0, False)


def similar_tokens(random_head, spread):
    """A head on tokens that differ little from each other, as patches of a photograph do, with small weights."""
    head = random_head(tokens=24, width=40, head=16, scale=0.25, seed=1)
    x_ND = torch.nn.functional.layer_norm(head.tokens_ND[:1] + spread * head.tokens_ND, (40,))
    return replace(head, tokens_ND=x_ND, q_dD=0.1 * head.q_dD, k_dE=0.1 * head.k_dE, v_oE=0.1 * head.v_oE)


@pytest.mark.parametrize("spread", [0.3, 0.2])
def test_many_directions_below_rounding_are_told_apart(random_head, monkeypatch, spread):
    monkeypatch.setattr(module, "_DIRECT_SIZE", 0)
    monkeypatch.setattr(module, "_WHOLE_NUMBERS", 0)
    monkeypatch.setattr("spectral_conditioning.analysis.small_values._FIRST_WIDTH", 32)
    jacobian = SoftmaxJacobian(similar_tokens(random_head, spread))
    sigma = torch.linalg.svdvals(jacobian.dense())
    assert int((sigma < 1e-7 * sigma[0]).sum()) >= 10
    found = condition_number(jacobian)
    assert found.exact
    assert found.kappa == pytest.approx(float(sigma[0] / sigma[-1]), rel=1e-3)


def test_a_value_below_resolution_is_found_without_a_factor(random_head, monkeypatch):
    """Two tokens equal to 1e-14: their difference is a direction in which J is below what float64 tells from zero."""
    monkeypatch.setattr(module, "_DIRECT_SIZE", 0)
    monkeypatch.setattr(module, "smallest_value", lambda *_, **__: pytest.fail("not needed"))
    head = random_head(tokens=6, width=40, head=4, scale=0.25)
    x_ND = head.tokens_ND.clone()
    x_ND[1] = x_ND[0] + 1e-14 * x_ND[2]
    jacobian = SoftmaxJacobian(replace(head, tokens_ND=x_ND, rank_tolerance=0.0))
    sigma = torch.linalg.svdvals(jacobian.dense())
    found = condition_number(jacobian)
    assert sigma[-1] < found.threshold
    assert not found.exact
    assert found.rank == 24
    assert found.sigma_min < found.threshold
    assert found.kappa == pytest.approx(float(sigma[0]) / found.threshold, rel=1e-6)


def test_weak_rows_are_where_the_value_block_is_smallest(random_head):
    for tokens, width in ((5, 9), (9, 5)):  # nine tokens of rank five: J_Vᵀ vanishes on four directions
        jacobian = SoftmaxJacobian(random_head(tokens=tokens, width=width, head=3))
        rows_Rb = jacobian.weak_rows()
        assert torch.allclose(rows_Rb.T @ rows_Rb, torch.eye(3, dtype=torch.float64), atol=1e-12)
        images = jacobian.adjoint(rows_Rb, ("v",))
        smallest = torch.linalg.svdvals(jacobian.dense(("v",)))[-1] * (tokens <= width)
        assert torch.allclose(torch.linalg.svdvals(images), smallest.expand(3), rtol=1e-9, atol=1e-12)


def test_too_many_directions_below_rounding_give_a_lower_bound(random_head, monkeypatch):
    monkeypatch.setattr(module, "_DIRECT_SIZE", 0)
    monkeypatch.setattr("spectral_conditioning.analysis.small_values._FIRST_WIDTH", 32)
    jacobian = SoftmaxJacobian(similar_tokens(random_head, 0.03))
    sigma = torch.linalg.svdvals(jacobian.dense())
    kappa = float(sigma[0] / sigma[-1])
    assert int((sigma < 1e-7 * sigma[0]).sum()) > len(sigma) / 3
    assert condition_number(jacobian).kappa == pytest.approx(kappa, rel=1e-3)
    monkeypatch.setattr(module, "_WHOLE_NUMBERS", 0)
    bound = condition_number(jacobian)
    assert not bound.exact
    assert bound.text.startswith("> ")
    assert 1e7 < bound.kappa < kappa
