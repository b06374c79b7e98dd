"""The iterative pseudo-inverse and the segments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spectral_conditioning.tasks.lra.landmarks import pseudo_inverse, segment_means, segment_weights, start_value


def kernels(size: float, *, seed: int = 0, m: int = 12) -> Tensor:
    """Return softmax kernels (3, 2, m, m) of a positive definite logit matrix, well away from singular."""
    logits = torch.randn(3, 2, m, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 0.3
    return (logits + size * torch.eye(m, dtype=torch.float64)).softmax(-1)


@pytest.mark.parametrize("start", ["batch", "matrix", "norms"])
def test_iteration_converges_to_the_inverse(start: str) -> None:
    K = kernels(3.0)
    torch.testing.assert_close(pseudo_inverse(K, iterations=20, start=start), torch.linalg.inv(K), rtol=1e-8, atol=1e-9)


def test_iteration_satisfies_penrose_for_a_singular_matrix() -> None:
    K = kernels(3.0)
    K[..., 1, :] = K[..., 0, :]  # equal rows: rank m − 1
    # What rounding leaves in the null space grows 13/4-fold with each iteration, so more of them would not be better.
    Z = pseudo_inverse(K, iterations=14, start="matrix")
    torch.testing.assert_close(K @ Z @ K, K, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(Z, torch.linalg.pinv(K, rtol=1e-10), rtol=1e-5, atol=1e-6)


def test_six_iterations_reach_farther_from_a_start_per_matrix_than_per_batch() -> None:
    K = kernels(3.0)
    peaked = torch.full_like(K[:1], 1e-6)
    peaked[..., 0] = 1.0  # all rows point at one column: the largest column sum there can be
    batch = torch.cat([K, peaked / peaked.sum(-1, keepdim=True)])
    inverse = torch.linalg.inv(K)
    errors = {
        start: (pseudo_inverse(batch, iterations=6, start=start)[:3] - inverse).norm().item()
        for start in ("batch", "matrix")
    }
    assert errors["matrix"] < 1e-3 * errors["batch"]


def test_start_values_are_what_they_say() -> None:
    K = kernels(1.0)
    sums = K.sum(-2)
    torch.testing.assert_close(start_value(K, "batch"), K.mT / sums.max())
    for b in range(3):
        for h in range(2):
            torch.testing.assert_close(start_value(K, "matrix")[b, h], K[b, h].T / sums[b, h].max())
            torch.testing.assert_close(start_value(K, "norms")[b, h], K[b, h].T / sums[b, h].max())


def test_gradients_agree_with_finite_differences() -> None:
    K = kernels(2.0, m=4)[:1].requires_grad_()
    assert torch.autograd.gradcheck(lambda k: pseudo_inverse(k.softmax(-1), iterations=3, start="matrix"), (K,))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    extra=st.integers(0, 10),
    landmarks=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_segments_share_a_sequence_out_evenly_and_ignore_padding(
    lengths: list[int], extra: int, landmarks: int
) -> None:
    tokens = max(1, *lengths) + extra
    P_BmN = segment_weights(torch.tensor(lengths), tokens, landmarks)
    for P_mN, length in zip(P_BmN, lengths, strict=True):
        assert not P_mN[:, length:].any()
        used = P_mN.sum(dim=1) > 0
        assert int(used.sum()) == min(length, landmarks)
        torch.testing.assert_close(P_mN[used].sum(dim=1), torch.ones(int(used.sum())))
        belongs = P_mN[:, :length] > 0
        assert (belongs.sum(dim=0) == 1).all()
        if length >= landmarks:
            sizes = belongs.sum(dim=1)
            assert int(sizes.max() - sizes.min()) <= 1
            assert (belongs.float().argmax(dim=0).diff() >= 0).all()


def test_segments_of_full_multiples_are_plain_means() -> None:
    x = torch.randn(2, 3, 24, 5, dtype=torch.float64)
    P = segment_weights(torch.tensor([24, 24]), 24, 6).double()
    torch.testing.assert_close(P[:, None] @ x, segment_means(x, 6))
