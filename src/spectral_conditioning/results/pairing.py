"""Which runs may be compared: pairs of a baseline and a conditioned run of one experiment, seed and configuration.

A pair is refused when anything but the conditioning differs: start weights, sample order, data, configuration, steps, code,
library versions, or the way the tested checkpoint was chosen. Each reason has a name; naming it in `allow` compares the pair all
the same, and the table says so. A run without a partner is `unpaired`; neither it nor a refused run enters any mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spectral_conditioning.errors import RecordError, closest
from spectral_conditioning.results.arms import arm_key, arm_order
from spectral_conditioning.results.records import Run, shown_source
from spectral_conditioning.training.machine_keys import MACHINE_KEYS

_MAY_VARY = frozenset(["conditioning", "seed"])
_NOT_RECORDED = ": not recorded, so equality cannot be checked"


def _hash_difference(name: str) -> Callable[[Run, Run], str | None]:
    def difference(base: Run, run: Run) -> str | None:
        a, b = base.hashes.get(name), run.hashes.get(name)
        if not a or not b:
            return f"{name.replace('_', ' ')}{_NOT_RECORDED}"
        return None if a == b else f"{name.replace('_', ' ')} differ ({a[:8]} | {b[:8]})"

    return difference


def _order_difference(base: Run, run: Run) -> str | None:
    """The hash covers the batches a run has trained on, so that of a run which diverged ends early.

    Which samples come when follows from data, configuration and seed; those are compared, and each run checked its own batches.
    """
    difference = _hash_difference("order")(base, run)
    stopped_early = (base.diverged or run.diverged) and base.hashes.get("order") and run.hashes.get("order")
    return None if stopped_early else difference


def _pair_difference(base: Run, run: Run) -> str | None:
    a, b = base.hashes.get("pair"), run.hashes.get("pair")
    if not a or not b:
        return f"configuration hash{_NOT_RECORDED}"
    if a == b:
        return None
    changed = config_differences(base.config, run.config)
    return (
        "configuration differs: "
        + (", ".join(changed[:4]) or f"hash {a[:8]} | {b[:8]}")
        + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
    )


def _amount_difference(base: Run, run: Run) -> str | None:
    if base.diverged or run.diverged:  # a diverged run stopped early by its nature
        return None
    for name in ("steps", "samples_seen", "tokens_seen"):
        a, b = getattr(base, name), getattr(run, name)
        if a != b:
            return f"{name.replace('_', ' ')} differ ({a} | {b})"
    return None


def _code_difference(base: Run, run: Run) -> str | None:
    """The hash of the sources decides where both records have it, else the commit."""
    name = "sources" if base.code.get("sources") and run.code.get("sources") else "commit"
    a, b = base.code.get(name), run.code.get(name)
    return None if a == b else f"code differs ({name} {str(a)[:8]} | {str(b)[:8]})"


def _version_difference(base: Run, run: Run) -> str | None:
    names = sorted(set(base.versions) | set(run.versions))
    changed = [
        f"{name} {base.versions.get(name)} | {run.versions.get(name)}"
        for name in names
        if base.versions.get(name) != run.versions.get(name)
    ]
    return f"versions differ ({', '.join(changed)})" if changed else None


def _checkpoint_difference(base: Run, run: Run) -> str | None:
    a, b = f"{base.rule} {base.weights}", f"{run.rule} {run.weights}"
    return None if a == b else f"tested checkpoint differs ({a} weights | {b} weights)"


REASONS: Mapping[str, Callable[[Run, Run], str | None]] = {
    "initial_weights": _hash_difference("initial_weights"),
    "order": _order_difference,
    "data": _hash_difference("data"),
    "pair": _pair_difference,
    "steps": _amount_difference,
    "code": _code_difference,
    "versions": _version_difference,
    "checkpoint": _checkpoint_difference,
}


@dataclass(frozen=True)
class Pair:
    """Two comparable runs of one seed. `allowed` holds what differs but was allowed by request."""

    baseline: Run
    run: Run
    allowed: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """conditioned − baseline in the record's unit; None unless both runs learned."""
        if not (self.baseline.learned and self.run.learned):
            return None
        assert self.baseline.value is not None
        assert self.run.value is not None
        return self.run.value - self.baseline.value


@dataclass(frozen=True)
class Excluded:
    """A run that enters no mean, and every reason why."""

    run: Run
    reasons: tuple[str, ...]


@dataclass
class Pairing:
    """All pairs of one experiment and configuration, and the runs left out."""

    experiment: str
    pairs: list[Pair] = field(default_factory=list)
    refused: list[Excluded] = field(default_factory=list)
    unpaired: list[Excluded] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def baselines(self) -> list[Run]:
        """Every baseline run that has a partner, by seed."""
        return sorted({id(p.baseline): p.baseline for p in self.pairs}.values(), key=lambda run: run.seed)


def pair_runs(runs: Iterable[Run], *, allow: Collection[str] = ()) -> list[Pairing]:
    """Pair `runs` by experiment, configuration and seed; one `Pairing` for each experiment and configuration.

    Raises RecordError for an unknown reason in `allow`.
    """
    for name in allow:
        if name not in REASONS:
            hint = closest(name, REASONS)
            raise RecordError(
                f"unknown reason {name!r} to allow; allowed: {', '.join(REASONS)}"
                + (f". Closest: {hint}" if hint else "")
            )
    by_experiment: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_experiment[run.experiment].append(run)
    return [
        pairing
        for experiment in sorted(by_experiment)
        for pairing in _pair_experiment(experiment, by_experiment[experiment], allow)
    ]


