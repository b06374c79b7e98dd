"""Files that are whole or not there, and YAML files of ours."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from spectral_conditioning.errors import ConfigError, RecordError, SpectralError


@contextlib.contextmanager
def atomic_file(
    path: Path, *, error: type[SpectralError] = RecordError, advice: str = "free some space and try again"
) -> Iterator[IO[bytes]]:
    """Open a neighbour of `path` for writing; flush it to the disk and rename it to `path` when the block ends well.

    A reader finds the old file or the new one and never half of one. A full disk or a folder that cannot be written
    raises `error` with `advice`; then, and when the block raises, nothing is left behind.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as cause:
        raise error(f"cannot write {path}: {cause.strerror or cause}; {advice}") from cause
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, *, error: type[SpectralError] = RecordError) -> None:
    """Write bytes to a file that is either whole or not there; raises `error` as `atomic_file` does."""
    with atomic_file(path, error=error) as file:
        file.write(content)


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """YAML's safe loader, which takes the last of two equal keys without a word, made to refuse them as YAML 1.2 asks."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, Hashable):
                if key in lines:
                    raise yaml.YAMLError(
                        f"key {key!r} in line {line} is there already, in line {lines[key]}; keep one of the two"
                    )
                lines[key] = line
        return dict(super().construct_mapping(node, deep))


def read_mapping(path: Path, *, holds: str) -> dict[Any, Any]:
    """Read a YAML file that maps names to values.

    holds: what such a file has to map, for the message. Raises ConfigError for a file that cannot be read, is no text in
    UTF-8, no YAML, empty, names a key twice, or holds anything else. A file that does not exist is the caller's to explain
    (FileNotFoundError).
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error}); save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        found = "is empty" if tree is None else f"holds {type(tree).__name__}"
        raise ConfigError(f"{path} {found}; it must map {holds}")
    return tree


def silence_stdout() -> None:
    """Send all further output nowhere: its reader (head, less) has left, and flushing at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
