"""The one path from a configuration to a record, the same for every task and both arms.

    load data → build the plain model → condition it → Lightning module → fit → evaluate the reported weights → result.json

Everything that can be wrong with the input is found before the run folder is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from spectral_conditioning.analysis.saturation import measure_saturation
from spectral_conditioning.errors import RecordError
from spectral_conditioning.training.fit import PROBED_SAMPLES, fit
from spectral_conditioning.training.identity import (
    arm_id,
    arm_label,
    conditioning,
    digest,
    identity,
    run_folder,
    run_label,
)
from spectral_conditioning.training.prepare import Prepared, prepare
from spectral_conditioning.training.ranks import global_rank, must_start_ranks, start_ranks
from spectral_conditioning.training.record import MetricsFile, RunFolder, write_json
from spectral_conditioning.training.result import result_record
from spectral_conditioning.training.resume import checkpoint_files, newest_checkpoint, step_of
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.storage import plain_values, save_config
from spectral_conditioning.training.tracking import WandbSink

if TYPE_CHECKING:
    from spectral_conditioning.training.callbacks import Sink

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended. `already` means that the folder held a finished run, which was left as it is."""

    folder: Path
    status: Literal["finished", "diverged", "already"]
    record: dict[str, Any]


def run(config: RunConfig, label: str | None = None) -> Outcome:
    """Train one configuration and write its record; go on where an interrupted run stopped; leave a finished one alone.

    label: what the run is called in lines for people; by default its experiment, arm and seed.
    """
    folder = RunFolder(run_folder(config))
    label = label or run_label(config)
    finished = folder.read_result()
    if finished is not None:
        print(f"{label}: already {finished['status']} in {folder.path}; nothing to do", flush=True)
        return Outcome(folder.path, "already", finished)
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    if must_start_ranks(config):
        return _run_on_ranks(config, folder)
    prepared = prepare(config)
    # One rank owns the folder; the others only compute.
    owner = folder if global_rank() == 0 else contextlib.nullcontext()
    with owner:
        return _run_in(folder, prepared, label)


def _run_on_ranks(config: RunConfig, folder: RunFolder) -> Outcome:
    with folder:
        save_config(config, folder.config)
    status = start_ranks(config, folder.config)
    record = folder.read_result()
    if record is None:
        raise RecordError(
            f"the ranks of {folder.path} ended with status {status} and no record; the first error is above"
        )
    return Outcome(folder.path, record["status"], record)


def _run_in(folder: RunFolder, prepared: Prepared, label: str) -> Outcome:
    config = prepared.config
    started = time.perf_counter()
    resumed = newest_checkpoint(folder.checkpoints)
    first_step = step_of(resumed) if resumed else 0
    is_owner = global_rank() == 0
    if is_owner:
        save_config(config, folder.config)
    _announce(prepared, label, folder, first_step)
    saturation = _saturation(prepared)
    sinks: list[Sink] = []
    tracked: WandbSink | None = None
    record: dict[str, Any] | None = None
    try:
        if is_owner:
            sinks.append(MetricsFile(folder.metrics, keep_until=first_step if resumed else -1))
            tracked = _tracker(prepared, folder)
            sinks += [tracked] if tracked else []
        fitted = fit(prepared, folder, sinks, label, resumed)
        record = result_record(prepared, fitted, saturation, seconds=time.perf_counter() - started)
        if is_owner:
            write_json(folder.result, record)
            # Nothing resumes a finished run; its reported weights stay.
            for path in checkpoint_files(folder.checkpoints):
                path.unlink()
            folder.heartbeat.unlink(missing_ok=True)
            if record["status"] == "finished":
                pictures = prepared.module.eval().artifacts(folder.path)
                if tracked is not None:
                    tracked.show(pictures)
    finally:
        for sink in sinks:
            if isinstance(sink, MetricsFile):
                sink.close()
        if tracked is not None:
            tracked.finish(record)
    _announce_end(record, label, folder)
    return Outcome(folder.path, record["status"], record)


def _saturation(prepared: Prepared) -> dict[str, Any] | None:
    """Measure attention saturation of the untrained model on its first batch, and warn where layers start as the identity."""
    samples = prepared.loader.first_samples(PROBED_SAMPLES)
    module = prepared.module
    report = measure_saturation(
        module.model, lambda: module.example_forward(samples), layouts=prepared.task.layouts(module.model)
    )
    warning = report.warning()
    if warning:
        log.warning("%s", warning)
    return report.to_dict()


def _tracker(prepared: Prepared, folder: RunFolder) -> WandbSink | None:
    config = prepared.config
    if config.logger.wandb == "disabled":
        return None
    chosen = conditioning(config)
    tags = [config.task.name, arm_id(chosen), f"seed{config.seed}", *config.logger.tags]
    return WandbSink(
        mode=config.logger.wandb,
        folder=folder.path,
        run_id=digest([identity(config), str(folder.path)], length=32),
        project=config.logger.project,
        entity=config.logger.entity,
        group=config.name,
        name=f"{config.name} {arm_label(chosen)} seed {config.seed}",
        job_type=arm_id(chosen),
        tags=tags,
        config=plain_values(config),
    )


def _announce(prepared: Prepared, label: str, folder: RunFolder, first_step: int) -> None:
    start = f"going on at step {first_step}" if first_step else "starting"
    log.info(
        "%s: %s, %d steps, %d projections corrected, %s",
        label,
        start,
        prepared.steps,
        prepared.report.count,
        prepared.data.description,
    )
    log.info("folder %s", folder.path)


def _announce_end(record: dict[str, Any], label: str, folder: RunFolder) -> None:
    seconds = record["seconds"]
    if seconds["spectra"]:
        share = 100 * seconds["spectra"] / seconds["train"]
        log.info("spectra took %.1f s, %.2g %% of training (evaluate.spectra)", seconds["spectra"], share)
    if record["status"] == "diverged":
        log.warning("%s: diverged at step %d; recorded as that in %s", label, record["diverged_at"], folder.result)
        return
    primary = record["primary"]
    log.info(
        "%s: %s %.4f at step %d (%s weights)",
        label,
        primary["name"],
        primary["value"],
        primary["step"],
        primary["weights"],
    )
