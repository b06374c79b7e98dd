"""A site file: everything about one cluster that scripts must not contain. slurm/sites/example.yaml explains each value."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spectral_conditioning.errors import ConfigError, closest, problems_message
from spectral_conditioning.files import read_mapping

SITES = "SPECTRAL_SITES"
GPU_REQUESTS = ("gres", "gpus-per-node", "none")
# Minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]], as sbatch reads them.
TIME = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(:\d\d){0,2}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """Values of a site file after the study's resources and the command line's site.key=value have had their say."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    gpus: str = "gres"
    gpu_type: str | None = None
    cpus_per_task: int = 8
    memory: str | None = None
    time: str = "24:00:00"
    options: list[str] = dataclasses.field(default_factory=list)
    warn_seconds: int = 300
    max_restarts: int = 50
    modules: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    setup: list[str] = dataclasses.field(default_factory=list)
    python: str | None = None
    container: str | None = None
    log_folder: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    nccl: dict[str, str] = dataclasses.field(default_factory=dict)


def templates_directory() -> Path:
    """Return slurm/: inside the package when installed, beside src/ in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "slurm", package.parents[1] / "slurm"):
        if (folder / "array.sbatch").is_file():
            return folder
    raise ConfigError(f"no SLURM templates found beside {package}; install the package again")


def site_folders() -> list[Path]:
    """Return the folders in which `site=NAME` looks for NAME.yaml, first match wins."""
    own = [Path(os.environ[SITES])] if SITES in os.environ else []
    return [
        *own,
        Path("slurm/sites"),
        Path.home() / ".config/spectral-conditioning/sites",
        templates_directory() / "sites",
    ]


def find_site(name: str) -> Path:
    """Return the file of a site, given by name or path."""
    direct = Path(name)
    if direct.suffix in (".yaml", ".yml"):
        if direct.is_file():
            return direct
        raise ConfigError(f"site={name}: no such file")
    for folder in site_folders():
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = sorted({path.stem for folder in site_folders() for path in folder.glob("*.yaml")})
    near = closest(name, known)
    hint = f"closest {near!r}" if near else f"known: {', '.join(known)}"
    raise ConfigError(
        f"site={name}: no such site; {hint}. Copy slurm/sites/example.yaml to slurm/sites/{name}.yaml and fill it in"
    )


def read_site(name: str, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Site:
    """Read a site by name or path and lay `changes`, {where from: values}, over it.

    Raises ConfigError that lists everything wrong and where it comes from.
    """
    path = find_site(name)
    values = read_mapping(path, holds="names to values")
    source = dict.fromkeys(values, "")
    for where, change in (changes or {}).items():
        values |= change
        source |= dict.fromkeys(change, f" ({where})")
    fields = {field.name: field for field in dataclasses.fields(Site)}
    problems = []
    for key in [key for key in values if key not in fields]:
        near = closest(str(key), fields)
        hint = f"; closest {near!r}" if near else f"; allowed: {', '.join(fields)}"
        problems.append(f"unknown key {key!r}{source[key]}{hint}")
        del values[key]
    values = {key: _texts(value) for key, value in values.items()}
    site = Site(**values)
    for key, value in values.items():
        problem = _type_problem(key, str(fields[key].type), value)
        problems += [f"{problem}{source[key]}"] if problem else []
    problems = problems or _value_problems(site)
    if problems:
        raise ConfigError(problems_message(f"site {path}", problems))
    return site


def value_from_text(key: str, text: str) -> Any:
    """Return the value that site.key=text on the command line means: as in YAML, except that a text needs no quotes."""
    types = {field.name: str(field.type) for field in dataclasses.fields(Site)}
    if types.get(key, "").startswith("str"):
        return None if text == "null" else text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"site.{key}={text}: the value is no valid YAML; a list is written [a, b], a mapping {{a: b}}"
        ) from error


def _texts(value: Any) -> Any:
    """Let numbers and truth values stand for their text in lists and mappings, as in NCCL_DEBUG: 1."""
    if isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    return [str(item) for item in value] if isinstance(value, list) else value


def _type_problem(key: str, wanted: str, value: Any) -> str | None:
    if value is None and "None" in wanted:
        return None
    kind = {"str": str, "int": int, "list": list, "dict": dict}[re.split(r"\W", wanted)[0]]
    if isinstance(value, kind) and not isinstance(value, bool):
        return None
    # YAML reads an unquoted 24:00:00 as a number in base sixty.
    hint = ' (put quotes around it, e.g. "24:00:00")' if key == "time" else ""
    return f"{key} is {value!r}; it must be of type {wanted}{hint}"


def _value_problems(site: Site) -> list[str]:
    problems = []
    if site.gpus not in GPU_REQUESTS:
        problems.append(f"gpus is {site.gpus!r}; allowed: {', '.join(GPU_REQUESTS)}")
    if not TIME.fullmatch(site.time):
        problems.append(f"time is {site.time!r}; write minutes, h:mm:ss or days-hours")
    if site.cpus_per_task < 1:
        problems.append(f"cpus_per_task is {site.cpus_per_task}; it must be at least 1")
    for key in ("warn_seconds", "max_restarts"):
        if getattr(site, key) < 0:
            problems.append(f"{key} is {getattr(site, key)}; it must be 0 or more")
    for key, value in dataclasses.asdict(site).items():
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any("\n" in str(text) for text in texts):
            problems.append(f"{key} holds a line break")
    for option in site.options:
        if not option.startswith("-"):
            problems.append(f"options holds {option!r}; an sbatch option starts with '--'")
    for name in [*site.environment, *site.nccl]:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            problems.append(f"{name!r} is no name of an environment variable")
    return problems
