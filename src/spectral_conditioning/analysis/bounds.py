"""Upper bounds on κ(J) and κ(W + λI): the published one with each of its factors, and those that hold.

Theorem 3.4 as printed, for J of full rank:

    κ(J) ≤ κ(X)³ κ(Λ) κ(W_V) (κ(W_Q) + κ(W_K)) + κ(X) κ(softmax(S))

It does not hold. Take N = 3 tokens, D = 8, d = 4 and W_V → c W_V. Every κ on the right is free of scale, so the right
side stays: 192 for the weights of the test, where κ(J) = 22, 2.1e3 and 2.1e5 for c = 1, 1e2 and 1e4. [J_Q J_K] has rank
below N d, so σ_min(J) is bounded by J_V, which does not see W_V, while σ_max(J) grows with c. What does hold:

    κ(J)² ≤ (‖J_Q‖² + ‖J_K‖² + ‖J_V‖²) / Σ_b σ_min(J_b)²    over the blocks b of full row rank
    κ(J) ≤ max_b κ(J_b)                                     when all three blocks have full row rank
    κ(W + λI) ≤ (λ + σ_max(W)) / (λ − σ_max(W))             for λ > σ_max(W) (Weyl)

J_V has full row rank where N ≤ rank X; its smallest singular value is σ_min(P X). J Jᵀ = Σ_b J_b J_bᵀ gives the first two. J_K of
self-attention never has full row rank (a key shift common to all tokens changes no attention, so its rank is at most
(N − 1) d): there only the first applies, with J_V, and J_Q where it is known.
"""

# N query tokens, M key tokens, d head width. σ and κ "over non-zero singular values" leave out those below 1e-12 σ_max.

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from spectral_conditioning.analysis.attention_inputs import ROLES, SoftmaxHead
from spectral_conditioning.analysis.condition_number import JacobianCondition, spectral_norm
from spectral_conditioning.analysis.jacobian import SoftmaxJacobian

_BISECTIONS = 100


@dataclass(frozen=True)
class PublishedBound:
    """Right side of Theorem 3.4 and its factors, each a condition number over non-zero singular values."""

    kappa_tokens: float
    kappa_lambda: float
    kappa_w_q: float
    kappa_w_k: float
    kappa_w_v: float
    kappa_softmax: float

    @property
    def value(self) -> float:
        """κ(X)³ κ(Λ) κ(W_V)(κ(W_Q) + κ(W_K)) + κ(X) κ(softmax(S))."""
        weights = self.kappa_w_v * (self.kappa_w_q + self.kappa_w_k)
        return self.kappa_tokens**3 * self.kappa_lambda * weights + self.kappa_tokens * self.kappa_softmax

    def to_dict(self) -> dict[str, float]:
        """The factors and the value."""
        return {**asdict(self), "value": self.value}


@dataclass(frozen=True)
class ValidBounds:
    """Bounds on κ(J) that hold. None where the conditions of one are not met; `why_not` says which.

    norms: ‖J_Q‖, ‖J_K‖, ‖J_V‖. sigma_min_attended: σ_min(P X), which is σ_min(J_V).
    """

    norms: dict[str, float]
    sigma_min_attended: float
    gram: float | None
    blocks: float | None
    why_not: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def published_bound(head: SoftmaxHead) -> PublishedBound:
    """Return the right side of Theorem 3.4 for one head, weights as D×d matrices of that head and S with its scale and masks."""
    head = head.double()
    p_NM = head.probabilities_NM
    return PublishedBound(
        kappa_tokens=nonzero_condition(head.tokens_ND, tolerance=head.rank_tolerance),
        kappa_lambda=softmax_jacobian_condition(p_NM),
        kappa_w_q=nonzero_condition(head.q_dD),
        kappa_w_k=nonzero_condition(head.k_dE),
        kappa_w_v=nonzero_condition(head.v_oE),
        kappa_softmax=nonzero_condition(p_NM),
    )


