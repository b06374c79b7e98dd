"""The configurations of one experiment: in which values they differ, their order, and a name for each in text and files."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spectral_conditioning.results.pairing import flat_config
from spectral_conditioning.results.records import Run

# A title names this many of the values that differ, and says how many more there are.
MOST_IN_TITLE = 4
# File names stay below the 255 bytes that file systems allow, with room for what the figures add.
MOST_CHARACTERS = 60


@dataclass(frozen=True)
class Setting:
    """One configuration beside the others of its experiment: `text` names every value that differs, "" when none does.

    short: for titles. file_part: for file names, e.g. `lr0.003`. order: sorts configurations by these values.
    """

    text: str = ""
    short: str = ""
    file_part: str = ""
    order: tuple[tuple[bool, float, str], ...] = ()


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """Return the setting of each configuration, one run given for each; a single configuration needs no name."""
    if len(runs) == 1:
        return [Setting()]
    flat = [flat_config(run.config) for run in runs]
    keys = differing_keys(flat)
    values = [[each.get(key) for key in keys] for each in flat]
    counts = Counter(map(repr, values))
    # Configurations that look alike and are not, by their hashes: the hash tells them apart.
    return [_setting(run, keys, own, alike=counts[repr(own)] > 1) for run, own in zip(runs, values, strict=True)]


def differing_keys(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys in which flat configurations differ, sorted."""
    names = sorted({name for each in flat for name in each})
    return [name for name in names if len({repr(each.get(name)) for each in flat}) > 1]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def value_order(value: Any) -> tuple[bool, float, str]:
    """Sort key of configuration values: numbers by size, then everything else by its text."""
    return (False, float(value), "") if is_number(value) else (True, 0.0, str(value))


def safe_name(text: str, *, most: int = MOST_CHARACTERS) -> str:
    """Return `text` as a part of a file name: letters, digits, `.`, `_` and `-`; a long one is cut and ends with its hash."""
    safe = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "unnamed"
    if len(safe) <= most:
        return safe
    return f"{safe[: most - 9]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _setting(run: Run, keys: list[str], values: list[Any], *, alike: bool) -> Setting:
    group = f"configuration {(run.hashes.get('pair') or 'not recorded')[:8]}"
    parts = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
    leaves = Counter(map(_leaf, keys))
    names = [_leaf(key) if leaves[_leaf(key)] == 1 else key for key in keys]
    file_parts = [_file_value(name, value) for name, value in zip(names, values, strict=True)]
    if alike:
        parts.append(group)
        file_parts.append(group)
    short = ", ".join(parts)
    if len(parts) > MOST_IN_TITLE:
        named = MOST_IN_TITLE - 1
        short = f"{', '.join(parts[:named])} and {len(parts) - named} more values ({group})"
    return Setting(", ".join(parts), short, safe_name("-".join(file_parts)), tuple(map(value_order, values)))


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _file_value(name: str, value: Any) -> str:
    """`lr0.003` for a number, `name-vit_tiny` for a text."""
    return f"{name}{value}".replace("e+", "e") if is_number(value) else f"{name}-{value}"
