"""study.yaml: many runs described in one file, read and checked.

study.yaml names what varies; the runs are the product of its lists:

    experiments: [imagenet/vit_b, imagenet/deit_b]        # experiment=…
    arms:                                                 # each arm is a list of overrides
      - [conditioning=none]
      - [conditioning=identity, conditioning.lam=10]
    seeds: [0, 1, 2]                                      # seed=…
    overrides: [trainer=ddp]                              # for every run; Hydra sweep syntax (optim.lr=1e-3,3e-3) multiplies
    resources: {time: "48:00:00"}                         # values of the site that this study sets, see slurm/sites/example.yaml

Every list may be left out, and none may be empty. What `experiments` and `seeds` list, `overrides` and arms cannot set again.

A study of several stages puts the same keys under each stage. A stage with `after` has no arms and
seeds of its own: its runs follow one run each of the earlier stage, with that run's arm and seed, and start when it has
finished; `{pretrain}` (the name of the earlier stage) stands for that run's folder.

    stages:
      pretrain: {experiments: [cramming/bert], arms: […], seeds: [0, 1]}
      glue: {after: pretrain, experiments: [cramming/glue], overrides: ["init.weights={pretrain}/checkpoints/reported.ckpt"]}
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import ConfigError, closest
from spectral_conditioning.files import read_mapping
from spectral_conditioning.training.identity import digest

FILE = "study.yaml"
KEYS = ("experiments", "arms", "seeds", "overrides", "resources", "after")
_TOP = f"{', '.join(KEYS[:-1])} or stages"


@dataclasses.dataclass(frozen=True)
class Stage:
    """Runs that may start together: experiments × arms × seeds × sweeps in overrides. `where` it was read, for messages."""

    name: str
    experiments: tuple[str, ...] = ()
    arms: tuple[tuple[str, ...], ...] = ()
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()
    resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    after: str | None = None
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Study:
    """A name, from which the submission's folder follows, and stages in order."""

    name: str
    stages: tuple[Stage, ...]


