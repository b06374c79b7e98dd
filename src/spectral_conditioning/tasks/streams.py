"""Which samples a step sees: pure functions of (seed, step), the same for both arms and for any number of devices.

Training data is one endless stream of batches. Batch t is a function of (seed, t) alone, so an interrupted run goes on in the
middle of an epoch by starting at its batch, and the order does not depend on workers, devices or how often a run validates.
Evaluation visits every sample exactly once on any number of ranks.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from spectral_conditioning.errors import DataError
from spectral_conditioning.randomness import generator, seed_all
from spectral_conditioning.tasks.ramp import BatchPlan


class SampleKey(NamedTuple):
    """One visit of a sample.

    index: position in the data set. draw: position in the stream of all visits (seeds the sample's augmentation).
    counted: False for the filler that evens out the ranks of an evaluation.
    """

    index: int  # type: ignore[assignment]
    draw: int
    counted: bool = True


class SampleStream:
    """The endless order of a training set: epoch e is a permutation drawn from (seed, "order", e), or without `shuffle` the
    stored order.

    With `repeats` = r each image stands r times in a row and an epoch keeps the first `size` entries, so that consecutive
    entries, which go to different devices, hold the same image under different augmentations (repeated augmentation,
    Hoffer et al. 2020, as DeiT uses it). The last `size % batch_size` entries of an epoch are dropped. Batches that grow by
    a `plan` drop nothing: one may begin in an epoch and end in the next.
    """

    def __init__(
        self,
        size: int,
        *,
        batch_size: int,
        seed: int,
        repeats: int = 1,
        shuffle: bool = True,
        plan: BatchPlan | None = None,
    ) -> None:
        if batch_size > size:
            raise DataError(
                f"data.batch_size is {batch_size} but the training set has {size} samples; at most {size} is possible"
            )
        self.size, self.batch_size, self.seed, self.repeats = size, batch_size, seed, repeats
        self.shuffle, self.plan = shuffle, plan
        self.batches_per_epoch = size // batch_size
        self._epoch = -1
        self._order: list[int] = []

    @property
    def share(self) -> int:
        """What the number of devices must divide: every batch is a multiple of it."""
        return self.batch_size if self.plan is None else math.gcd(*self.plan.sizes())

    def samples_before(self, step: int) -> int:
        """Return how many samples the batches before `step` take."""
        return step * self.batch_size if self.plan is None else self.plan.samples_before(step)

    def epoch_order(self, epoch: int) -> Sequence[int]:
        """Return the indices of epoch `epoch` in order of visit."""
        if not self.shuffle:
            return range(self.size)
        if epoch != self._epoch:
            permutation = torch.randperm(self.size, generator=generator(self.seed, "order", epoch))
            if self.repeats > 1:
                permutation = permutation.repeat_interleave(self.repeats)[: self.size]
            self._epoch, self._order = epoch, permutation.tolist()
        return self._order

    def batch(self, step: int) -> list[SampleKey]:
        """Return the global batch number `step`, over all ranks."""
        if self.plan is not None:
            visits = (divmod(draw, self.size) for draw in range(*self.plan.bounds(step)))
            return [SampleKey(self.epoch_order(epoch)[i], epoch * self.size + i) for epoch, i in visits]
        epoch, position = divmod(step, self.batches_per_epoch)
        start = position * self.batch_size
        order = self.epoch_order(epoch)
        return [SampleKey(order[i], epoch * self.size + i) for i in range(start, start + self.batch_size)]


class TrainBatches(Sampler[list[SampleKey]]):
    """Batch sampler of one rank: every `world_size`-th sample of each global batch, from batch `start` on, without end."""

    def __init__(self, stream: SampleStream, *, start: int = 0, rank: int = 0, world_size: int = 1) -> None:
        if stream.share % world_size:
            name = "data.batch_size" if stream.plan is None else "data.ramp_unit"
            raise DataError(
                f"{name} is {stream.share}, which {world_size} devices cannot share equally; "
                f"choose a multiple of {world_size}"
            )
        self.stream, self.start, self.rank, self.world_size = stream, start, rank, world_size

    def __iter__(self) -> Iterator[list[SampleKey]]:
        step = self.start
        while True:
            yield self.stream.batch(step)[self.rank :: self.world_size]
            step += 1


class EvaluationBatches(Sampler[list[SampleKey]]):
    """Batch sampler of one rank that, with the other ranks, visits each of `size` samples once.

    Every rank gets the same number of batches of the same length (collective calls in a forward pass would otherwise hang);
    the fillers that this takes are marked `counted=False` and must not enter a metric.
    """

    def __init__(self, size: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        per_rank = -(-size // world_size)
        keys = [SampleKey(i % size, i, i < size) for i in range(rank, per_rank * world_size, world_size)]
        self.batches = [keys[i : i + batch_size] for i in range(0, per_rank, batch_size)]

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class SeededDataset(Dataset[tuple[Any, int, bool]]):
    """Serve `dataset[key.index]` with all generators seeded from (seed, stream, key.draw) first.

    Returns (sample, index, counted). `seed` None means that the data set draws nothing (a data set says so with an attribute
    `deterministic = True`), which saves the seeding.
    """

    def __init__(self, dataset: Dataset[Any], *, seed: int | None, stream: str) -> None:
        self.dataset, self.stream = dataset, stream
        self.seed = None if getattr(dataset, "deterministic", False) else seed

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: SampleKey) -> tuple[Any, int, bool]:
        if self.seed is not None:
            seed_all(self.seed, self.stream, key.draw)
        return self.dataset[key.index], key.index, key.counted


class Batch(NamedTuple):
    """What a step receives: the collated samples, their indices (B,) and whether each counts in a metric (B,)."""

    samples: Any
    index: torch.Tensor  # type: ignore[assignment]
    counted: torch.Tensor


class CollateBatch:
    """Collate (sample, index, counted) triples into a `Batch`; the task's own collate function serves the samples."""

    def __init__(self, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.collate = collate

    def __call__(self, items: Sequence[tuple[Any, int, bool]]) -> Batch:
        samples, indices, counted = zip(*items, strict=True)
        return Batch(self.collate(list(samples)), torch.tensor(indices), torch.tensor(counted))


class StreamDataModule(LightningDataModule):
    """Serve a task's splits through the samplers above; its state is the number of batches already trained on."""

    def __init__(
        self,
        *,
        train: Dataset[Any],
        val: Dataset[Any],
        test: Dataset[Any] | None,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        workers: int = 0,
        repeats: int = 1,
        accumulate: int = 1,
        shuffle: bool = True,
        plan: BatchPlan | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        super().__init__()
        self.train_set, self.val_set, self.test_set = train, val, test
        self.eval_batch_size, self.seed, self.workers = eval_batch_size, seed, workers
        # An optimizer step consumes `accumulate` micro-batches, so `batch_size` counts samples per optimizer step.
        if batch_size % accumulate:
            raise DataError(
                f"data.batch_size is {batch_size}, not a multiple of trainer.accumulate ({accumulate}); "
                f"choose one that is"
            )
        self.stream = SampleStream(
            len(train),  # type: ignore[arg-type]
            batch_size=batch_size // accumulate,
            seed=seed,
            repeats=repeats,
            shuffle=shuffle,
            plan=plan,
        )
        self.accumulate = accumulate
        self.collate = CollateBatch(collate)
        self.batches_done = 0

    def _ranks(self) -> dict[str, int]:
        if self.trainer is None:
            return {"rank": 0, "world_size": 1}
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def _loader(self, dataset: Dataset[Any], batches: Sampler[list[SampleKey]], stream: str) -> DataLoader[Any]:
        return DataLoader(
            SeededDataset(dataset, seed=self.seed, stream=stream),
            batch_sampler=batches,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            collate_fn=self.collate,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=ignore_stop_signals if self.workers > 0 else None,
        )

    def samples_before(self, step: int) -> int:
        """Return how many samples all optimizer steps before `step` consume."""
        return self.stream.samples_before(step * self.accumulate)

    def first_samples(self, count: int) -> Any:
        """Return the first `count` samples of training, augmented as training will see them and collated by the task."""
        dataset = SeededDataset(self.train_set, seed=self.seed, stream="augment")
        keys = self.stream.batch(0)[:count]
        return self.collate([dataset[key] for key in keys]).samples

    def train_dataloader(self) -> DataLoader[Any]:
        batches = TrainBatches(self.stream, start=self.batches_done, **self._ranks())
        return self._loader(self.train_set, batches, "augment")

    def _evaluation_loader(self, dataset: Dataset[Any], stream: str) -> DataLoader[Any]:
        size = len(dataset)  # type: ignore[arg-type]
        batches = EvaluationBatches(size, batch_size=self.eval_batch_size, **self._ranks())
        return self._loader(dataset, batches, stream)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._evaluation_loader(self.val_set, "validate")

    def test_dataloader(self) -> DataLoader[Any]:
        if self.test_set is None:
            raise DataError("this task has no test split; its reported number is the validation one")
        return self._evaluation_loader(self.test_set, "test")

    def state_dict(self) -> dict[str, int]:
        assert self.trainer is not None
        return {"batches_done": self.trainer.fit_loop.epoch_loop.batch_progress.total.completed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.batches_done = state_dict["batches_done"]


def ignore_stop_signals(worker: int) -> None:
    """Let a loader's worker outlive a signal that a scheduler sends to every process of a job; it ends with its trainer.

    TERM is obeyed when the trainer sends it: Python ends leftover workers that way when it exits, and waits for them without end.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_trainer, args=(os.getppid(),), daemon=True).start()


def _end_with_trainer(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)


class OrderHash:
    """A running hash over the sample indices of every global batch, equal for two runs that saw the same order."""

    def __init__(self, digest: str = "") -> None:
        self.digest = digest

    def update(self, keys: Sequence[SampleKey]) -> None:
        indices = torch.tensor([key.index for key in keys]).numpy().tobytes()
        self.digest = hashlib.blake2b(self.digest.encode() + indices, digest_size=16).hexdigest()
