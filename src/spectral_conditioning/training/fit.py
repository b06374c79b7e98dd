"""Training itself: Lightning's Trainer with the callbacks of this suite, and the evaluation of the weights that are reported."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from lightning.pytorch import Callback, Trainer

from spectral_conditioning.errors import RecordError
from spectral_conditioning.training.callbacks import (
    AverageWeights,
    Diverged,
    Record,
    RecordOrder,
    RefreshCorrections,
    SeedSteps,
    Sink,
)
from spectral_conditioning.training.identity import conditioning
from spectral_conditioning.training.preemption import Preemption
from spectral_conditioning.training.prepare import Prepared
from spectral_conditioning.training.progress import Heartbeat, Progress
from spectral_conditioning.training.ranks import RankCheck, cluster_environment
from spectral_conditioning.training.record import RunFolder
from spectral_conditioning.training.resume import Checkpoints, step_of
from spectral_conditioning.training.selection import Selection
from spectral_conditioning.training.spectra_log import RecordSpectra

# Samples of the first batch on which attention is measured before and during training.
PROBED_SAMPLES = 8


@dataclasses.dataclass
class Fitted:
    """What training left behind: metrics of the reported weights by `split/name`, or the step at which it diverged.

    seconds: wall time of training in this process; spectra_seconds: the part of it that recording spectra took.
    """

    metrics: dict[str, float]
    reported_step: int | None
    steps: int
    diverged_at: int | None
    skipped_steps: int
    order: str
    seconds: float
    spectra_seconds: float


@dataclasses.dataclass
class Observers:
    """The callbacks of a run, in the order in which they act, and those that are asked afterwards."""

    record: Record
    order: RecordOrder
    selection: Selection
    callbacks: list[Callback]


def observers(prepared: Prepared, folder: RunFolder, sinks: list[Sink], label: str) -> Observers:
    """Build the callbacks that a configuration asks for."""
    config = prepared.config
    machine, optim, chosen = config.trainer, config.optim, conditioning(config)
    selection = Selection(folder.checkpoints, prepared.reported, total_steps=prepared.steps, weights=optim.report)

    def on_validation(trainer: Trainer, step: int, values: dict[str, float]) -> None:
        selection.consider(trainer, step, values)
        progress.validated(trainer, step, values)

    record = Record(sinks, log_every=machine.log_every, epoch=prepared.epoch, on_validation=on_validation)
    progress = Progress(label, record, style=machine.progress, metric=prepared.reported.metric)
    order = RecordOrder(prepared.loader)
    checkpoints = Checkpoints(folder.checkpoints, every=machine.checkpoint_every, keep=machine.keep_checkpoints)
    # A checkpoint comes before anything that counts the batch about to start.
    callbacks: list[Callback] = [checkpoints, Preemption(checkpoints), SeedSteps(config.seed), order]
    if chosen is not None:
        callbacks.append(RefreshCorrections(chosen.refresh_every))
    if optim.ema_decay is not None:
        refreshes = chosen is not None and chosen.refresh_every > 0
        callbacks.append(AverageWeights(optim.ema_decay, report=optim.report == "ema", refreshes=refreshes))
    heartbeat = Heartbeat(folder.heartbeat, record)
    callbacks += [record, *_spectra(prepared, record), heartbeat, progress, selection]
    return Observers(record, order, selection, callbacks)


def _spectra(prepared: Prepared, record: Record) -> list[Callback]:
    points = prepared.config.evaluate.spectra
    if not points:
        return []
    return [
        RecordSpectra(
            points=min(points, prepared.steps),
            total_steps=prepared.steps,
            samples=lambda: prepared.loader.first_samples(PROBED_SAMPLES),
            layouts=prepared.task.layouts(prepared.module.model),
            write=record.write,
        )
    ]


def fit(prepared: Prepared, folder: RunFolder, sinks: list[Sink], label: str, resumed: Path | None) -> Fitted:
    """Train to the end of the budget, from the checkpoint `resumed` if there is one, and evaluate the reported weights."""
    seen = observers(prepared, folder, sinks, label)
    seen.callbacks.append(RankCheck(prepared.config, first_step=step_of(resumed) if resumed else 0))
    metrics: dict[str, float] = {}
    reported_step = diverged_at = None
    started = time.perf_counter()
    with quiet():
        trainer = make_trainer(prepared, folder.path, seen.callbacks)
        if prepared.config.trainer.compile:
            prepared.module.model.compile()
        try:
            trainer.fit(prepared.module, datamodule=prepared.loader, ckpt_path=resumed, weights_only=True)
        except Diverged as diverged:
            diverged_at = diverged.step
    seconds = time.perf_counter() - started
    if diverged_at is None:
        if seen.selection.validated_step < prepared.steps:
            with quiet():
                trainer.validate(prepared.module, datamodule=prepared.loader, verbose=False)
            seen.record.record_validation(trainer)
        metrics, reported_step = _report(prepared, trainer, seen.selection, seen.record)
    return Fitted(
        metrics=metrics,
        reported_step=reported_step,
        steps=trainer.global_step,
        diverged_at=diverged_at,
        skipped_steps=seen.record.skipped_steps,
        order=seen.order.hash.digest,
        seconds=seconds,
        spectra_seconds=sum(item.seconds for item in seen.callbacks if isinstance(item, RecordSpectra)),
    )


def _report(prepared: Prepared, trainer: Trainer, selection: Selection, record: Record) -> tuple[dict[str, float], int]:
    """Evaluate the weights that the rule selects and return their metrics by `split/name`, with their step."""
    module = prepared.module
    if not selection.path.exists():
        raise RecordError("no validation gave a finite value, so there is no checkpoint to report")
    chosen = selection.load()
    metrics = {f"val/{name}": value for name, value in chosen["val"].items()}
    if prepared.reported.split == "test":
        module.model.load_state_dict(chosen["model"])
        module.__dict__["evaluated_model"] = module.model
        with quiet():
            trainer.validate(module, datamodule=prepared.loader, verbose=False)
        _check_reloaded(prepared.reported.metric, chosen["val"], record.validated)
        with quiet():
            trainer.test(module, datamodule=prepared.loader, verbose=False)
        values = module.evaluation_metrics()
        record.write_at(trainer, int(chosen["step"]), "test", values)
        metrics |= {f"test/{name}": value for name, value in values.items()}
    return metrics, int(chosen["step"])


def _check_reloaded(metric: str, saved: dict[str, float], again: dict[str, float]) -> None:
    """Refuse to test weights that do not give their own validation value again."""
    # Reductions on a GPU may differ in the last digits; other weights differ in the first.
    if not math.isclose(saved[metric], again[metric], rel_tol=1e-3, abs_tol=1e-3):
        raise RecordError(
            f"the reported checkpoint had validation {metric} {saved[metric]:.6f} when it was saved "
            f"and has {again[metric]:.6f} when read back; it is not the model that was selected"
        )


def make_trainer(prepared: Prepared, folder: Path, callbacks: list[Callback]) -> Trainer:
    """Build Lightning's Trainer: one endless epoch cut at `steps`, validated by steps, no logger or checkpoint of its own."""
    config = prepared.config
    machine, optim = config.trainer, config.optim
    clip = optim.clip_norm if optim.clip_norm is not None else optim.clip_value
    ranks = machine.devices * machine.nodes
    return Trainer(
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=machine.nodes,
        strategy="ddp" if ranks > 1 else "auto",
        plugins=[cluster_environment()],
        precision=machine.precision,  # type: ignore[arg-type]
        max_steps=prepared.steps,
        max_epochs=-1,
        accumulate_grad_batches=machine.accumulate,
        val_check_interval=validation_interval(prepared) * machine.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        # A module that accumulates by itself also clips by itself.
        gradient_clip_val=clip if prepared.module.automatic_optimization else None,
        gradient_clip_algorithm="value" if optim.clip_value is not None else "norm",
        use_distributed_sampler=False,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def validation_interval(prepared: Prepared) -> int:
    """Return the optimizer steps between validations, never more than the whole run."""
    evaluate = prepared.config.evaluate
    if evaluate.every_steps is not None:
        return min(evaluate.every_steps, prepared.steps)
    if evaluate.every_epochs is None:
        return prepared.steps
    return min(max(1, round(evaluate.every_epochs * prepared.steps_per_epoch)), prepared.steps)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Lightning's hints about things this run path does on purpose off the screen."""
    names = (
        "lightning.pytorch.utilities.rank_zero",
        "lightning.fabric.utilities.rank_zero",
        "lightning.pytorch.accelerators",
    )
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for hint in (
            ".*does not have many workers.*",
            ".*`isinstance\\(treespec, LeafSpec\\)`.*",
            ".*lr_scheduler.step.*",
            ".*`srun` command is available.*",
        ):
            warnings.filterwarnings("ignore", message=hint)
        yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
