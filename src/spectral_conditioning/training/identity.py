"""What a run is: its conditioning, the values that determine what it computes, and the names and folder that follow."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

from spectral_conditioning.conditioning import Conditioning
from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.machine_keys import MACHINE_KEYS
from spectral_conditioning.training.schema import RunConfig


def conditioning(config: RunConfig) -> Conditioning | None:
    """Return the conditioning of a run, None for the baseline; λ = 0 is the baseline, whatever the correction is called."""
    values = dataclasses.asdict(config.conditioning)
    values.update({key: tuple(values[key]) for key in ("targets", "include", "exclude")})
    if values["correction"] == "none":
        if values["lam"] != 0:
            raise ConfigError(
                f"conditioning.correction is 'none' but conditioning.lam is {values['lam']}; "
                f"choose a correction, e.g. conditioning=identity (in a study, set λ in the arms that have one)"
            )
        # A sweep sets the other arms' values for the baseline too: they say nothing there, but must be possible.
        follows = values["relative"] or values["refresh_every"] != 0
        Conditioning(**{**values, "correction": "identity", "lam": 1.0, "relative": follows})
        return None
    wanted = Conditioning(**values)
    return None if wanted.is_baseline else wanted


def identity(config: RunConfig) -> dict[str, Any]:
    """Return the values that determine what a run computes, with every name of the baseline made one."""
    values = dataclasses.asdict(config)
    chosen = conditioning(config)
    values["conditioning"] = None if chosen is None else chosen.to_dict()
    for key in MACHINE_KEYS:
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node[parent]
        node.pop(last, None)
    return values


def flat_identity(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine what a run computes beside its name, arm and seed, by dotted key."""
    flat: dict[str, Any] = {}

    def add(values: dict[str, Any], prefix: str = "") -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                add(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    add({key: value for key, value in identity(config).items() if key not in ("name", "seed", "conditioning")})
    return flat


def digest(values: Any, length: int = 8) -> str:
    """Return a short hash of plain values, independent of the order of keys."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()[:length]


def pair_digest(config: RunConfig) -> str:
    """Return a hash of all that must agree between the arms of a comparison: everything but conditioning and seed."""
    values = identity(config)
    del values["conditioning"], values["seed"]
    values["init"]["weights"] = _without_arm(config.init.weights, arm_id(conditioning(config)))
    return digest(values, length=32)


def _without_arm(weights: str | None, arm: str) -> str | None:
    """Return a path into a run folder of the same arm as a path that all arms share: `<runs>/<name>/seed<k>/…`."""
    parts = list(Path(weights or "").parts)
    for i, (folder, run) in enumerate(itertools.pairwise(parts)):
        if folder == arm and (match := re.match(r"seed\d+", run)):
            return str(Path(*parts[:i], match[0], *parts[i + 2 :]))
    return weights


def arm_id(chosen: Conditioning | None) -> str:
    """Return a short folder name for an arm, e.g. `none`, `identity-10`, `identity-10-fused-q`, `polar-1-every1`."""
    if chosen is None:
        return "none"
    parts = [chosen.correction, f"{chosen.lam:g}"]
    parts += ["relative"] if chosen.relative else []
    parts += [chosen.placement] if chosen.placement != "full" else []
    parts += ["".join(chosen.targets)] if tuple(chosen.targets) != ("q", "k", "v") else []
    parts += [f"every{chosen.refresh_every}"] if chosen.refresh_every else []
    parts += ["shifted"] if chosen.decay_toward == "zero" else []
    parts += ["function"] if chosen.preserve == "function" else []
    parts += [f"only{digest([chosen.include, chosen.exclude], 4)}"] if chosen.include or chosen.exclude else []
    parts += [f"draw{chosen.seed}"] if chosen.seed else []
    parts += ["float32"] if chosen.float32_projection else []
    return "-".join(parts)


def arm_label(chosen: Conditioning | None) -> str:
    """Return the arm's name for tables and plots."""
    if chosen is None:
        return "baseline"
    label = f"{chosen.correction} λ={chosen.lam:g}{' σ_max' if chosen.relative else ''}"
    label += f" ({chosen.placement}, {''.join(chosen.targets)})"
    label += f", every {chosen.refresh_every} steps" if chosen.refresh_every else ""
    label += ", decay on W+C" if chosen.decay_toward == "zero" else ""
    label += ", function kept" if chosen.preserve == "function" else ""
    label += f", only {' '.join(chosen.include)}" if chosen.include else ""
    label += f", not {' '.join(chosen.exclude)}" if chosen.exclude else ""
    label += f", draw {chosen.seed}" if chosen.seed else ""
    return label + (", products in float32" if chosen.float32_projection else "")


def run_label(config: RunConfig, *, last: str | None = None) -> str:
    """Return a run's name for people; `last` stands in place of the seed."""
    return f"{config.name} · {arm_label(conditioning(config))} · {last or f'seed {config.seed}'}"


def run_folder(config: RunConfig) -> Path:
    """Return the run's folder, a function of its configuration: <runs>/<name>/<arm>/seed<k>-<hash>."""
    arm = arm_id(conditioning(config))
    return Path(config.paths.runs) / config.name / arm / f"seed{config.seed}-{digest(identity(config))}"
