"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from spectral_conditioning.errors import RecordError, SpectralError


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
