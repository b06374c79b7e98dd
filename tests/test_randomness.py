"""Draws are functions of (seed, stream, index) and of nothing else."""

import random

import numpy as np
import torch

from spectral_conditioning.randomness import derive, generator, seed_all


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_same_key_gives_the_same_draws_whatever_came_before():
    seed_all(1, "step", 5)
    first = draws()
    torch.rand(17), random.random()
    seed_all(1, "step", 5)
    assert draws() == first


def test_seed_stream_and_index_each_change_every_generator():
    seen = []
    for key in ((1, "step", 5), (2, "step", 5), (1, "init", 5), (1, "step", 6)):
        seed_all(*key)
        seen.append(draws())
    for values in zip(*seen, strict=True):
        assert len(set(values)) == len(seen)


def test_a_generator_of_its_own_leaves_the_global_ones_alone():
    seed_all(0, "init")
    expected = draws()
    seed_all(0, "init")
    torch.rand(3, generator=generator(0, "order", 1))
    assert draws() == expected


def test_derive_fits_every_seeding_function_and_separates_joined_names():
    values = {derive(seed, stream, index) for seed in (0, 1, 11) for stream in ("a", "a1") for index in (0, 1, 10)}
    assert len(values) == 18
    assert all(0 <= value < 2**63 for value in values)
