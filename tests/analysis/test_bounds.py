"""Bounds on condition numbers: the valid ones over random heads, the published one and the case it fails on."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_conditioning.analysis.bounds import (
    nonzero_condition,
    published_bound,
    softmax_jacobian_condition,
    valid_bounds,
    weyl_bound,
)
from spectral_conditioning.analysis.condition_number import condition_number
from spectral_conditioning.analysis.jacobian import SoftmaxJacobian


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    tokens=st.integers(2, 9),
    head=st.integers(2, 6),
    sharpness=st.floats(0.05, 4.0),
    growth=st.floats(0.01, 100.0),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_the_gram_bound_holds_wherever_it_applies(random_head, tokens, head, sharpness, growth, bias, seed):
    inputs = random_head(tokens=tokens, width=10, head=head, bias=bias, seed=seed, scale=sharpness)
    jacobian = SoftmaxJacobian(replace(inputs, v_oE=inputs.v_oE * growth))
    kappa = condition_number(jacobian).kappa
    alone = valid_bounds(jacobian)
    assert kappa <= alone.gram * (1 + 1e-9)
    blocks = {role: condition_number(jacobian, (role,)) for role in "qkv"}
    together = valid_bounds(jacobian, blocks=blocks)
    assert kappa <= together.gram * (1 + 1e-9)
    assert together.gram <= alone.gram * (1 + 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(tokens=st.integers(1, 3), keys=st.integers(6, 9), growth=st.floats(0.1, 10.0), seed=st.integers(0, 10_000))
def test_the_blocks_bound_holds_for_cross_attention(random_head, tokens, keys, growth, seed):
    """Fewer queries than keys: all three blocks can have full row rank."""
    inputs = random_head(tokens=tokens, width=10, head=4, context=keys, seed=seed)
    jacobian = SoftmaxJacobian(replace(inputs, v_oE=inputs.v_oE * growth))
    blocks = {role: condition_number(jacobian, (role,)) for role in "qkv"}
    found = valid_bounds(jacobian, blocks=blocks)
    assert found.why_not == {}
    assert condition_number(jacobian).kappa <= found.blocks * (1 + 1e-9)


def test_self_attention_never_meets_the_conditions_of_the_blocks_bound(random_head):
    jacobian = SoftmaxJacobian(random_head(tokens=6, width=10, head=4))
    found = valid_bounds(jacobian, blocks={role: condition_number(jacobian, (role,)) for role in "qkv"})
    assert found.blocks is None
    assert "J_K (rank 20)" in found.why_not["blocks"]


def test_more_tokens_than_features_meet_no_condition(random_head):
    found = valid_bounds(SoftmaxJacobian(random_head(tokens=12, width=5, head=4)))
    assert (found.gram, found.blocks) == (None, None)
    assert "12 tokens" in found.why_not["gram"]


def test_norms_and_attended_tokens(random_head):
    head = random_head(tokens=6, width=10, head=4, bias=True)
    jacobian = SoftmaxJacobian(head)
    found = valid_bounds(jacobian)
    for role in "qkv":
        assert found.norms[role] == pytest.approx(float(torch.linalg.matrix_norm(jacobian.dense((role,)), 2)), rel=1e-6)
    attended = torch.linalg.svdvals(head.probabilities_NM @ head.tokens_ND)
    assert found.sigma_min_attended == pytest.approx(float(attended[-1]), rel=1e-9)


def test_theorem_3_4_as_published_fails(random_head):
    """N = 3, D = 8, d = 4, W_V → c W_V: the right side stays, κ(J) grows with c past it, without limit."""
    head = random_head(tokens=3, width=8, head=4, seed=3)
    kappas, bounds = [], []
    for c in (1.0, 1e2, 1e4, 1e6):
        grown = replace(head, v_oE=head.v_oE * c)
        kappas.append(condition_number(SoftmaxJacobian(grown)).kappa)
        bounds.append(published_bound(grown).value)
    assert bounds == pytest.approx([bounds[0]] * 4, rel=1e-6)
    assert kappas[0] < bounds[0]
    assert kappas[2] > 10 * bounds[0]
    assert kappas[3] == pytest.approx(100 * kappas[2], rel=1e-2)
    grown = SoftmaxJacobian(replace(head, v_oE=head.v_oE * 1e4))
    assert condition_number(grown).kappa <= valid_bounds(grown).gram


def test_published_factors_are_condition_numbers(random_head):
    head = random_head(tokens=5, width=8, head=3, bias=True)
    found = published_bound(head)
    kappa = {}
    for name, matrix in {"x": head.tokens_ND, "q": head.q_dD, "p": head.probabilities_NM}.items():
        sigma = torch.linalg.svdvals(matrix)
        kappa[name] = float(sigma[0] / sigma[-1])
    assert (found.kappa_tokens, found.kappa_w_q, found.kappa_softmax) == pytest.approx(
        (kappa["x"], kappa["q"], kappa["p"])
    )
    first = found.kappa_tokens**3 * found.kappa_lambda * found.kappa_w_v * (found.kappa_w_q + found.kappa_w_k)
    assert found.value == pytest.approx(first + found.kappa_tokens * found.kappa_softmax)


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("masked", [False, True])
def test_condition_of_the_softmax_jacobian_equals_eigenvalues(sharpness: float, masked: bool):
    draws = torch.Generator().manual_seed(3)
    logits = sharpness * torch.randn(6, 7, generator=draws, dtype=torch.float64)
    if masked:
        logits = logits.masked_fill(torch.ones(6, 7).triu(2).bool(), -math.inf)
    p = torch.softmax(logits, dim=1)
    found = softmax_jacobian_condition(p)
    # eigvalsh resolves eigenvalues to 1e-16 of the largest only; where they are smaller the bisection is the better of the two.
    eigenvalues = []
    for row in p:
        kept = row[row > 0]
        values = torch.linalg.eigvalsh(torch.diag(kept) - torch.outer(kept, kept))[1:]
        eigenvalues.append(values)
    values = torch.cat(eigenvalues)
    if float(values.min()) > 1e-12:
        assert found == pytest.approx(float(values.max() / values.min()), rel=1e-3)
    else:
        assert found > 1e11


def test_two_keys_have_one_non_zero_eigenvalue_each():
    """A row (p, 1 − p) has the eigenvalue 2p(1 − p); a one-hot row has none."""
    p = torch.tensor([[0.3, 0.7, 0.0], [1e-20, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert softmax_jacobian_condition(p) == pytest.approx(0.42 / 2e-20, rel=1e-9)
    assert softmax_jacobian_condition(p[2:]) == math.inf


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    rows=st.integers(2, 12),
    columns=st.integers(2, 12),
    ratio=st.floats(1.01, 20.0),
    spread=st.floats(0.0, 6.0),
    seed=st.integers(0, 10_000),
)
def test_weyl_bound_holds_for_the_identity_correction(rows, columns, ratio, spread, seed):
    draws = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=draws, dtype=torch.float64)
    weight = weight * torch.logspace(0, -spread, columns, dtype=torch.float64)
    sigma_max = float(torch.linalg.matrix_norm(weight, 2))
    lam = ratio * sigma_max
    conditioned = weight + lam * torch.eye(rows, columns, dtype=torch.float64)
    assert nonzero_condition(conditioned) <= weyl_bound(sigma_max, lam) * (1 + 1e-12)
    assert ratio < 2 or weyl_bound(sigma_max, lam) <= 3


def test_weyl_says_nothing_below_the_largest_singular_value():
    assert weyl_bound(1.0, 1.0) == math.inf
    assert weyl_bound(1.0, 3.0) == pytest.approx(2.0)
