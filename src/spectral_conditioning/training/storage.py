"""Configurations as files: how a run's values are saved beside its results and read back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.files import read_mapping, write_atomically
from spectral_conditioning.training.config import typed
from spectral_conditioning.training.schema import RunConfig


def plain_values(config: RunConfig) -> dict[str, Any]:
    """Return the configuration as nested dictionaries and lists."""
    values: dict[str, Any] = _lists(dataclasses.asdict(config))
    return values


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def save_config(config: RunConfig, path: Path) -> None:
    """Write a configuration as YAML, whole or not at all."""
    text = yaml.safe_dump(plain_values(config), sort_keys=False, allow_unicode=True)
    write_atomically(path, text.encode())


def read_config(path: Path) -> RunConfig:
    """Read a configuration that `save_config` wrote, and check it as if it were new."""
    try:
        tree = read_mapping(path, holds="the settings of a run")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist, so {path.parent} is not the folder of a run") from error
    return typed(tree)


def error_file(config: Path) -> Path:
    """Return where the reason goes for which the run of a saved configuration failed."""
    return config.with_suffix(".error")
