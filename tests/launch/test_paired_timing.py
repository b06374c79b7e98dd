"""Intervals of a median are binomial facts; ratios find a difference that is there."""

import math
import time

import pytest
import torch

from spectral_conditioning.launch.paired_timing import clock, median_interval, paired_ratios


@pytest.mark.parametrize("n", [6, 9, 15, 20, 50])
def test_the_interval_covers_the_median_with_95_percent_and_no_wider_than_needed(n: int):
    low, high = median_interval([float(i) for i in range(n)])
    rank = int(low)
    assert high == n - 1 - rank

    def tail(k: int) -> float:
        return sum(math.comb(n, i) for i in range(k + 1)) / 2**n

    assert 2 * tail(rank) <= 0.05 < 2 * tail(rank + 1)


def test_few_values_give_their_extremes():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([4.0]) == (4.0, 4.0)


def test_ratios_are_formed_round_by_round(monkeypatch: pytest.MonkeyPatch):
    # A clock that only the variants move, at a pace that doubles in the second half, as on a machine that slows down.
    now, calls = [0.0], [0]

    def spend(units: float) -> None:
        calls[0] += 1
        now[0] += units * (1 if calls[0] <= 10 else 2)

    monkeypatch.setattr("time.process_time", lambda: now[0])
    variants = {"one": lambda: spend(1), "three": lambda: spend(3)}
    found = paired_ratios(variants, reference="one", rounds=8, device=torch.device("cpu"), warm_up=1)
    assert (found["one"].ratio, found["three"].ratio) == (1.0, 3.0)
    assert (found["three"].low, found["three"].high) == (3.0, 3.0)
    assert calls[0] == 2 * 8 + 2


def test_processor_time_leaves_out_what_others_do():
    now, gpu = clock(torch.device("cpu")), clock(torch.device("cuda"))
    began, began_there = now(), gpu()
    time.sleep(0.2)
    assert gpu() - began_there >= 0.2
    assert now() - began < 0.1
