"""A run's metrics.jsonl: reading it, and the curves in it.

Each line is `{"step": int, "split": str, name: number or null, …}`. A line that a crash cut off ends the file; it is left
out. After a resume a step may stand twice: the later line is the one that counts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"
Curve = list[tuple[int, float]]


class MetricLog(list[dict[str, Any]]):
    """The lines of a log, as dictionaries. damaged: how many lines are none; the end that a crash cut off does not count."""

    damaged: int = 0


def read_metric_log(folder: Path) -> MetricLog:
    """Read `folder`/metrics.jsonl; an empty log when there is none."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return MetricLog()
    found = MetricLog(line for line in _parsed(text) if isinstance(line, dict) and isinstance(line.get("step"), int))
    whole = len(text.splitlines()) - (bool(text) and not text.endswith("\n"))
    found.damaged = max(0, whole - len(found))
    return found


def _parsed(text: str) -> list[Any]:
    """Return the JSON value of each line that holds one."""
    texts = text.splitlines()
    # All lines as one array take half the time; only a log that was cut off or damaged is read line by line.
    with contextlib.suppress(json.JSONDecodeError):
        values = json.loads(f"[{','.join(texts)}]")
        if len(values) == len(texts):
            return list(values)
    values = []
    for line in texts:
        with contextlib.suppress(json.JSONDecodeError):
            values.append(json.loads(line))
    return values


def last_step(folder: Path) -> int | None:
    """Return the highest step that the log of `folder` reached, None when nothing was logged."""
    return max((line["step"] for line in read_metric_log(folder)), default=None)


def curve(lines: Iterable[dict[str, Any]], name: str) -> Curve:
    """Return [(step, value)] of the metric `split/name`, by rising step; nulls are left out."""
    split, _, key = name.partition("/")
    found: dict[int, float] = {}
    for line in lines:
        value = line.get(key)
        if line.get("split") == split and isinstance(value, (int, float)) and not isinstance(value, bool):
            found[line["step"]] = float(value)
    return sorted(found.items())


def first_step_at_least(points: Curve, target: float, *, sign: int) -> int | None:
    """Return the first step whose value is as good as `target` (sign +1: higher is better), None if none is."""
    return next((step for step, value in points if sign * (value - target) >= 0), None)
