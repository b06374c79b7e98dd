"""Arms: which runs are the same arm, how an arm is named, and the order in which arms stand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from spectral_conditioning.results.records import Run

BASELINE = "baseline"
CORRECTIONS = ("identity", "polar", "svd", "scaled_identity", "orthogonal")
PLACEMENTS = ("full", "per_head", "fused")
# Settings of Conditioning, with their defaults: only what differs from them needs saying.
_DEFAULTS: Mapping[str, Any] = {
    "relative": False,
    "refresh_every": 0,
    "decay_toward": "correction",
    "preserve": "weight",
    "include": [],
    "exclude": [],
    "seed": 0,
    "float32_projection": False,
}


def arm_key(run: Run) -> str:
    """Return what makes two runs the same arm: every conditioning setting; all runs with λ = 0 are the baseline."""
    if run.is_baseline:
        return BASELINE
    return json.dumps({**(run.conditioning or {}), "lam": run.lam}, sort_keys=True)


def arm_order(run: Run) -> tuple[Any, ...]:
    """Sort key: baseline first, then by correction, λ, placement, targets and the remaining settings."""
    if run.is_baseline:
        return (0,)
    settings = run.conditioning or {}
    return (
        1,
        _rank(settings.get("correction"), CORRECTIONS),
        bool(settings.get("relative")),
        run.lam,
        _rank(settings.get("placement"), PLACEMENTS),
        -len(settings.get("targets", ())),
        "".join(settings.get("targets", ())),
        arm_key(run),
    )


def arm_labels(runs: Iterable[Run]) -> dict[str, str]:
    """Return {arm key: label}. Two arms with one recorded label get the settings in which they differ added."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(arm_key(run), run)
    by_label: dict[str, list[str]] = defaultdict(list)
    for key, run in first.items():
        by_label[BASELINE if run.is_baseline else run.arm].append(key)
    labels = {}
    for label, keys in by_label.items():
        if len(keys) == 1:
            labels[keys[0]] = label
            continue
        for key, extra in zip(keys, _differing([first[key] for key in keys]), strict=True):
            labels[key] = f"{label} [{extra}]"
    return labels


def series_label(run: Run) -> str:
    """Name the arm without its λ: the series of a λ curve that the run belongs to."""
    if run.is_baseline:
        return BASELINE
    settings = run.conditioning or {}
    parts = [str(settings.get("placement", "full")), "".join(settings.get("targets", ("q", "k", "v")))]
    refresh = settings.get("refresh_every", 0)
    if refresh:
        parts.append("every step" if refresh == 1 else f"every {refresh} steps")
    parts += [
        f"{name}={settings[name]}"
        for name in ("relative", "decay_toward", "preserve", "include", "exclude", "seed", "float32_projection")
        if name in settings and not _is_default(name, settings[name])
    ]
    return f"{settings.get('correction', 'conditioned')} ({', '.join(parts)})"


def lambda_in_sigma(run: Run) -> bool:
    """True when the run's λ is a multiple of σ_max(W): relative λ, and the polar and SVD corrections."""
    settings = run.conditioning or {}
    return bool(settings.get("relative")) or settings.get("correction") in ("polar", "svd")


def _is_default(name: str, value: Any) -> bool:
    return value == _DEFAULTS[name] or (not value and not _DEFAULTS[name])


def _rank(value: Any, order: tuple[str, ...]) -> int:
    return order.index(value) if value in order else len(order)


def _differing(runs: list[Run]) -> list[str]:
    settings = [{**(run.conditioning or {}), "lam": run.lam} for run in runs]
    names = sorted({name for each in settings for name in each})
    varied = [name for name in names if len({json.dumps(each.get(name), default=str) for each in settings}) > 1]
    return [", ".join(f"{name}={each.get(name)}" for name in varied) for each in settings]
