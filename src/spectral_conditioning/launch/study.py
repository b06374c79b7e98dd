"""From a study to its runs: every configuration composed and checked, what follows what, and the runs' names."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.launch.study_file import Stage, Study, override_key
from spectral_conditioning.training.compose import check_jobs, check_launcher, expand_sweep
from spectral_conditioning.training.identity import flat_identity, run_folder, run_label
from spectral_conditioning.training.schema import RunConfig


@dataclasses.dataclass
class Element:
    """What one job trains: one run, or all the runs that follow one run (`after`) of an earlier stage, one after the other."""

    stage: Stage
    configs: list[RunConfig]
    after: Element | None = None


def labels(configs: Sequence[RunConfig]) -> list[str]:
    """Return the runs' names for people; where several would be one, the settings that differ (a learning rate) are added."""
    names = [run_label(config) for config in configs]
    settings = [flat_identity(config) for config in configs]
    namesakes: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for name, own in zip(names, settings, strict=True):
        namesakes[name].append(own)
    keys = {name: _differing(group) for name, group in namesakes.items()}
    return [
        " · ".join([name, *(f"{key}={own[key]}" for key in keys[name] if key in own)])
        for name, own in zip(names, settings, strict=True)
    ]


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    missing = object()
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if any(own.get(key, missing) != settings[0].get(key, missing) for own in settings)]


def config_name(config: RunConfig) -> str:
    """Return a file name for a run's configuration that follows from its folder."""
    return "--".join(run_folder(config).relative_to(config.paths.runs).parts) + ".yaml"


def expand(study: Study, overrides: Sequence[str]) -> list[Element]:
    """Compose and check every run of a study; `overrides` replace what the study says about the same keys.

    Runs that come to the same folder (λ = 0 and the baseline) are kept once. Folders are absolute. Raises ConfigError that
    says in which part of the study something is wrong.
    """
    elements: list[Element] = []
    jobs_of: dict[int, list[str]] = {}
    seen: set[Path] = set()
    for stage in study.stages:
        try:
            _expand_stage(stage, overrides, elements, jobs_of, seen)
        except ConfigError as error:
            raise ConfigError(f"{stage.where}: {error}" if stage.where else str(error)) from error
    return elements


def _expand_stage(
    stage: Stage, overrides: Sequence[str], elements: list[Element], jobs_of: dict[int, list[str]], seen: set[Path]
) -> None:
    """Add the runs of a stage to `elements`."""
    for before, jobs in _jobs(stage, overrides, elements, jobs_of):
        configs = _absolute(check_jobs(jobs))
        check_launcher(jobs)
        fresh = [(job, config) for job, config in zip(jobs, configs, strict=True)]
        fresh = [item for item in fresh if run_folder(item[1]) not in seen and not seen.add(run_folder(item[1]))]  # type: ignore[func-returns-value]
        if stage.after is not None and fresh:
            elements.append(Element(stage, [config for _, config in fresh], before))
            continue
        for job, config in fresh:
            elements.append(Element(stage, [config]))
            jobs_of[id(elements[-1])] = job


def _jobs(
    stage: Stage, overrides: Sequence[str], elements: list[Element], jobs_of: dict[int, list[str]]
) -> list[tuple[Element | None, list[list[str]]]]:
    """Return the overrides of a stage's runs, grouped by the run that they follow."""
    experiments = [[f"experiment={name}"] for name in stage.experiments] or [[]]
    if stage.after is None:
        arms = stage.arms or ((),)
        seeds = [[f"seed={seed}"] for seed in stage.seeds] or [[]]
        products = [[*e, *stage.overrides, *a, *s] for e in experiments for a in arms for s in seeds]
        return [(None, [job for product in products for job in expand_sweep(replace(product, overrides))])]
    grouped: list[tuple[Element | None, list[list[str]]]] = []
    for before in elements:
        if before.stage.name != stage.after:
            continue
        kept = [
            item
            for item in jobs_of[id(before)]
            if override_key(item) == "seed" or override_key(item).startswith("conditioning")
        ]
        folder = run_folder(before.configs[0])
        if not re.fullmatch(r"[\w./+-]+", str(folder)):
            raise ConfigError(
                f"the folder {folder} cannot stand in an override; choose paths.runs without odd characters"
            )
        own = [item.replace(f"{{{stage.after}}}", str(folder)) for item in stage.overrides]
        jobs = [job for e in experiments for job in expand_sweep(replace([*e, *replace(kept, own)], overrides))]
        grouped.append((before, jobs))
    return grouped


def _absolute(configs: Sequence[RunConfig]) -> list[RunConfig]:
    return [
        dataclasses.replace(
            config, paths=dataclasses.replace(config.paths, runs=str(Path(config.paths.runs).absolute()))
        )
        for config in configs
    ]


def replace(job: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return `job` with every override whose key `overrides` names again left out, and `overrides` after it."""
    keys = {override_key(item) for item in overrides}
    return [*(item for item in job if override_key(item) not in keys), *overrides]
