"""Ratios of times that hold on a noisy machine: the variants take turns in one process, and each round gives one ratio."""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median over rounds of time(variant)/time(reference), a distribution-free interval of it, and the variant's median seconds.

    seconds: of the clock that fits the device, see `clock`. low, high: order statistics that enclose the median of the ratio with
    at least 95 % probability (binomial, no assumption about the noise); the extremes when fewer than six rounds were run, where
    no interval of order statistics reaches 95 %.
    """

    ratio: float
    low: float
    high: float
    seconds: float
    rounds: int


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return order statistics that enclose the median with probability ≥ 0.95, or the extremes of fewer than six values."""
    ordered, n = sorted(values), len(values)
    outside, term, rank = 0.0, 0.5**n, 0
    # P(fewer than k of n fair coins) grows with k; keep the largest k whose two tails stay below 5 %.
    for k in range(n // 2):
        outside += term
        if 2 * outside > 0.05:
            break
        rank = k
        term = term * (n - k) / (k + 1)
    return ordered[rank], ordered[n - 1 - rank]


def synchronize(device: torch.device) -> None:
    """Wait for everything queued on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clock(device: torch.device) -> Callable[[], float]:
    """Return wall-clock seconds for a GPU, and for a CPU the processor seconds of this process summed over its threads.

    What else runs on the machine changes a wall-clock time by far more than conditioning does, and processor time hardly.
    """
    return time.perf_counter if device.type == "cuda" else time.process_time


def paired_ratios(
    variants: Mapping[str, Callable[[], object]],
    *,
    reference: str,
    rounds: int,
    device: torch.device,
    warm_up: int = 1,
    repeat: int = 1,
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Ratio]:
    """Time every variant once per round, `repeat` calls each, in an order shuffled anew each round; return ratios to `reference`.

    The shuffle is drawn from a generator of its own. `progress` is called after each round.
    """
    for _ in range(warm_up):
        for call in variants.values():
            call()
    now = clock(device)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    order, shuffler = list(variants), random.Random(0)
    for _ in range(rounds):
        shuffler.shuffle(order)
        for name in order:
            synchronize(device)
            started = now()
            for _ in range(repeat):
                variants[name]()
            synchronize(device)
            seconds[name].append((now() - started) / repeat)
        progress()
    results = {}
    for name, times in seconds.items():
        ratios = [mine / base for mine, base in zip(times, seconds[reference], strict=True)]
        low, high = median_interval(ratios)
        results[name] = Ratio(statistics.median(ratios), low, high, statistics.median(times), rounds)
    return results
