"""Statistics against textbook data, enumeration and published tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spectral_conditioning.results.statistics import (
    bootstrap_interval,
    holm,
    mean_std,
    median_with_failures,
    paired_t_test,
    seeds_needed,
    sign_flip_test,
    t_interval,
)

# Additional hours of sleep, Student (1908): t = 4.0621 on 9 degrees of freedom.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
# Height differences of Darwin's maize pairs, Fisher (1935): 863 of 32,768 sign patterns reach the sum in each tail.
MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_t_test_of_student() -> None:
    assert paired_t_test(SLEEP) == pytest.approx(0.002833, abs=5e-7)


def test_t_test_by_hand() -> None:
    # d = 1, 2, 3: t = 2·√3 / 1 = 3.4641; with two degrees of freedom p = 1 − t/√(2 + t²).
    t = 2 * 3**0.5
    assert paired_t_test([1, 2, 3]) == pytest.approx(1 - t / (2 + t * t) ** 0.5, abs=1e-12)


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, 2.0]])
def test_t_test_needs_three_pairs(differences: list[float]) -> None:
    assert paired_t_test(differences) is None


def test_t_test_without_spread() -> None:
    assert paired_t_test([0.0, 0.0, 0.0]) == 1.0
    # 0.3 − 0.1 and 0.4 − 0.2 differ in the last bit: rounding is no spread.
    assert paired_t_test([0.3 - 0.1, 0.4 - 0.2, 0.2]) is None


def test_t_interval_of_student() -> None:
    # R: t.test(sleep$extra[11:20] - sleep$extra[1:10])$conf.int
    assert t_interval(SLEEP) == pytest.approx((0.7001142, 2.4598858), abs=1e-7)


@pytest.mark.parametrize("differences", [[], [1.0, 2.0], [1.0, 1.0, 1.0]])
def test_t_interval_exists_where_the_test_does(differences: list[float]) -> None:
    assert t_interval(differences) is None
    assert t_interval([0.0, 0.0, 0.0]) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_t_interval_leaves_zero_out_exactly_when_the_test_rejects(seed: int) -> None:
    d = np.random.default_rng(seed).normal(0.8, 1.0, size=5).tolist()
    p, interval = paired_t_test(d), t_interval(d)
    assert p is not None
    assert interval is not None
    assert (interval[0] > 0 or interval[1] < 0) == (p < 0.05)
    edge = t_interval(d, level=1 - p)
    assert edge is not None
    assert min(abs(edge[0]), abs(edge[1])) < 1e-9


def test_sign_flip_of_fisher() -> None:
    assert sign_flip_test(MAIZE) == pytest.approx(2 * 863 / 32768, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_sign_flip_by_enumeration(seed: int) -> None:
    d = np.random.default_rng(seed).integers(-5, 6, size=7) / 100  # ties, as accuracies have
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=7)]
    expected = np.mean([value >= abs(d.sum()) - 1e-9 for value in sums])
    assert sign_flip_test(d.tolist()) == pytest.approx(expected, abs=1e-12)


def test_sign_flip_bounds() -> None:
    assert sign_flip_test([1.0] * 5) is None
    assert sign_flip_test([1.0] * 6) == 2 / 64
    assert sign_flip_test([1.0] * 23) is None


def test_holm_known_example() -> None:
    # R: p.adjust(c(.01, .04, .03, .005), "holm")
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_leaves_missing_out() -> None:
    assert holm([None, 0.02, None, 0.5]) == [None, 0.04, None, 0.5]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("effect", "expected"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_equals_published_tables(effect: float, expected: int) -> None:
    """G*Power, two-sided paired t-test, α = .05, power .8."""
    assert seeds_needed(gain=effect, spread=1.0) == expected
    assert seeds_needed(gain=-effect * 7, spread=7.0) == expected


def test_seeds_needed_at_the_ends() -> None:
    assert seeds_needed(gain=1.0, spread=0.0) is None
    assert seeds_needed(gain=0.0, spread=1.0) is None
    assert seeds_needed(gain=1e-3, spread=1.0) is None
    assert seeds_needed(gain=0.03, spread=1.0) == pytest.approx(8720, abs=10)  # (1.960 + 0.8416)² / .03² ≈ 8,721


def test_bootstrap_equals_the_full_enumeration() -> None:
    d = [0.2, 1.1, 0.4, -0.3, 0.9]
    means = [np.mean(draw) for draw in itertools.product(d, repeat=5)]
    assert bootstrap_interval(d) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.03)
    assert bootstrap_interval(d) == bootstrap_interval(d)
    assert bootstrap_interval(d[:4]) is None


def test_mean_and_sample_deviation() -> None:
    assert mean_std([2.0, 4.0, 9.0]) == pytest.approx((5.0, 13.0**0.5))
    assert mean_std([2.0]) == (2.0, None)
    assert mean_std([]) == (None, None)


def test_median_counts_failures_as_worst() -> None:
    assert median_with_failures([0.55, 0.56, 0.0], sign=1) == 0.55
    assert median_with_failures([0.9, None, 0.8], sign=1) == 0.8
    assert median_with_failures([0.9, None, None], sign=1) is None
    assert median_with_failures([1.5, None, 2.5], sign=-1) == 2.5
    assert median_with_failures([1.0, 3.0], sign=-1) == 2.0
