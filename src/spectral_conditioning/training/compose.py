"""From the command line to composed configurations, by Hydra; every job of a sweep is checked before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spectral_conditioning.errors import ConfigError, closest, problems_message
from spectral_conditioning.training.config import flat_keys, typed
from spectral_conditioning.training.schema import RunConfig

ROOT = "train"


def config_directory() -> Path:
    """Return the folder with the configuration: inside the package when installed, beside src/ in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / f"{ROOT}.yaml").is_file():
            return folder
    raise ConfigError(f"no configuration found beside {package}; install the package again")


def compose_tree(overrides: Sequence[str], *, directory: Path | None = None) -> DictConfig:
    """Compose conf/train.yaml with overrides (no sweeps), untyped.

    Raises ConfigError for an override that Hydra refuses, with the nearest valid name.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(directory or config_directory()), version_base="1.3"):
        try:
            return compose(ROOT, overrides=list(overrides))
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a group set to null
            raise ConfigError(_explain(list(overrides), error)) from error
        finally:
            GlobalHydra.instance().clear()


def compose_run(overrides: Sequence[str], *, directory: Path | None = None) -> RunConfig:
    """Compose and check the configuration of one run.

    Raises ConfigError as `compose_tree` and `typed` do, and for an override that deletes: what it leaves is a default that
    no file shows.
    """
    if deletions := [item for item in parse_overrides(overrides) if item.is_delete()]:
        problems = [
            f"{item.input_line} deletes a value; set {item.key_or_group}=… instead (null where nothing is wanted)"
            for item in deletions
        ]
        raise ConfigError(problems_message("overrides", problems))
    return typed(compose_tree(overrides, directory=directory))


def _explain(overrides: list[str], error: Exception) -> str:
    """Say what is wrong with the overrides: every unknown group, choice and key, with the nearest valid one."""
    loader = GlobalHydra.instance().config_loader()
    parsed = parse_overrides(overrides)
    if sweeps := [item.input_line for item in parsed if item.is_sweep_override()]:
        problems = [
            f"{line} holds several values; add -m for a sweep, or give one (a list is [a,b])" for line in sweeps
        ]
        return problems_message("overrides", problems)
    groups = [item for item in parsed if _is_group(loader, item)]
    problems = _choice_problems(loader, groups)
    if not problems:
        base = compose(ROOT, overrides=[str(item.input_line) for item in groups])
        known = list(flat_keys(OmegaConf.to_container(base)))
        for item in parsed:
            key = item.key_or_group
            if item in groups or item.is_add() or any(name == key or name.startswith(f"{key}.") for name in known):
                continue
            if key.startswith("hydra."):
                continue  # Values of a launcher are known only where it is installed.
            if key.startswith("hydra/"):
                problems.append(
                    f"{item.input_line}: not installed (submitit launchers: pip install hydra-submitit-launcher)"
                )
                continue
            near = closest(key, [*known, *_group_names(loader)])
            problems.append(f"unknown key {key!r}" + (f"; closest {near!r}" if near else "; see spectral train --help"))
    return problems_message("overrides", problems or [" ".join(str(error).split())])


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """Parse overrides; raises ConfigError that names every word that is none, and how one is written."""
    parser, parsed, problems = OverridesParser.create(), [], []
    for word in words:
        try:
            parsed.append(parser.parse_override(word))
        except HydraException as error:
            if "=" not in word:
                problems.append(f"{word!r} sets nothing; write group=choice or key=value" + _meant(word))
                continue
            reason = str(error).splitlines()[0]
            problems.append(
                f"{word!r} cannot be read ({reason}); quote a value with spaces, commas or brackets twice: 'key=\"a (b)\"'"
            )
    if problems:
        raise ConfigError(problems_message("overrides", problems))
    return parsed


def _meant(word: str) -> str:
    """Return the choice that a bare word spells, as a hint."""
    folder = config_directory()
    for path in sorted(folder.rglob("*.yaml")):
        group, _, choice = path.relative_to(folder).with_suffix("").as_posix().partition("/")
        if word in (choice, f"{group}/{choice}") and choice:
            return f", e.g. {group}={choice}"
    return ""


def _is_group(loader: ConfigLoader, item: Override) -> bool:
    return item.key_or_group in _group_names(loader)


def _group_names(loader: ConfigLoader) -> list[str]:
    return [name for name in loader.list_groups("") if name != "hydra"]


def _choice_problems(loader: ConfigLoader, groups: list[Override]) -> list[str]:
    problems = []
    for item in groups:
        group, choice = item.key_or_group, str(item.value())
        options = list(_choices(loader, group))
        if choice not in options:
            near = closest(choice, options)
            hint = f"; closest {near!r}" if near else ""
            problems.append(f"{item.input_line}: no such choice; allowed: {', '.join(options)}{hint}")
    return problems


def _choices(loader: ConfigLoader, group: str) -> list[str]:
    found = list(loader.get_group_options(group))
    for inner in loader.list_groups(group):
        found += [f"{inner}/{name}" for name in _choices(loader, f"{group}/{inner}")]
    return found


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every job of a multirun, in Hydra's order: `a=1,2 b=3` gives [[a=1, b=3], [a=2, b=3]]."""
    parsed = parse_overrides(overrides)
    for item in parsed:
        if item.is_sweep_override() and item.is_delete():
            raise ConfigError(f"overrides: a deletion cannot be swept: {item.input_line}")
    try:
        return [job for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]
    except HydraException as error:
        raise ConfigError(f"overrides: {' '.join(str(error).split())}") from error


def check_launcher(jobs: Sequence[Sequence[str]], *, directory: Path | None = None) -> None:
    """Refuse a launcher or sweeper that anything but the command line chose.

    Hydra picks both before it composes the jobs of a sweep: one named inside an experiment shows up in the configuration of
    each job and is not the one that runs them.
    """
    checked = set()
    for job in jobs:
        parsed = parse_overrides(job)
        given = {item.key_or_group: str(item.value()) for item in parsed}
        key = tuple(item for item in job if item.startswith(("experiment=", "hydra/")))
        if key in checked:
            continue
        checked.add(key)
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(directory or config_directory()), version_base="1.3"):
            choices = compose(ROOT, overrides=list(key), return_hydra_config=True).hydra.runtime.choices
        for group in ("hydra/launcher", "hydra/sweeper"):
            wanted = given.get(group, "basic")
            if choices[group] != wanted:
                raise ConfigError(
                    f"{given.get('experiment', 'the configuration')} chooses {group}={choices[group]} in its file, where "
                    f"Hydra ignores it for sweeps; remove it there and put {group}={choices[group]} on the command line"
                )


def check_jobs(jobs: Sequence[Sequence[str]]) -> list[RunConfig]:
    """Compose every job of a sweep; raise ConfigError that lists what is wrong with any of them."""
    configs, problems = [], []
    for job in jobs:
        try:
            configs.append(compose_run(job))
        except ConfigError as error:
            if str(error) not in problems:
                problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return configs
