"""The order of samples: exact, device-free and countable."""

import itertools

import pytest
import torch

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.streams import (
    EvaluationBatches,
    OrderHash,
    SampleKey,
    SampleStream,
    SeededDataset,
    StreamDataModule,
    TrainBatches,
)


class Noise(torch.utils.data.Dataset):
    """Each sample is its index and a draw from the global generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(torch.rand(()))


def take(batches: TrainBatches, count: int) -> list[list[SampleKey]]:
    return list(itertools.islice(batches, count))


def test_an_epoch_visits_each_sample_once_and_epochs_differ():
    stream = SampleStream(12, batch_size=4, seed=3)
    epochs = [[key.index for step in range(3 * e, 3 * e + 3) for key in stream.batch(step)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1]


def test_a_stream_started_in_mid_epoch_goes_on_where_it_stopped():
    whole = take(TrainBatches(SampleStream(10, batch_size=3, seed=0)), 9)
    rest = take(TrainBatches(SampleStream(10, batch_size=3, seed=0), start=4), 5)
    assert whole[4:] == rest


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_global_batch(world_size: int):
    stream = SampleStream(24, batch_size=6, seed=1)
    ranks = [take(TrainBatches(stream, rank=rank, world_size=world_size), 4) for rank in range(world_size)]
    for step in range(4):
        joined = [key for part in ranks for key in part[step]]
        assert sorted(joined) == sorted(stream.batch(step))
        assert len({len(part[step]) for part in ranks}) == 1


def test_a_batch_that_devices_cannot_share_is_refused():
    with pytest.raises(DataError, match=r"batch_size is 6.*multiple of 4"):
        TrainBatches(SampleStream(24, batch_size=6, seed=1), world_size=4)


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(DataError, match=r"batch_size is 8 but the training set has 5"):
        SampleStream(5, batch_size=8, seed=0)


def test_repeated_augmentation_gives_copies_different_draws_on_different_ranks():
    stream = SampleStream(12, batch_size=6, seed=0, repeats=3)
    keys = stream.batch(0)
    assert [key.index for key in keys] == [keys[0].index] * 3 + [keys[3].index] * 3
    assert len({key.draw for key in keys}) == 6
    ranks = [take(TrainBatches(stream, rank=rank, world_size=3), 1)[0] for rank in range(3)]
    assert len({tuple(key.index for key in part) for part in ranks}) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 7, 12])
def test_evaluation_counts_each_sample_once_with_equal_batches(size: int, world_size: int):
    ranks = [list(EvaluationBatches(size, batch_size=2, rank=r, world_size=world_size)) for r in range(world_size)]
    counted = [key.index for part in ranks for batch in part for key in batch if key.counted]
    assert sorted(counted) == list(range(size))
    assert len({tuple(len(batch) for batch in part) for part in ranks}) == 1


def test_augmentation_depends_on_the_visit_alone():
    dataset = SeededDataset(Noise(5), seed=0, stream="augment")
    first = dataset[SampleKey(2, 7)]
    torch.rand(100)
    assert dataset[SampleKey(2, 7)] == first
    assert dataset[SampleKey(2, 8)][0][1] != first[0][1]


def module(workers: int) -> StreamDataModule:
    return StreamDataModule(
        train=Noise(10), val=Noise(4), test=None, batch_size=4, eval_batch_size=2, seed=0, workers=workers
    )


def test_workers_do_not_change_what_a_batch_holds():
    loaders = [itertools.islice(module(workers).train_dataloader(), 5) for workers in (0, 2)]
    for here, there in zip(*loaders, strict=True):
        assert torch.equal(here.index, there.index)
        assert torch.equal(here.samples[1], there.samples[1])


def test_validating_more_often_leaves_the_training_order_alone():
    plain, busy = module(0), module(0)
    batches = iter(busy.train_dataloader())
    for here in itertools.islice(plain.train_dataloader(), 5):
        list(busy.val_dataloader())
        torch.rand(3)
        there = next(batches)
        assert torch.equal(here.index, there.index)
        assert torch.equal(here.samples[1], there.samples[1])


def test_order_hash_sees_the_order():
    def digest(batches: list[list[int]]) -> str:
        order = OrderHash()
        for batch in batches:
            order.update([SampleKey(index, 0) for index in batch])
        return order.digest

    assert digest([[0, 1], [2]]) == digest([[0, 1], [2]])
    assert len({digest([[0, 1], [2]]), digest([[1, 0], [2]]), digest([[2], [0, 1]])}) == 3
