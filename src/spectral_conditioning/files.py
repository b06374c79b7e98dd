"""Files that are whole or not there, and YAML files of ours."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
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


def read_mapping(path: Path, *, holds: str) -> dict[Any, Any]:
    """Read a YAML file that maps names to values.

    holds: what such a file has to map, for the message. Raises ConfigError for a file that cannot be read, is no text in
    UTF-8, no YAML, empty, or holds anything else. A file that does not exist is the caller's to explain (FileNotFoundError).
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error}); save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        found = "is empty" if tree is None else f"holds {type(tree).__name__}"
        raise ConfigError(f"{path} {found}; it must map {holds}")
    return tree


def silence_stdout() -> None:
    """Send all further output nowhere: its reader (head, less) has left, and flushing at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
