"""The closed-form Jacobian of softmax attention against automatic differentiation and against Theorem 3.3 as printed."""

from dataclasses import replace

import pytest
import torch

from spectral_conditioning.analysis.attention_inputs import SoftmaxHead
from spectral_conditioning.analysis.gram import gram_columns, gram_rows
from spectral_conditioning.analysis.jacobian import SoftmaxJacobian

SHAPES = [
    {"tokens": 5, "width": 8, "head": 4},
    {"tokens": 5, "width": 8, "head": 4, "bias": True, "scale": 0.5},
    {"tokens": 3, "width": 8, "head": 6, "scale": 2.0},
    {"tokens": 20, "width": 8, "head": 4, "bias": True, "scale": 0.5},
    {"tokens": 20, "width": 6, "head": 6, "norm": "affine"},
    {"tokens": 1, "width": 8, "head": 4, "context": 9, "bias": True},
    {"tokens": 12, "width": 5, "head": 4, "context": 7},
]


def masks(tokens: int) -> dict[str, torch.Tensor]:
    causal = torch.full((tokens, tokens), float("-inf"), dtype=torch.float64).triu(1)
    window = torch.where((torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() < 3, 0.0, float("-inf")).double()
    padding = torch.zeros(tokens, tokens, dtype=torch.float64)
    padding[:, tokens // 2 :] = float("-inf")
    position = torch.randn(tokens, tokens, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return {"causal": causal, "window": window, "padding": padding, "position": position}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_automatic_differentiation(shape, random_head, jacobian_by_autograd):
    head = random_head(**shape)
    expected = jacobian_by_autograd(head)
    assert torch.allclose(SoftmaxJacobian(head, reduce=False).dense(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["causal", "window", "padding", "position"])
def test_equals_automatic_differentiation_under_masks(name, random_head, jacobian_by_autograd):
    head = random_head(tokens=9, width=6, head=4, bias=True, scale=0.5, bias_NM=masks(9)[name])
    expected = jacobian_by_autograd(head)
    assert torch.allclose(SoftmaxJacobian(head, reduce=False).dense(), expected, rtol=0, atol=1e-10)


def test_a_query_that_sees_no_key_is_refused(random_head):
    mask = torch.zeros(4, 4, dtype=torch.float64)
    mask[2] = float("-inf")
    with pytest.raises(ValueError, match="1 of 4 query tokens see no key"):
        SoftmaxJacobian(random_head(tokens=4, width=5, head=3, bias_NM=mask))


def test_equals_theorem_3_3_as_printed(random_head):
    """Kronecker form, vec stacking columns, weights D×d, no 1/√d; Λ acts on each row of S."""
    N, D, d = 5, 7, 3
    head = random_head(tokens=N, width=D, head=d)
    X, W_Q, W_K, W_V = head.tokens_ND, head.q_dD.T, head.k_dE.T, head.v_oE.T
    P = torch.softmax(X @ W_Q @ W_K.T @ X.T, dim=1)
    eye_N, eye_d = torch.eye(N, dtype=X.dtype), torch.eye(d, dtype=X.dtype)
    softmax_jacobian = torch.zeros(N, N, N, N, dtype=X.dtype)  # indices (j, i, l, i') of vec: column, row
    for i in range(N):
        softmax_jacobian[:, i, :, i] = torch.diag(P[i]) - torch.outer(P[i], P[i])
    Lambda = softmax_jacobian.reshape(N * N, N * N)
    commutation = torch.zeros(D * d, D * d, dtype=X.dtype)
    for row in range(D):
        for column in range(d):
            commutation[row * d + column, column * D + row] = 1
    outer = torch.kron(W_V.T @ X.T, eye_N) @ Lambda
    printed = torch.cat(
        [
            outer @ torch.kron(X @ W_K, X),
            outer @ torch.kron(X, X @ W_Q) @ commutation,
            torch.kron(eye_d, P @ X),
        ],
        dim=1,
    )
    ours = SoftmaxJacobian(head, reduce=False).dense()
    by_columns = ours.view(N, d, -1).transpose(0, 1).reshape(N * d, -1)
    assert torch.allclose(by_columns, printed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_action_adjoint_and_gram_matrices_agree_with_the_matrix(shape, reduce, random_head):
    jacobian = SoftmaxJacobian(random_head(**shape), reduce=reduce)
    J = jacobian.dense()
    draws = torch.Generator().manual_seed(1)
    right = torch.randn(J.shape[1], 3, generator=draws, dtype=torch.float64)
    left = torch.randn(J.shape[0], 3, generator=draws, dtype=torch.float64)
    assert torch.allclose(jacobian.forward(right), J @ right, rtol=0, atol=1e-11)
    assert torch.allclose(jacobian.adjoint(left), J.T @ left, rtol=0, atol=1e-11)
    assert torch.allclose(gram_rows(jacobian), J @ J.T, rtol=0, atol=1e-11)
    assert torch.allclose(gram_columns(jacobian), J.T @ J, rtol=0, atol=1e-11)
    for roles in (("q",), ("k", "v")):
        part = jacobian.dense(roles)
        assert torch.allclose(gram_rows(jacobian, roles), part @ part.T, rtol=0, atol=1e-11)
        assert torch.allclose(gram_columns(jacobian, roles), part.T @ part, rtol=0, atol=1e-11)


def test_chunks_change_nothing(monkeypatch, random_head):
    head = random_head(tokens=20, width=8, head=4, bias=True)
    whole = SoftmaxJacobian(head)
    rows, columns = gram_rows(whole), gram_columns(whole)
    monkeypatch.setattr("spectral_conditioning.analysis.gram._CHUNK_NUMBERS", 1000)
    monkeypatch.setattr("spectral_conditioning.analysis.jacobian._CHUNK_NUMBERS", 1000)
    chunked = SoftmaxJacobian(head)
    assert torch.allclose(chunked.dense(), whole.dense(), rtol=0, atol=1e-13)
    assert torch.allclose(gram_rows(chunked), rows, rtol=0, atol=1e-12)
    assert torch.allclose(gram_columns(chunked), columns, rtol=0, atol=1e-12)


def test_reduction_keeps_every_non_zero_singular_value(random_head):
    head = random_head(tokens=6, width=30, head=5, bias=True)
    full, reduced = SoftmaxJacobian(head, reduce=False).dense(), SoftmaxJacobian(head).dense()
    assert reduced.shape == (30, 3 * 5 * 6)
    assert full.shape == (30, 3 * 5 * 30)
    assert torch.allclose(torch.linalg.svdvals(full), torch.linalg.svdvals(reduced), rtol=1e-11, atol=0)


def test_a_saturated_head_keeps_its_tiny_derivative():
    """Two tokens whose logits differ by 60: B is of size e^-60, far below the rounding of numbers of order one."""
    x_ND = torch.eye(2, 4, dtype=torch.float64)
    eye_dD = torch.eye(3, 4, dtype=torch.float64)
    head = SoftmaxHead(x_ND, eye_dD * 60, eye_dD, eye_dD)
    other = torch.exp(torch.tensor(-60.0, dtype=torch.float64))
    jacobian = SoftmaxJacobian(head)
    # Row 0 attends to itself: B_0 = Cov(v, k) = p(1 − p)(v_0 − v_1)(k_0 − k_1)ᵀ with p ≈ e^-60.
    difference = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert torch.allclose(jacobian.B_Nod[0], other * torch.outer(difference, difference), rtol=1e-12, atol=0)


def test_scale_multiplies_the_query_and_key_blocks_only_through_the_logits(random_head):
    """W_Q → W_Q/s with scale s leaves A as it is, so ∂A/∂W_Q is multiplied by s and the other blocks stay."""
    head = random_head(tokens=6, width=8, head=4, scale=1.0)
    scaled = replace(head, q_dD=head.q_dD * 2, scale=0.5)
    one, two = SoftmaxJacobian(head, reduce=False), SoftmaxJacobian(scaled, reduce=False)
    assert torch.allclose(two.dense(("q",)), 0.5 * one.dense(("q",)), rtol=0, atol=1e-13)
    assert torch.allclose(two.dense(("k", "v")), one.dense(("k", "v")), rtol=0, atol=1e-13)
