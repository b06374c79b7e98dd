"""The record of a finished run, result.json: enough to pair, compare and repeat it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from spectral_conditioning.training.identity import arm_id, arm_label, conditioning, pair_digest
from spectral_conditioning.training.record import SCHEMA, code_state, machine, versions

if TYPE_CHECKING:
    from spectral_conditioning.training.fit import Fitted
    from spectral_conditioning.training.prepare import Prepared


def result_record(
    prepared: Prepared, fitted: Fitted, saturation: dict[str, Any] | None, *, seconds: float
) -> dict[str, Any]:
    """Assemble the record; numbers that are not finite become null when it is written."""
    config, data, reported = prepared.config, prepared.data, prepared.reported
    chosen = conditioning(config)
    name = f"{reported.split}/{reported.metric}"
    samples = prepared.loader.samples_before(fitted.steps)
    return {
        "schema": SCHEMA,
        "status": "finished" if fitted.diverged_at is None else "diverged",
        "experiment": config.name,
        "task": config.task.name,
        "arm": arm_label(chosen),
        "arm_id": arm_id(chosen),
        "seed": config.seed,
        "conditioning": None if chosen is None else chosen.to_dict(),
        "lam": 0.0 if chosen is None else chosen.lam,
        "projections": prepared.report.count,
        "steps": fitted.steps,
        "samples_seen": samples,
        "tokens_seen": None if data.tokens_per_sample is None else samples * data.tokens_per_sample,
        "metrics": fitted.metrics,
        "primary": {
            "name": name,
            "mode": reported.mode,
            "value": fitted.metrics.get(name),
            "step": fitted.reported_step,
            "weights": config.optim.report,
            "rule": reported.rule,
        },
        "chance": data.chance.get(reported.metric),
        "hashes": {
            "initial_weights": prepared.initial_weights,
            "order": fitted.order,
            "data": data.fingerprint,
            "pair": pair_digest(config),
        },
        "saturation": saturation,
        "diverged_at": fitted.diverged_at,
        "skipped_steps": fitted.skipped_steps,
        "scale": {
            "parameters": sum(parameter.numel() for parameter in prepared.module.model.parameters()),
            "train_samples": _size(data.train),
            "val_samples": _size(data.val),
        },
        "config": dataclasses.asdict(config),
        "versions": versions(),
        "code": code_state(),
        "machine": machine(),
        "seconds": {
            "train": round(fitted.seconds, 3),
            "spectra": round(fitted.spectra_seconds, 3),
            "total": round(seconds, 3),
        },
    }


def _size(dataset: Dataset[Any]) -> int:
    return len(dataset)  # type: ignore[arg-type]
