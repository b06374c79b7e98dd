"""Errors meant for the user: one message that names the thing, the value found, the values allowed and the fix.

The command line prints the message alone and exits with status 1; a traceback is left for faults of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class SpectralError(Exception):
    """Base of every error that a user can mend."""

    def __str__(self) -> str:
        """Return the message alone, also when it comes from a loader's process, which wraps it in a traceback."""
        text = super().__str__()
        kind = type(self)
        return (
            text.rpartition(f"{kind.__module__}.{kind.__qualname__}: ")[2].strip()
            if text.startswith("Caught ")
            else text
        )


class ConditioningError(SpectralError):
    """A model, layout, setting or checkpoint that conditioning cannot serve. Nothing was changed."""


class ConfigError(SpectralError):
    """An unknown key, a wrong type or values that do not fit together."""


class DataError(SpectralError):
    """A data set that is missing, incomplete or corrupt."""


class RecordError(SpectralError):
    """A run folder or record that cannot be written, read or compared."""


def message_of(error: Exception) -> str:
    """Return what to tell of an error: its message, and its kind before it where nobody foresaw it."""
    return str(error) if isinstance(error, SpectralError) else f"{type(error).__name__}: {error}"


def closest(name: str, allowed: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """Return the allowed name that looks most like `name`, or None when none comes near (`likeness` 0 takes any)."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=likeness)
    return matches[0] if matches else None


# What mends a result.json, wherever it is found.
RECORD_ADVICE = "copy the file again, or move it away and repeat the run's spectral train command"


def broken_record(path: Path, reason: str) -> RecordError:
    """Return the error about a result.json that cannot be read."""
    return RecordError(f"{path}: {reason}; {RECORD_ADVICE}")


def problems_message(subject: str, problems: list[str], *, advice: str = "") -> str:
    """Join every problem found, and what mends them, into one message, so that a user mends them in one go."""
    if len(problems) == 1:
        return f"{subject}: {problems[0]}" + (f"; {advice}" if advice else "")
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{subject}: {len(problems)} problems\n{lines}" + (f"\n  To mend them: {advice}" if advice else "")


def one_line(text: str) -> str:
    """Return a message of `problems_message`, or any other, without line breaks: `2 problems: first; second`."""
    first, *points = [line.strip().removeprefix("- ") for line in text.splitlines()] or [""]
    return f"{first}: {'; '.join(points)}" if points else first
