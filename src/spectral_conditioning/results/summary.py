"""What one table holds: the arms of one experiment and configuration, their differences, and the paper's row.

All values here are in the table's unit (percent for accuracies and their like; see `metric`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spectral_conditioning.results import statistics
from spectral_conditioning.results.arms import arm_key, arm_labels, arm_order
from spectral_conditioning.results.configurations import Setting, settings_of
from spectral_conditioning.results.metric import Metric
from spectral_conditioning.results.pairing import Excluded, Pair, Pairing, flat_config
from spectral_conditioning.results.published import PublishedRow, Reference, reference_for
from spectral_conditioning.results.records import Run


@dataclass
class Arm:
    """One arm: its runs by seed, and for a conditioned arm the pairs with the baseline and what follows from them.

    Means hold the runs that learned; diverged runs and runs at chance are counted and named instead, and the median counts
    them below every value. Runs and pairs do not change once an arm is built.
    """

    label: str
    metric: Metric
    runs: list[Run]
    pairs: list[Pair] = field(default_factory=list)
    p_t_holm: float | None = None
    p_flip_holm: float | None = None
    seeds_needed: int | None = None

    @property
    def is_baseline(self) -> bool:
        return self.runs[0].is_baseline

    @cached_property
    def values(self) -> list[float]:
        return [self.metric.shown(run.value) for run in self.runs if run.learned and run.value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.mean_std(self.values)[0]

    @property
    def std(self) -> float | None:
        return statistics.mean_std(self.values)[1]

    @property
    def median(self) -> float | None:
        """Median over all seeds; a diverged run counts below every value, a run at chance with its value."""
        shown = [None if run.value is None else self.metric.shown(run.value) for run in self.runs]
        return statistics.median_with_failures(shown, sign=self.metric.sign)

    @property
    def diverged(self) -> list[Run]:
        return [run for run in self.runs if run.diverged]

    @property
    def collapsed(self) -> list[Run]:
        """Runs that ended at chance level."""
        return [run for run in self.runs if run.at_chance]

    @property
    def failures(self) -> int:
        return len(self.diverged) + len(self.collapsed)

    @cached_property
    def differences(self) -> list[float]:
        """conditioned − baseline of every pair in which both runs learned."""
        return [self.metric.shown(pair.difference) for pair in self.pairs if pair.difference is not None]

    @property
    def difference_mean(self) -> float | None:
        return statistics.mean_std(self.differences)[0]

    @property
    def difference_std(self) -> float | None:
        return statistics.mean_std(self.differences)[1]

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        return statistics.t_interval(self.differences)

    @cached_property
    def bootstrap(self) -> tuple[float, float] | None:
        return statistics.bootstrap_interval(self.differences)

    @cached_property
    def p_t(self) -> float | None:
        return statistics.paired_t_test(self.differences)

    @cached_property
    def p_flip(self) -> float | None:
        return statistics.sign_flip_test(self.differences)

    @property
    def wins(self) -> int:
        """Pairs in which the conditioned run ended better; a run that failed is behind one that learned."""
        return self.lost_to_baseline + sum(self.metric.sign * d > 0 for d in self.differences)

    @property
    def spread_known(self) -> bool:
        """True when the spread of the differences says how many seeds a gain would need.

        Failed seeds are no part of it, and a number of seeds made from the others would promise too much; nor does one same
        difference in every seed tell anything.
        """
        return len(self.differences) == len(self.pairs) and self.p_t is not None and any(self.differences)

    @property
    def lost_to_baseline(self) -> int:
        """Pairs without a difference although the arm's own run learned: the baseline's failed."""
        return sum(pair.run.learned and not pair.baseline.learned for pair in self.pairs)

    @property
    def saturated_runs(self) -> int:
        return sum(run.started_saturated for run in self.runs)

    def saturation_text(self) -> str:
        """`6 of 6 layers`; with the seeds when not all started so."""
        worst = max((run.saturation or {} for run in self.runs), key=lambda each: each.get("saturated") or 0)
        text = f"{worst.get('saturated')} of {worst.get('total')} layers"
        if self.saturated_runs == len(self.runs):
            return text
        return f"up to {text}, in {self.saturated_runs} of {len(self.runs)} seeds"

    def flags(self) -> list[str]:
        """Name every run that failed, and what a reader must know of the arm."""
        found = []
        if self.collapsed:
            seeds = _seeds(self.collapsed)
            whole = len(self.collapsed) == len(self.runs)
            found.append("at chance in every seed" if whole else f"{len(self.collapsed)} collapsed to chance ({seeds})")
        for run in self.diverged:
            found.append(
                f"seed {run.seed} diverged" + (f" at step {run.diverged_at}" if run.diverged_at is not None else "")
            )
        if self.saturated_runs:
            found.append(f"started saturated ({self.saturation_text()})")
        return found


@dataclass
class Table:
    """One experiment in one configuration, ready to be shown."""

    experiment: str
    configuration: Setting
    metric: Metric
    baseline: Arm | None
    arms: list[Arm]
    reference: Reference | None
    pairing: Pairing
    paper_known: bool = True

    @property
    def setting(self) -> str:
        """Every value in which this configuration differs from the experiment's others."""
        return self.configuration.text

    @property
    def title(self) -> str:
        return self.experiment + (f" · {self.configuration.short}" if self.setting else "")

    @property
    def all_arms(self) -> list[Arm]:
        """Baseline first."""
        return ([self.baseline] if self.baseline else []) + self.arms

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.all_arms for run in arm.runs]

    @property
    def chance(self) -> float | None:
        """Chance level in the table's unit."""
        found = next((run.chance for run in self.runs if run.chance is not None), None)
        return None if found is None else self.metric.shown(found)

    @property
    def allowed(self) -> list[str]:
        """What differs within pairs and was allowed by request."""
        return sorted({text for arm in self.arms for pair in arm.pairs for text in pair.allowed})

    def scale_text(self) -> str:
        """`0.3 M parameters, 1,297 training and 500 validation samples, 400 steps`."""
        run = self.runs[0]
        parts = []
        parameters = run.scale.get("parameters")
        if parameters:
            parts.append(f"{parameters / 1e6:.3g} M parameters")
        for name, what in (("train_samples", "training samples"), ("val_samples", "validation samples")):
            if run.scale.get(name):
                parts.append(f"{run.scale[name]:,} {what}")
        steps = sorted({each.steps for each in self.runs if not each.diverged})
        parts.append(f"{' or '.join(f'{step:,}' for step in steps)} steps" if steps else "no run ended")
        if run.tokens_seen:
            parts.append(f"{run.tokens_seen:,} tokens")
        return ", ".join(parts)

    def standing(self) -> str:
        """How these runs stand to the paper's: never a reproduction unless the scale is the paper's own."""
        if not self.paper_known:
            return "The paper's numbers (experiments/*/paper.csv) were not found: name their folder with --experiments."
        if self.reference is None:
            return f"The paper gives no number for {self.metric.name} of this experiment."
        ours = self.runs[0].scale.get("train_samples") if self.runs else None
        theirs = self.reference.rows[0].train_samples
        if self.reference.exact and ours and theirs and ours >= 0.99 * theirs:
            return "Trained on as many samples as the paper's."
        against = f" ({ours:,} training samples; the paper's: {theirs:,})" if ours and theirs else ""
        return f"Not a reproduction of the paper's figures: another scale{against}."


