"""What happens around each step: seeding, recording, refreshing corrections, averaging weights, stopping on divergence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spectral_conditioning.conditioning import Refresher, attach_decay, refresh
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.base import TaskModule
from spectral_conditioning.tasks.streams import OrderHash, StreamDataModule

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes one line of metrics: {"step": …, "split": …, name: value}."""

    def write(self, values: Mapping[str, Any]) -> None: ...


def consumed_batches(trainer: Trainer) -> int:
    """Return how many micro-batches every rank has trained on."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.completed)


def optimizer_stepped(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the batch that has just ended completed an optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def number_of_ranks() -> int:
    """Return the number of processes of this run."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def this_rank() -> int:
    """Return the position of this process among the run's."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def every_rank(value: Any) -> list[Any]:
    """Gather a small value from every rank, on every rank."""
    if number_of_ranks() == 1:
        return [value]
    values: list[Any] = [None] * number_of_ranks()
    torch.distributed.all_gather_object(values, value)
    return values


class SeedSteps(Callback):
    """Seed every global generator from (seed, rank, batch) before each training step, and before each evaluation.

    Dropout, drop path and mixup then draw the same numbers in both arms and after a resume. Ranks draw different ones.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        seed_all(self.seed, f"step/{trainer.global_rank}", consumed_batches(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seed_all(self.seed, "validate")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seed_all(self.seed, "test")


class RecordOrder(Callback):
    """Check that each batch holds the samples the stream foresees, and hash the order over all ranks."""

    def __init__(self, data: StreamDataModule) -> None:
        self.data = data
        self.hash = OrderHash()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        keys = self.data.stream.batch(consumed_batches(trainer))
        expected = [key.index for key in keys[trainer.global_rank :: trainer.world_size]]
        if batch.index.tolist() != expected:
            raise RuntimeError(
                f"batch {consumed_batches(trainer)} holds samples {batch.index.tolist()[:5]}…, "
                f"the stream of this run says {expected[:5]}…: the arms would not see the same order"
            )
        self.hash.update(keys)

    def state_dict(self) -> dict[str, Any]:
        return {"digest": self.hash.digest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.hash = OrderHash(state_dict["digest"])


class RefreshCorrections(Callback):
    """Compute the corrections anew every n optimizer steps, and let weight decay act where the settings say."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._refresher: Refresher | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        self._refresher = Refresher(pl_module.model) if self.every else None
        for optimizer in trainer.optimizers:
            attach_decay(pl_module.model, optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._refresher is not None and optimizer_stepped(trainer, batch_idx):
            self._refresher.step(trainer.global_step)


class AverageWeights(Callback):
    """Exponential moving average of the weights by torch's AveragedModel, evaluated in place of the raw ones if reported."""

    def __init__(self, decay: float, *, report: bool, refreshes: bool) -> None:
        self.decay, self.report, self.refreshes = decay, report, refreshes
        self.average: AveragedModel | None = None
        self._restored: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        self.average = AveragedModel(pl_module.model, multi_avg_fn=get_ema_multi_avg_fn(self.decay))  # type: ignore[no-untyped-call]
        self.average.requires_grad_(False)
        if self._restored is not None:
            self.average.module.load_state_dict(self._restored["model"])
            self.average.n_averaged.fill_(self._restored["n_averaged"])
        self.average.to(pl_module.device)
        if self.report:
            pl_module.__dict__["evaluated_model"] = self.average.module.eval()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self.average is not None
        assert isinstance(pl_module, TaskModule)
        if optimizer_stepped(trainer, batch_idx):
            self.average.update_parameters(pl_module.model)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.average is not None and self.refreshes:
            refresh(self.average.module)

    def state_dict(self) -> dict[str, Any]:
        if self.average is None:
            return {}
        return {"model": self.average.module.state_dict(), "n_averaged": int(self.average.n_averaged)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict or None


class Diverged(Exception):
    """The loss became NaN or infinite: the run ends and is recorded as diverged."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the loss is not finite at step {step}")
        self.step = step


class Record(Callback):
    """Write training lines every `log_every` optimizer steps and a line for every validation; stop on a non-finite loss.

    Training values are means over the micro-batches since the last line. Only quantities that a repeat of the run gives again
    are written; speed goes to the log and the progress bar.
    """

    def __init__(
        self,
        sinks: list[Sink],
        *,
        log_every: int,
        epoch: Callable[[int], float],
        on_validation: Callable[[Trainer, int, dict[str, float]], None],
    ) -> None:
        self.sinks, self.log_every, self.epoch = sinks, log_every, epoch
        self._on_validation = on_validation
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self.skipped_steps = 0
        self._scale = 0.0
        self.latest: dict[str, float] = {}
        self.validated: dict[str, float] = {}

    def write(self, trainer: Trainer, split: str, values: Mapping[str, float]) -> None:
        """Write one line at the current step to every sink, on rank 0."""
        self.write_at(trainer, trainer.global_step, split, values)

    def write_at(self, trainer: Trainer, step: int, split: str, values: Mapping[str, float]) -> None:
        """Write one line that belongs to `step`, e.g. the test of an earlier checkpoint."""
        if trainer.is_global_zero:
            for sink in self.sinks:
                sink.write({"step": step, "split": split, "epoch": round(self.epoch(step), 6), **values})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for name, value in outputs.items():
            # Lightning hands the loss back divided by the number of micro-batches of a step.
            scale = trainer.accumulate_grad_batches if name == "loss" else 1
            # A resumed line starts with sums from the checkpoint, which lie on the CPU.
            self._sums[name] = self._sums.get(name, torch.zeros(())).to(value.device) + value.detach() * scale
        self._count += 1
        if optimizer_stepped(trainer, batch_idx):
            self._count_skipped(trainer)
            if trainer.global_step % self.log_every == 0 or trainer.global_step == trainer.max_steps:
                self._flush(trainer, pl_module)

    def _flush(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name].double() for name in names])
        # One reduction over the ranks, so that the line is that of the global batch and all ranks stop together.
        means = (pl_module.reduce_sum(sums) / (self._count * trainer.world_size)).tolist()
        self.latest = dict(zip(names, means, strict=True))
        self._sums, self._count = {}, 0
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.write(trainer, "train", {**self.latest, "lr": rate})
        if not torch.isfinite(torch.tensor(self.latest["loss"])):
            raise Diverged(trainer.global_step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._scale = scaler.get_scale() if scaler is not None else 0.0

    def _count_skipped(self, trainer: Trainer) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None:
            return
        # A scaler halves its scale when it skips a step, the first one included.
        scale = scaler.get_scale()
        self.skipped_steps += int(scale < self._scale)
        self._scale = scale

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        self.validated = pl_module.evaluation_metrics()
        if trainer.state.fn == "fit":
            self.record_validation(trainer)

    def record_validation(self, trainer: Trainer) -> None:
        """Write the metrics of the validation that has just ended, and pass them on."""
        self.write(trainer, "val", self.validated)
        self._on_validation(trainer, trainer.global_step, self.validated)

    def state_dict(self) -> dict[str, Any]:
        # Only rank 0 writes the checkpoint, and the sums of a started line differ between ranks.
        sums = every_rank({name: value.cpu() for name, value in self._sums.items()})
        return {"sums": sums, "count": self._count, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["sums"]
        # On another number of ranks the line goes on with the mean, which only the last digits of its values show.
        same = len(saved) == number_of_ranks()
        mean = {name: torch.stack([item[name] for item in saved]).mean(0) for name in saved[0]}
        self._sums, self._count = dict(saved[this_rank()] if same else mean), state_dict["count"]
        self.skipped_steps = state_dict["skipped_steps"]