def _pair_experiment(experiment: str, runs: list[Run], allow: Collection[str]) -> Iterator[Pairing]:
    runs, ambiguous, warnings = _without_repeats(runs)
    baselines: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.is_baseline:
            baselines[run.seed, _group(run)].append(run)
    pairings: dict[str, Pairing] = {}

    def pairing_of(group: str) -> Pairing:
        return pairings.setdefault(group, Pairing(experiment))

    used: set[int] = set()
    for run in sorted((r for r in runs if not r.is_baseline), key=lambda r: (arm_order(r), r.seed)):
        base = _partner(run, baselines)
        if base is None:
            why = f"no baseline run of {experiment} with seed {run.seed}"
            pairing_of(_group(run)).unpaired.append(Excluded(run, (why,)))
            continue
        found = {name: text for name, check in REASONS.items() if (text := check(base, run)) is not None}
        refusals = _refusals({name: text for name, text in found.items() if name not in allow}, base, run)
        if base.metric != run.metric:
            a, b = base.metric, run.metric
            names = (a.name, b.name) if a.name != b.name else (a.direction, b.direction)
            refusals.append(f"primary metric differs ({' | '.join(names)})")
        target = pairing_of(_group(base))
        if refusals:
            target.refused.append(Excluded(run, tuple(refusals)))
            continue
        used.add(id(base))
        target.pairs.append(Pair(base, run, tuple(found[name] for name in REASONS if name in found)))
    for run in runs:
        if run.is_baseline and id(run) not in used:
            pairing_of(_group(run)).unpaired.append(
                Excluded(run, (f"no comparable conditioned run with seed {run.seed}",))
            )
    for excluded in ambiguous:
        pairing_of(_group(excluded.run)).refused.append(excluded)
    for group in sorted(pairings, key=lambda g: (not pairings[g].pairs, g)):
        pairings[group].warnings = [*warnings, *_warnings(pairings[group])]
        yield pairings[group]


def _refusals(found: dict[str, str], base: Run, run: Run) -> list[str]:
    """Return each reason once, behind it the names that `allow` takes: hashes without a record together, steps with their key."""
    missing = {name: text.removesuffix(_NOT_RECORDED) for name, text in found.items() if text.endswith(_NOT_RECORDED)}
    said = {**found, **dict.fromkeys(missing, ", ".join(missing.values()) + _NOT_RECORDED)}
    if "steps" in said and f" {base.steps} | {run.steps}" in said.get("pair", ""):
        said["steps"] = said["pair"]
    names: dict[str, list[str]] = defaultdict(list)
    for name, text in said.items():
        names[text].append(name)
    return [f"{text} [{', '.join(named)}]" for text, named in names.items()]


def _group(run: Run) -> str:
    return run.hashes.get("pair") or "not recorded"


def _partner(run: Run, baselines: Mapping[tuple[int, str], list[Run]]) -> Run | None:
    """The baseline of the same configuration, else the one of the same seed that differs in the fewest ways."""
    same = baselines.get((run.seed, _group(run)))
    if same:
        return same[0]
    others = [base for (seed, _), group in baselines.items() if seed == run.seed for base in group]
    return min(others, key=lambda base: len(config_differences(base.config, run.config)), default=None)


def _without_repeats(runs: list[Run]) -> tuple[list[Run], list[Excluded], list[str]]:
    """Count a run that was recorded twice with one result once; leave out both when the results differ."""
    by_identity: dict[tuple[str, int, str], list[Run]] = defaultdict(list)
    for run in runs:
        by_identity[arm_key(run), run.seed, _group(run)].append(run)
    kept, ambiguous, warnings = [], [], []
    for same in by_identity.values():
        outcomes = {(run.metric, run.value, run.value_step, run.diverged) for run in same}
        if len(outcomes) == 1:
            kept.append(same[0])
            if len(same) > 1:
                warnings.append(
                    f"{same[0].arm}, seed {same[0].seed}: {len(same)} records with one result, counted once "
                    f"({', '.join(shown_source(run.source) for run in same)})"
                )
            continue
        folders = ", ".join(shown_source(run.source) for run in same)
        reason = f"{len(same)} records of this arm and seed disagree: {folders}. Compare one of them."
        ambiguous += [Excluded(run, (reason,)) for run in same]
    return kept, ambiguous, warnings


def _warnings(pairing: Pairing) -> list[str]:
    runs = [*pairing.baselines, *(pair.run for pair in pairing.pairs)]
    found = []
    unhashed = [run for run in runs if not run.code.get("sources")]
    if any(run.code.get("dirty") for run in unhashed):
        found.append("some runs used code with uncommitted changes: equal commits do not prove equal code")
    if any(not run.code.get("commit") for run in unhashed):
        found.append("some runs recorded neither sources nor commit: only the installed versions could be compared")
    skipped = [run for run in runs if run.skipped_steps]
    if skipped:
        named = ", ".join(f"{run.arm} seed {run.seed}: {run.skipped_steps}" for run in skipped)
        found.append(f"steps skipped by the gradient scaler ({named})")
    return found


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return {dotted name: value} of a resolved configuration without what the arms of a pair may vary.

    Nor does it hold `MACHINE_KEYS`: a run made elsewhere, or with fewer spectra logged, computed the same.
    """
    ignored = {*_MAY_VARY, *MACHINE_KEYS}
    return {name: value for name, value in _flat(config) if name not in ignored and name.split(".")[0] not in ignored}


def config_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return `name a | b` for every value in which two resolved configurations differ."""
    flat_a, flat_b = flat_config(a), flat_config(b)
    names = sorted(set(flat_a) | set(flat_b))
    return [f"{name} {flat_a.get(name)} | {flat_b.get(name)}" for name in names if flat_a.get(name) != flat_b.get(name)]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
