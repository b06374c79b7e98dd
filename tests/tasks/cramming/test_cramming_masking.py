"""Laws of masking: exact counts, BERT's 80/10/10, and masks that depend on (seed, visit) and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_conditioning.tasks.cramming.masking import mask_counts, mask_sequence
from spectral_conditioning.tasks.cramming.pretraining import Masked, MaskedSequences, masked_split
from spectral_conditioning.tasks.cramming.token_store import TokenStore
from spectral_conditioning.tasks.streams import SampleKey, SeededDataset
from spectral_conditioning.training.compose import compose_run

MASK = 6


@pytest.mark.parametrize(("rate", "counts"), [(0.25, (26, 3, 3)), (0.15, (15, 2, 2))])
def test_counts_of_the_recipes(rate: float, counts: tuple[int, int, int]) -> None:
    found = mask_counts(rate, 128)
    assert (found.masked, found.replaced, found.kept) == counts
    assert found.predicted == round(rate * 128)


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(0.01, 1), length=st.integers(2, 200), seed=st.integers(0, 2**32))
def test_exactly_so_many_positions_change_as_the_counts_say(rate: float, length: int, seed: int) -> None:
    counts = mask_counts(rate, length)
    assert counts.predicted == round(rate * length)
    torch.manual_seed(seed)
    ids_N = torch.arange(100, 100 + length)  # neither the mask nor a random token below 100
    masked_N, positions_M, labels_M = mask_sequence(ids_N, counts, mask_id=MASK, vocabulary=MASK)
    assert len(set(positions_M.tolist())) == counts.predicted
    assert positions_M.tolist() == sorted(positions_M.tolist())
    assert torch.equal(labels_M, ids_N[positions_M])
    assert int((masked_N == MASK).sum()) == counts.masked
    assert int((masked_N < MASK).sum()) == counts.replaced
    assert int((masked_N[positions_M] == labels_M).sum()) == counts.kept
    outside = torch.ones(length, dtype=torch.bool)
    outside[positions_M] = False
    assert torch.equal(masked_N[outside], ids_N[outside])
    assert torch.equal(ids_N, torch.arange(100, 100 + length))  # the stored sequence stays


def test_every_position_is_as_likely_as_any_other() -> None:
    torch.manual_seed(0)
    counts, length, draws = mask_counts(0.25, 32), 32, 4000
    hits = torch.zeros(length)
    for _ in range(draws):
        hits[mask_sequence(torch.full((length,), 9), counts, mask_id=MASK, vocabulary=9)[1]] += 1
    # Within five standard deviations of a binomial count.
    assert (hits - draws / 4).abs().max() < 5 * (draws * 0.25 * 0.75) ** 0.5


def samples(store: TokenStore, seed: int, keys: list[SampleKey]) -> list[Masked]:
    data = compose_run(["experiment=cramming/small_pretrain", f"data.length={store.length}"]).data
    dataset = SeededDataset(masked_split(store, data, "train"), seed=seed, stream="augment")
    return [dataset[key][0] for key in keys]


def test_masks_are_a_function_of_seed_and_visit(store: TokenStore) -> None:
    keys = [SampleKey(3, 10), SampleKey(5, 11), SampleKey(3, 12)]
    one, backwards = samples(store, 0, keys), samples(store, 0, keys[::-1])[::-1]
    for a, b in zip(one, backwards, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(one[0].positions, one[2].positions)  # another visit of the same sequence
    assert not torch.equal(one[0].positions, samples(store, 1, keys)[0].positions)


def test_special_tokens_are_predicted_too(store: TokenStore) -> None:
    dataset = MaskedSequences(store.split("train"), rate=1.0, mask_id=MASK, vocabulary=store.vocabulary)
    labels = torch.cat([dataset[i].labels for i in range(20)])
    assert (labels == 5).any()  # <sep>