def build_tables(pairings: Iterable[Pairing], published: Sequence[PublishedRow]) -> list[Table]:
    """Return one table for each pairing that has pairs; those of one experiment are told apart and sorted by what varies."""
    by_experiment: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        if pairing.pairs:
            by_experiment.setdefault(pairing.experiment, []).append(pairing)
    return [
        _build_table(pairing, setting, published)
        for group in by_experiment.values()
        for pairing, setting in _by_setting(group)
    ]


def _by_setting(pairings: list[Pairing]) -> list[tuple[Pairing, Setting]]:
    """Return each pairing of an experiment with its setting, sorted by the values that differ."""
    settings = settings_of([pairing.baselines[0] for pairing in pairings])
    return sorted(zip(pairings, settings, strict=True), key=lambda pair: pair[1].order)


def _build_table(pairing: Pairing, setting: Setting, published: Sequence[PublishedRow]) -> Table:
    runs = [pair.run for pair in pairing.pairs]
    labels = arm_labels([*pairing.baselines, *runs])
    metric = pairing.pairs[0].run.metric
    baseline = Arm(labels[arm_key(pairing.baselines[0])], metric, pairing.baselines)
    by_key: dict[str, list[Pair]] = {}
    for pair in pairing.pairs:
        by_key.setdefault(arm_key(pair.run), []).append(pair)
    arms = [
        Arm(labels[key], metric, [pair.run for pair in pairs], pairs)
        for key, pairs in sorted(by_key.items(), key=lambda item: arm_order(item[1][0].run))
    ]
    model = _model_name(baseline.runs[0])
    reference = reference_for(pairing.experiment, metric, published, model=model)
    for arm, p_t, p_flip in zip(
        arms,
        statistics.holm([arm.p_t for arm in arms]),
        statistics.holm([arm.p_flip for arm in arms]),
        strict=True,
    ):
        arm.p_t_holm, arm.p_flip_holm = p_t, p_flip
        if reference and metric.percent and arm.spread_known:
            spread = arm.difference_std
            assert spread is not None
            arm.seeds_needed = statistics.seeds_needed(gain=reference.gain, spread=spread)
    return Table(pairing.experiment, setting, metric, baseline, arms, reference, pairing, paper_known=bool(published))


def excluded_runs(pairings: Iterable[Pairing]) -> tuple[list[Excluded], list[Excluded]]:
    """Return all refused and all unpaired runs."""
    pairings = list(pairings)
    return [e for p in pairings for e in p.refused], [e for p in pairings for e in p.unpaired]


def _model_name(run: Run) -> str:
    """The model's name in the resolved configuration, `task.model.name`; "" when there is none."""
    name = flat_config(run.config).get("task.model.name")
    return name if isinstance(name, str) else ""


def _seeds(runs: list[Run]) -> str:
    return f"seed{'s' if len(runs) > 1 else ''} {', '.join(str(run.seed) for run in runs)}"
