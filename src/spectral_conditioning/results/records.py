"""One run's record (`result.json`, schema 1) read into a checked `Run`.

Anything that a table would have to guess is an error here: a missing key, a wrong type, a value that cannot be the
metric it claims to be. Values are those of the checkpoint that the run tested (`primary`), never the log's last or best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import RECORD_ADVICE, RecordError, broken_record, problems_message
from spectral_conditioning.results.metric import Metric, is_fraction

SCHEMA = 1
HASHES = ("initial_weights", "order", "data", "pair")
SCALE = ("parameters", "train_samples", "val_samples")
LogLines = list[dict[str, Any]]

# (dotted key, allowed types). A key that ends in "?" may be absent or null.
_NUMBER = (int, float)
_FIELDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("status", (str,)),
    ("experiment", (str,)),
    ("arm", (str,)),
    ("arm_id", (str,)),
    ("seed", (int,)),
    ("conditioning?", (dict,)),
    ("conditioning.correction?", (str,)),
    ("conditioning.placement?", (str,)),
    ("conditioning.targets?", (list,)),
    ("lam", _NUMBER),
    ("steps", (int,)),
    ("metrics", (dict,)),
    ("primary", (dict,)),
    ("primary.name", (str,)),
    ("primary.mode", (str,)),
    ("primary.value?", _NUMBER),
    ("primary.step?", (int,)),
    ("primary.weights", (str,)),
    ("primary.rule", (str,)),
    ("hashes", (dict,)),
    *((f"hashes.{name}?", (str,)) for name in HASHES),
    ("chance?", _NUMBER),
    ("samples_seen?", (int,)),
    ("tokens_seen?", (int,)),
    ("projections?", (int,)),
    ("saturation?", (dict,)),
    ("saturation.saturated?", (int,)),
    ("saturation.total?", (int,)),
    ("diverged_at?", (int,)),
    ("skipped_steps?", (int,)),
    ("scale?", (dict,)),
    *((f"scale.{name}?", (int,)) for name in SCALE),
    ("config?", (dict,)),
    ("versions?", (dict,)),
    ("code?", (dict,)),
    ("code.sources?", (str,)),
    ("code.commit?", (str,)),
    ("machine?", (dict,)),
    ("seconds?", (dict,)),
)


@dataclass(frozen=True)
class Run:
    """A checked record. `value` is the primary metric at the tested checkpoint, None when the run diverged."""

    source: str
    experiment: str
    arm: str
    arm_id: str
    seed: int
    conditioning: Mapping[str, Any] | None
    lam: float
    status: str
    metric: Metric
    value: float | None
    value_step: int | None
    weights: str
    rule: str
    steps: int
    chance: float | None = None
    samples_seen: int | None = None
    tokens_seen: int | None = None
    projections: int = 0
    skipped_steps: int = 0
    diverged_at: int | None = None
    saturation: Mapping[str, Any] | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    hashes: Mapping[str, str | None] = field(default_factory=dict)
    scale: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, Any] = field(default_factory=dict)
    read_log: Callable[[], LogLines] = field(default=list, repr=False, compare=False)

    @property
    def is_baseline(self) -> bool:
        return self.conditioning is None or self.lam == 0

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    @property
    def started_saturated(self) -> bool:
        return bool(self.saturation and self.saturation.get("saturated"))

    @cached_property
    def at_chance(self) -> bool:
        """True when the tested value cannot be told from a constant predictor's (see `chance_margin`)."""
        if self.value is None or self.chance is None:
            return False
        return self.metric.sign * (self.value - self.chance) <= chance_margin(self)

    @property
    def learned(self) -> bool:
        """True when the value may enter a mean: the run ended and stands above chance."""
        return self.value is not None and not self.at_chance


def shown_source(source: str) -> str:
    """Return a folder as seen from the working folder, so that what is written says nothing about the machine it was made on."""
    try:
        return str(Path(source).relative_to(Path.cwd()))
    except ValueError:
        return source


def chance_margin(run: Run) -> float:
    """Return how far above chance c a run must end to count as having learned.

    Accuracies on n validation samples: three standard errors of a constant predictor, 3·√(c(1−c)/n). Other fractions, or n
    unknown: 0.01. Losses: 1 % of the constant predictor's loss.
    """
    if run.chance is None:
        return 0.0
    if not run.metric.percent:
        return 0.01 * abs(run.chance)
    samples = run.scale.get("val_samples")
    if not run.metric.name.lower().endswith("accuracy") or not samples:
        return 0.01
    return max(0.01, 3 * math.sqrt(max(run.chance * (1 - run.chance), 0.0) / samples))


