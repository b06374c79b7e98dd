"""Statistics of paired differences d_1 … d_n (conditioned − baseline, one per seed).

Each says nothing (None) below the number of pairs from which it means something: t-test and its interval 3, bootstrap 5,
sign-flip 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

T_TEST_PAIRS = 3
BOOTSTRAP_PAIRS = 5
SIGN_FLIP_PAIRS = 6
# 2²¹ sign patterns: the most that are enumerated, in well under a second.
SIGN_FLIP_MOST = 22
BOOTSTRAP_DRAWS = 10_000
SEEDS_SEARCHED = 10_000


def mean_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation (n − 1); the latter is None for fewer than two values."""
    if not values:
        return None, None
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_t_test(differences: Sequence[float]) -> float | None:
    """Two-sided p of t = mean(d)·√n / std(d) with n − 1 degrees of freedom (Student 1908).

    1.0 when every difference is zero. None below three pairs, and when equal non-zero differences leave no spread to
    judge the mean by.
    """
    if len(differences) < T_TEST_PAIRS:
        return None
    d = np.asarray(differences, dtype=np.float64)
    if not d.any():
        return 1.0
    spread = float(d.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(d).max()):
        return None
    from scipy.special import stdtr

    t = float(d.mean()) * math.sqrt(len(d)) / spread
    return float(2 * stdtr(len(d) - 1, -abs(t)))


def t_interval(differences: Sequence[float], *, level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval of the mean difference: mean ± t_(n−1)·std / √n. It leaves 0 out exactly when p < 1 − level.

    None where `paired_t_test` is None.
    """
    if paired_t_test(differences) is None:
        return None
    from scipy.special import stdtrit

    mean, spread = mean_std(differences)
    assert mean is not None
    assert spread is not None
    half = float(stdtrit(len(differences) - 1, (1 + level) / 2)) * spread / math.sqrt(len(differences))
    return mean - half, mean + half


def sign_flip_test(differences: Sequence[float]) -> float | None:
    """Exact two-sided p: the share of all 2ⁿ sign patterns whose |Σ ±d_i| is at least the observed |Σ d_i|.

    None below six pairs (the smallest p would be above .05) and above `SIGN_FLIP_MOST`.
    """
    if not SIGN_FLIP_PAIRS <= len(differences) <= SIGN_FLIP_MOST:
        return None
    d = np.asarray(differences, dtype=np.float64)
    # |Σ| is the same for a pattern and its mirror image, so the first sign can stay fixed.
    sums = d[:1]
    for difference in d[1:]:
        sums = np.concatenate([sums + difference, sums - difference])
    tolerance = 1e-12 * float(np.abs(d).sum())
    return float(np.mean(np.abs(sums) >= abs(float(d.sum())) - tolerance))


def bootstrap_interval(differences: Sequence[float], *, level: float = 0.95) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean difference (Efron 1979), the same draws at every call.

    With few pairs it is too narrow (of five normal differences' intervals, about 84 % hold the true mean); None below five.
    """
    if len(differences) < BOOTSTRAP_PAIRS:
        return None
    d = np.asarray(differences, dtype=np.float64)
    draws = np.random.default_rng(0).integers(0, len(d), size=(BOOTSTRAP_DRAWS, len(d)))
    low, high = np.quantile(d[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment (1979) over the p-values that exist; None stays None.

    Sorted p_(1) ≤ … ≤ p_(m): adjusted p_(i) = max_{j ≤ i} min(1, (m − j + 1)·p_(j)).
    """
    present = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(present):
        highest = max(highest, min(1.0, (len(present) - rank) * p))
        adjusted[index] = highest
    return adjusted


def seeds_needed(
    *, gain: float, spread: float, alpha: float = 0.05, power: float = 0.8, most: int = SEEDS_SEARCHED
) -> int | None:
    """Smallest number of pairs n at which a two-sided paired t-test sees a true mean difference `gain`.

    Power at significance `alpha`, from the non-central distribution of the test; `spread` is the standard deviation of the
    differences. None when gain is 0, when n would exceed `most`, and without a spread to judge by.
    """
    if gain == 0 or not math.isfinite(gain) or not math.isfinite(spread) or spread <= 0:
        return None
    # Power rises with n: double until it suffices, then halve the gap.
    high = 2
    while _power(high, gain=gain, spread=spread, alpha=alpha) < power:
        if high >= most:
            return None
        high = min(2 * high, most)
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        if _power(middle, gain=gain, spread=spread, alpha=alpha) >= power:
            high = middle
        else:
            low = middle + 1
    return high


def _power(n: int, *, gain: float, spread: float, alpha: float) -> float:
    """Power of the two-sided test, as that of F = t² with non-centrality gain²·n / spread², which stays stable at large n."""
    from scipy.special import fdtri, ncfdtr

    shift = gain * gain * n / (spread * spread)
    if shift > 900:  # the non-central F overflows there; the power is 1 to every digit
        return 1.0
    critical = fdtri(1, n - 1, 1 - alpha)
    return float(1 - ncfdtr(1, n - 1, shift, critical))


def median_with_failures(values: Sequence[float | None], *, sign: int) -> float | None:
    """Median in which a failed run (None) stands below every value; None when the median itself is a failed run."""
    if not values:
        return None
    ordered = sorted(-math.inf if value is None else sign * value for value in values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return sign * median if math.isfinite(median) else None
