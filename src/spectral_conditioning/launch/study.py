"""A study: many runs described in one file, and how it becomes configurations.

study.yaml names what varies; the runs are the product of its lists:

    experiments: [imagenet/vit_b, imagenet/deit_b]        # experiment=…
    arms:                                                 # each arm is a list of overrides
      - [conditioning=none]
      - [conditioning=identity, conditioning.lam=10]
    seeds: [0, 1, 2]                                      # seed=…
    overrides: [trainer=ddp]                              # for every run; Hydra sweep syntax (optim.lr=1e-3,3e-3) multiplies
    resources: {time: "48:00:00"}                         # values of the site that this study sets, see slurm/sites/example.yaml

Every list may be left out. A study of several stages puts the same keys under each stage. A stage with `after` has no arms and
seeds of its own: its runs follow one run each of the earlier stage, with that run's arm and seed, and start when it has
finished; `{pretrain}` (the name of the earlier stage) stands for that run's folder.

    stages:
      pretrain: {experiments: [cramming/bert], arms: […], seeds: [0, 1]}
      glue: {after: pretrain, experiments: [cramming/glue], overrides: ["init.weights={pretrain}/checkpoints/reported.ckpt"]}
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import ConfigError, closest
from spectral_conditioning.files import read_mapping
from spectral_conditioning.training.compose import check_jobs, check_launcher, expand_sweep
from spectral_conditioning.training.identity import digest, flat_identity, run_folder, run_label
from spectral_conditioning.training.schema import RunConfig

FILE = "study.yaml"
KEYS = ("experiments", "arms", "seeds", "overrides", "resources", "after")


@dataclasses.dataclass(frozen=True)
class Stage:
    """Runs that may start together: experiments × arms × seeds × sweeps in overrides."""

    name: str
    experiments: tuple[str, ...] = ()
    arms: tuple[tuple[str, ...], ...] = ()
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()
    resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    after: str | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """A name, from which the submission's folder follows, and stages in order."""

    name: str
    stages: tuple[Stage, ...]


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


def split_words(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split the words of a command into the study, if the first one names one, and overrides."""
    if words and "=" not in words[0]:
        return Path(words[0]), list(words[1:])
    return None, list(words)


def read_study(source: Path | None, overrides: Sequence[str]) -> Study:
    """Read study.yaml (or the folder that holds it); without a source, the overrides alone are the study.

    Raises ConfigError that names what is wrong with the file.
    """
    if source is None:
        named = re.findall(r"^experiment=(.*)$", "\n".join(overrides), flags=re.MULTILINE)
        words = re.sub(r"[^\w.-]+", "-", named[-1]).strip("-") if named else "runs"
        return Study(f"{words[:40]}-{digest(sorted(overrides), 6)}", (Stage("runs"),))
    path = source / FILE if source.is_dir() else source
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; give a study (a folder with {FILE}, or a file) or overrides key=value"
        )
    tree = read_mapping(path, holds=f"{', '.join(KEYS[:-1])} or stages")
    name = path.parent.resolve().name if path.name == FILE else f"{path.parent.resolve().name}-{path.stem}"
    if "stages" not in tree:
        return Study(name, (_stage("runs", tree, path, earlier=()),))
    if set(tree) != {"stages"} or not isinstance(tree["stages"], dict):
        raise ConfigError(f"{path} has stages, so every other key belongs to one of them; found {', '.join(tree)}")
    stages: list[Stage] = []
    for stage, values in tree["stages"].items():
        stages.append(_stage(str(stage), values, path, earlier=[item.name for item in stages]))
    return Study(name, tuple(stages))


def _stage(name: str, values: Any, path: Path, *, earlier: Sequence[str]) -> Stage:
    where = f"{path}, stage {name!r}" if name != "runs" else str(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is {values!r}; it must map {', '.join(KEYS)}")
    for key in values:
        if key not in KEYS:
            near = closest(str(key), KEYS)
            raise ConfigError(
                f"{where}: unknown key {key!r}; " + (f"closest {near!r}" if near else f"allowed: {', '.join(KEYS)}")
            )
    after, resources = values.get("after"), values.get("resources") or {}
    if after is not None and after not in earlier:
        raise ConfigError(f"{where}: after is {after!r}; earlier stages: {', '.join(earlier) or 'none'}")
    if after is not None and (values.get("arms") or values.get("seeds")):
        raise ConfigError(f"{where}: a stage after {after!r} takes arm and seed from there; remove arms and seeds")
    if not isinstance(resources, dict):
        raise ConfigError(f"{where}: resources is {resources!r}; it must map names of the site file to values")
    arms = values.get("arms") or []
    if not all(isinstance(arm, list) for arm in arms):
        raise ConfigError(
            f"{where}: each arm must be a list of overrides, e.g. [conditioning=identity]; found {arms!r}"
        )
    return Stage(
        name=name,
        experiments=tuple(map(str, _list(values, "experiments", where))),
        arms=tuple(tuple(map(str, arm)) for arm in arms),
        seeds=_seeds(values, where),
        overrides=tuple(map(str, _list(values, "overrides", where))),
        resources=resources,
        after=after,
    )


def _seeds(values: Mapping[str, Any], where: str) -> tuple[int, ...]:
    found = _list(values, "seeds", where)
    if wrong := [item for item in found if not isinstance(item, int) or isinstance(item, bool)]:
        raise ConfigError(f"{where}: seeds holds {wrong[0]!r}; each must be a whole number, e.g. seeds: [0, 1, 2]")
    return tuple(found)


def _list(values: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = values.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{where}: {key} is {found!r}; it must be a list")
    return found


def expand(study: Study, overrides: Sequence[str]) -> list[Element]:
    """Compose and check every run of a study; `overrides` replace what the study says about the same keys.

    Runs that come to the same folder (λ = 0 and the baseline) are kept once. Folders are absolute.
    """
    elements: list[Element] = []
    jobs_of: dict[int, list[str]] = {}
    seen: set[Path] = set()
    for stage in study.stages:
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
    return elements


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
        kept = [item for item in jobs_of[id(before)] if _key(item) == "seed" or _key(item).startswith("conditioning")]
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
    keys = {_key(item) for item in overrides}
    return [*(item for item in job if _key(item) not in keys), *overrides]


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~")