def run_from_record(
    record: Any,
    *,
    source: str,
    read_log: Callable[[], LogLines] = list,
    advice: str = "leave this run out, or repeat its spectral train command",
) -> Run:
    """Check one record and return it as a `Run`.

    Raises RecordError that lists every fault of the record at once and ends with `advice`.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{source}: the record is a {type(record).__name__}, expected a JSON object; {advice}")
    if record.get("schema") != SCHEMA:
        raise RecordError(
            f"{source}: record schema {record.get('schema')!r}; this version reads schema {SCHEMA}. Compare with the version "
            f"of spectral-conditioning that wrote it, or {advice}"
        )
    problems = _type_problems(record) or _value_problems(record)
    if problems:
        raise RecordError(problems_message(source, problems, advice=advice))
    primary = record["primary"]
    diverged = record["status"] == "diverged"
    return Run(
        source=source,
        experiment=record["experiment"],
        arm=record["arm"],
        arm_id=record["arm_id"],
        seed=record["seed"],
        conditioning=record.get("conditioning"),
        lam=float(record["lam"]),
        status=record["status"],
        metric=Metric(primary["name"], primary["mode"]),
        # A diverged run may have tested an earlier checkpoint; that number is not this arm's result.
        value=None if diverged else float(primary["value"]),
        value_step=primary.get("step"),
        weights=primary["weights"],
        rule=primary["rule"],
        steps=record["steps"],
        chance=record.get("chance"),
        samples_seen=record.get("samples_seen"),
        tokens_seen=record.get("tokens_seen"),
        projections=record.get("projections") or 0,
        skipped_steps=record.get("skipped_steps") or 0,
        diverged_at=record.get("diverged_at"),
        saturation=record.get("saturation"),
        metrics=record["metrics"],
        hashes=record["hashes"],
        **{key: record.get(key) or {} for key in ("scale", "config", "versions", "code", "machine", "seconds")},
        read_log=read_log,
    )


def read_record(path: Path) -> Run:
    """Read and check `path` (a result.json). Raises RecordError when it is half-written, broken or of another schema."""
    try:
        text = path.read_text(encoding="utf-8")
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise broken_record(path, f"is not complete JSON ({error})" if text.strip() else "is empty") from error
    except (OSError, UnicodeDecodeError) as error:
        raise broken_record(path, f"cannot be read ({error})") from error
    from spectral_conditioning.results.metric_log import read_metric_log

    return run_from_record(
        record, source=str(path.parent), read_log=lambda: read_metric_log(path.parent), advice=RECORD_ADVICE
    )


def _type_problems(record: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    faulty: set[str] = set()  # of a key that is wrong itself, the keys inside need no word
    for dotted, types in _FIELDS:
        name, optional = dotted.removesuffix("?"), dotted.endswith("?")
        if name.rpartition(".")[0] in faulty:
            continue
        value: Any = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None and optional:
            continue
        expected = " or ".join(kind.__name__ for kind in types)
        if value is None:
            problems.append(f"key '{name}' is missing (expected {expected})")
        elif not isinstance(value, types) or isinstance(value, bool):
            problems.append(f"key '{name}' is {value!r}, expected {expected}")
        else:
            continue
        faulty.add(name)
    return problems


def _value_problems(record: dict[str, Any]) -> list[str]:
    problems = []
    status, primary, value = record["status"], record["primary"], record["primary"].get("value")
    if status not in ("finished", "diverged"):
        problems.append(f"status {status!r}; allowed: finished, diverged")
    if primary["mode"] not in ("max", "min"):
        problems.append(f"primary.mode {primary['mode']!r}; allowed: max, min")
    if not math.isfinite(record["lam"]):
        problems.append(f"lam {record['lam']!r} is not finite")
    if record.get("conditioning") is None and record["lam"] != 0:
        problems.append(f"lam {record['lam']!r} without conditioning settings; a baseline has lam 0")
    if status == "finished" and (value is None or not math.isfinite(value)):
        problems.append(f"status is finished but {primary['name']} is {value!r}")
    elif value is not None and is_fraction(primary["name"]) and not -1 <= value <= 1:
        problems.append(f"{primary['name']} is {value!r}; records hold it as a fraction between -1 and 1")
    return problems + _chance_problems(record) + _content_problems(record)


def _chance_problems(record: dict[str, Any]) -> list[str]:
    chance, name = record.get("chance"), record["primary"]["name"]
    if chance is None:
        return []
    if not math.isfinite(chance):
        return [f"chance is {chance!r}, expected a finite number, or null where it is not known"]
    if is_fraction(name) and not -1 <= chance <= 1:
        return [f"chance is {chance!r}; that of {name} is a fraction between -1 and 1"]
    return []


def _content_problems(record: dict[str, Any]) -> list[str]:
    """Check what stands inside scale, metrics and the conditioning's settings."""
    scale = record.get("scale") or {}
    problems = [
        f"scale.{name} is {scale[name]!r}; it must be at least 0" for name in SCALE if (scale.get(name) or 0) < 0
    ]
    for name, value in record["metrics"].items():
        if value is not None and (not isinstance(value, _NUMBER) or isinstance(value, bool)):
            problems.append(f"metrics.{name} is {value!r}, expected a number or null")
    targets = (record.get("conditioning") or {}).get("targets") or []
    if not all(isinstance(target, str) for target in targets):
        problems.append(f"conditioning.targets is {targets!r}, expected names such as q, k, v")
    return problems