def valid_bounds(jacobian: SoftmaxJacobian, *, blocks: Mapping[str, JacobianCondition] | None = None) -> ValidBounds:
    """Return the bounds on κ(J) that hold, matrix-free.

    blocks: κ of J_Q, J_K and J_V alone from `condition_number(jacobian, (role,))`, where they were computed; with them
    the first bound counts every block of full row rank, and the second is known.
    """
    blocks = blocks or {}
    attended = torch.linalg.svdvals(jacobian.y_Ns)
    norms = {"q": spectral_norm(jacobian, ("q",)), "k": spectral_norm(jacobian, ("k",)), "v": float(attended[0])}
    tokens, rank = len(jacobian.y_Ns), jacobian.k_space.rank
    why_not: dict[str, str] = {}
    floors = {}
    if tokens <= rank:
        floors["v"] = float(attended[-1])
    else:
        why_not["gram"] = f"J_V has rank {rank} per output and {tokens} tokens: not of full row rank"
    for role, found in blocks.items():
        if role != "v" and found.rank == jacobian.rows and found.exact:
            floors[role] = found.sigma_min
    floor = sum(value**2 for value in floors.values())
    gram = math.sqrt(sum(norm**2 for norm in norms.values()) / floor) if floor > 0 else None
    if gram is not None:
        why_not.pop("gram", None)
    elif "gram" not in why_not:
        why_not["gram"] = "σ_min(P X) is zero to rounding"
    deficient = [role for role in ROLES if jacobian.generic_rank((role,)) < jacobian.rows]
    largest = None
    if deficient:
        names = ", ".join(f"J_{role.upper()} (rank {jacobian.generic_rank((role,))})" for role in deficient)
        why_not["blocks"] = f"not of full row rank {jacobian.rows}: {names}"
    elif any(role not in blocks for role in ROLES):
        why_not["blocks"] = "κ of the single blocks was not computed"
    else:
        largest = max(blocks[role].kappa for role in ROLES)
    return ValidBounds(norms, float(attended[min(tokens, rank) - 1]), gram, largest, why_not)


def weyl_bound(sigma_max: float, lam: float) -> float:
    """Return (λ + σ_max)/(λ − σ_max) ≥ κ(W + λI_k), at most 3 once λ ≥ 2σ_max; infinite for λ ≤ σ_max(W)."""
    return (lam + sigma_max) / (lam - sigma_max) if lam > sigma_max else math.inf


def nonzero_condition(matrix: Tensor, *, tolerance: float = 1e-12) -> float:
    """Return σ_max over the smallest singular value above `tolerance` σ_max."""
    sigma = torch.linalg.svdvals(matrix.double())
    return float(sigma[0] / sigma[sigma > tolerance * sigma[0]][-1])


def softmax_jacobian_condition(p_NM: Tensor) -> float:
    """Return κ(Λ(P)) over non-zero singular values, Λ being block diagonal with Diag(p_i) − p_i p_iᵀ for each row of
    attention.

    The non-zero eigenvalues μ of a block solve Σ_j p_j / (p_j − μ) = 0 and interlace with the p_j, so the largest lies
    between the two largest p_j and the smallest between the two smallest: bisection, no N×N decomposition. Rows that
    attend to one key only have none. Infinite when no row has any.
    """
    positive = p_NM.double().clone()
    positive[positive <= 0] = math.inf
    ascending = positive.sort(dim=1).values[:, :2]
    descending = p_NM.double().sort(dim=1, descending=True).values[:, :2]
    rows = torch.isfinite(ascending).all(dim=1)
    if p_NM.shape[1] < 2 or not bool(rows.any()):
        return math.inf
    p_NM = p_NM.double()[rows]
    largest = _interlaced(p_NM, descending[rows, 1], descending[rows, 0]).max()
    smallest = _interlaced(p_NM, ascending[rows, 0], ascending[rows, 1]).min()
    return float(largest / smallest)


def _interlaced(p_NM: Tensor, low_N: Tensor, high_N: Tensor) -> Tensor:
    """Return the root of Σ_j p_j / (p_j − μ), which rises from −∞ to ∞, in each interval (low, high)."""
    low_N, high_N = low_N.log(), high_N.log()
    for _ in range(_BISECTIONS):
        middle_N = (low_N + high_N) / 2
        mu_N1 = middle_N.exp()[:, None]
        terms_NM = torch.where(p_NM > 0, p_NM / (p_NM - mu_N1), 0.0)
        below_N = terms_NM.sum(dim=1) < 0
        low_N, high_N = torch.where(below_N, middle_N, low_N), torch.where(below_N, high_N, middle_N)
    return ((low_N + high_N) / 2).exp()