def split_words(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split the words of a command into the study, if the first one names one, and overrides."""
    if words and "=" not in words[0]:
        return Path(words[0]), list(words[1:])
    return None, list(words)


def override_key(override: str) -> str:
    """Return the key that an override sets, adds or deletes."""
    return override.split("=", 1)[0].lstrip("+~")


def read_study(source: Path | None, overrides: Sequence[str]) -> Study:
    """Read study.yaml (or the folder that holds it); without a source, the overrides alone are the study.

    Raises ConfigError that names what is wrong with the file.
    """
    _refuse_hydra(overrides, "overrides")
    if source is None:
        named = re.findall(r"^experiment=(.*)$", "\n".join(overrides), flags=re.MULTILINE)
        words = re.sub(r"[^\w.-]+", "-", named[-1]).strip("-") if named else "runs"
        return Study(f"{words[:40]}-{digest(sorted(overrides), 6)}", (Stage("runs"),))
    path = source / FILE if source.is_dir() else source
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; give a study (a folder with {FILE}, or a file) or overrides key=value"
        )
    tree = read_mapping(path, holds=_TOP)
    name = path.parent.resolve().name if path.name == FILE else f"{path.parent.resolve().name}-{path.stem}"
    if "stages" not in tree:
        return Study(name, (_stage("runs", tree, str(path), [*KEYS[:-1], "stages"], earlier=()),))
    if not isinstance(tree["stages"], dict) or not tree["stages"]:
        raise ConfigError(f"{path}: stages is {tree['stages']!r}; it must map a name to each stage")
    if others := [str(key) for key in tree if key != "stages"]:
        raise ConfigError(f"{path} has stages, so every other key belongs to one of them; found {', '.join(others)}")
    stages: list[Stage] = []
    for stage, values in tree["stages"].items():
        where = f"{path}, stage {stage!r}"
        if not re.fullmatch(r"\w[\w-]*", str(stage)):
            raise ConfigError(f"{where}: its name becomes that of files; use letters, digits, '_' and '-'")
        stages.append(_stage(str(stage), values, where, KEYS, earlier=[item.name for item in stages]))
    return Study(name, tuple(stages))


def _stage(name: str, values: Any, where: str, keys: Sequence[str], *, earlier: Sequence[str]) -> Stage:
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is {values!r}; it must map {', '.join(keys)}")
    for key in values:
        if key not in keys:
            near = closest(str(key), keys)
            hint = f"closest {near!r}" if near else f"allowed: {', '.join(keys)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
    after, resources = values.get("after"), values.get("resources") or {}
    if after is not None and after not in earlier:
        raise ConfigError(f"{where}: after is {after!r}; earlier stages: {', '.join(earlier) or 'none'}")
    if after is not None and ("arms" in values or "seeds" in values):
        raise ConfigError(f"{where}: a stage after {after!r} takes arm and seed from there; remove arms and seeds")
    if not isinstance(resources, dict):
        raise ConfigError(f"{where}: resources is {resources!r}; it must map names of the site file to values")
    stage = Stage(
        name=name,
        experiments=tuple(map(str, _list(values, "experiments", where))),
        arms=_arms(values, where),
        seeds=_seeds(values, where),
        overrides=tuple(map(str, _list(values, "overrides", where))),
        resources=resources,
        after=after,
        where=where,
    )
    _refuse_conflicts(stage)
    return stage


def _arms(values: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    arms = _list(values, "arms", where)
    if wrong := [arm for arm in arms if not isinstance(arm, list) or not arm]:
        raise ConfigError(
            f"{where}: arms holds {wrong[0]!r}; each arm must be a list of overrides, e.g. [conditioning=none]"
        )
    return tuple(tuple(map(str, arm)) for arm in arms)


def _seeds(values: Mapping[str, Any], where: str) -> tuple[int, ...]:
    found = _list(values, "seeds", where)
    if wrong := [item for item in found if not isinstance(item, int) or isinstance(item, bool)]:
        raise ConfigError(f"{where}: seeds holds {wrong[0]!r}; each must be a whole number, e.g. seeds: [0, 1, 2]")
    return tuple(found)


def _list(values: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """Return the list of a key, [] when the key is left out."""
    if key not in values:
        return []
    found = values[key]
    if found is not None and not isinstance(found, list):
        raise ConfigError(f"{where}: {key} is {found!r}; it must be a list")
    if not found:
        raise ConfigError(f"{where}: {key} is empty; leave it out for the default, or list what to run")
    return found


def _refuse_conflicts(stage: Stage) -> None:
    """Refuse what would have no effect, or silently take the place of something else in the stage."""
    items = [*stage.overrides, *(item for arm in stage.arms for item in arm)]
    _refuse_hydra(items, stage.where)
    for key, listed in (("experiment", stage.experiments), ("seed", stage.seeds)):
        again = [item for item in items if override_key(item) == key]
        if again and listed:
            raise ConfigError(
                f"{stage.where}: {key}s lists {listed[0]!r} and {again[0]!r} sets it again; remove one of them"
            )
    for item in items:
        for named in re.findall(r"(?<!\$)\{([^\s{}:,'\"]+)\}", item):
            if named != stage.after:
                allowed = f"{{{stage.after}}}, the stage it follows" if stage.after else "none, as it has no `after`"
                raise ConfigError(f"{stage.where}: {item!r} names the run of stage {named!r}; allowed here: {allowed}")


def _refuse_hydra(overrides: Sequence[str], where: str) -> None:
    for item in overrides:
        if override_key(item).startswith(("hydra.", "hydra/")):
            raise ConfigError(
                f"{where}: {item!r} has no effect here, where Hydra does not start the runs; remove it (a job's values belong "
                f"to resources or site.KEY=VALUE, a run's folder follows from paths.runs)"
            )
