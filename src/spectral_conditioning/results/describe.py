"""One paragraph in plain words, made from a table's numbers: what is seen, how sure it is, and nothing more."""

from __future__ import annotations

from spectral_conditioning.results.curves import Logs, Reached, steps_to_baseline
from spectral_conditioning.results.summary import Arm, Table

# Below this many pairs the difference of an arm is not told from chance here, whatever its size.
FEW_SEEDS = 5
# A longer list of arms is cut short: the table has them all.
MOST_NAMED = 6


def describe(table: Table, logs: Logs | None = None) -> str:
    """Return the paragraph on one table. `logs` caches the runs' logs between calls."""
    logs = logs or Logs()
    sentences = [_baseline_sentence(table), *_standing_sentences(table), *_failure_sentences(table)]
    sentences += _saturation_sentences(table)
    sentences += _speed_sentences(table, logs)
    sentences += [_certainty_sentence(table), _choice_sentence(table), table.standing()]
    return " ".join(sentence for sentence in sentences if sentence)


def _baseline_sentence(table: Table) -> str:
    base = table.baseline
    assert base is not None
    where = f"{table.title}, {_seeds(len(base.runs))}"
    if base.mean is None:
        return f"{where}: no baseline run learned, so there is nothing to compare with."
    return f"{where}: the baseline ended at {_number(base, base.mean)} {table.metric.name}."


def _standing_sentences(table: Table) -> list[str]:
    """Which arms ended above, below, and level with the baseline, by the mean paired difference; largest first."""
    ranked = sorted(_gains(table), key=lambda each: -abs(each[0]))
    unit = " (in points)" if table.metric.percent else ""
    sentences = []
    for word, chosen in (
        ("Better", [arm for gain, arm in ranked if gain > 0]),
        ("Worse", [arm for gain, arm in ranked if gain < 0]),
    ):
        if chosen:
            sentences.append(
                f"{word} than the baseline by the mean paired difference{unit}: {_join([_gain(arm) for arm in chosen])}."
            )
    level = [arm.label for gain, arm in ranked if gain == 0]
    return sentences + ([f"Level to the digits shown: {_join(level)}."] if level else [])


def _gains(table: Table) -> list[tuple[float, Arm]]:
    """Return (gain, arm) of every arm with a difference, to the digits shown: an arm is not better by 0.00."""
    return [
        (table.metric.sign * round(arm.difference_mean, table.metric.digits), arm)
        for arm in table.arms
        if arm.difference_mean is not None
    ]


def _gain(arm: Arm) -> str:
    # A gain over the seeds that learned must not hide, in its own sentence, that others did not.
    failed = f"; {arm.failures} failed" if arm.failures else ""
    lost = f"; the baseline failed in {arm.lost_to_baseline}" if arm.lost_to_baseline else ""
    gain = _number(arm, abs(arm.difference_mean or 0.0), unit=False)
    return f"{arm.label} by {gain} (ahead in {arm.wins} of {_pairs(len(arm.pairs))}{failed}{lost})"


def _failure_sentences(table: Table) -> list[str]:
    sentences = []
    for arm in table.all_arms:
        whole = len(arm.runs)
        if arm.diverged:
            sentences.append(f"{len(arm.diverged)} of {whole} runs of {arm.label} diverged.")
        if arm.collapsed:
            sentences.append(f"{len(arm.collapsed)} of {whole} runs of {arm.label} ended at chance.")
    if sentences:
        sentences.append("Those runs are in no mean or difference.")
    return sentences


def _saturation_sentences(table: Table) -> list[str]:
    arms = [f"{arm.label} ({arm.saturation_text()})" for arm in table.all_arms if arm.saturated_runs]
    if not arms:
        return []
    return [
        f"Started with saturated attention (close to the identity, so almost no gradient reaches Q and K): {_join(arms)}."
    ]


def _speed_sentences(table: Table, logs: Logs) -> list[str]:
    """At which step each arm first reached the value that the baseline ended with."""
    reached = [(arm, steps_to_baseline(table, arm, logs)) for arm in table.all_arms]
    # The baseline's own step first, then the arms from the fastest.
    reached.sort(key=lambda pair: (not pair[0].is_baseline, pair[1].step or 0))
    parts = [_speed(arm, each) for arm, each in reached if each.step is not None]
    never = [arm.label for arm, each in reached if each.of and each.step is None and not arm.is_baseline]
    if not parts and not never:
        return []
    base = table.baseline
    over = "seeds" if base is None or not base.failures else "the seeds whose baseline learned"
    text = f"The baseline's final value was first reached (median over {over}) by {_join(parts)}" if parts else ""
    if never:
        text += (
            f"; never by {_join(never)}" if text else f"The baseline's final value was never reached by {_join(never)}"
        )
    return [f"{text}."]


def _speed(arm: Arm, reached: Reached) -> str:
    some = "" if reached.reached == reached.of else f" ({reached.reached} of {_runs(reached.of)})"
    who = "the baseline itself" if arm.is_baseline else arm.label
    return f"{who} at step {reached.step:,}{some}"


def _certainty_sentence(table: Table) -> str:
    pairs = [len(arm.differences) for arm in table.arms]
    if not any(pairs):
        return "No pair learned in both arms, so no difference can be stated."
    if max(pairs) < FEW_SEEDS:
        return (
            f"With at most {_pairs(max(pairs))} an arm these differences are leads, not results: "
            f"too few seeds to tell a small gain from chance."
        )
    clear = [arm for arm in table.arms if arm.p_t_holm is not None and arm.p_t_holm < 0.05]
    if not clear:
        return "After Holm's correction no difference is told from chance at the 5 % level (paired t-test)."
    return (
        "Told from chance at the 5 % level after Holm's correction (paired t-test): "
        + _join(
            [
                f"{arm.label} ({'better' if table.metric.sign * (arm.difference_mean or 0) > 0 else 'worse'})"
                for arm in clear
            ]
        )
        + "."
    )


def _choice_sentence(table: Table) -> str:
    """The best of many arms looks better than it is, where any looks better at all."""
    if len(table.arms) <= MOST_NAMED or not any(gain > 0 for gain, _ in _gains(table)):
        return ""
    return f"The best of {len(table.arms)} arms was chosen by its result, so its gain is overstated: repeat it with new seeds."


def _number(arm: Arm, value: float, *, unit: bool = True) -> str:
    return arm.metric.number(value) + (" %" if unit and arm.metric.percent else "")


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def _runs(count: int) -> str:
    return f"{count} run{'s' if count != 1 else ''}"


def _pairs(count: int) -> str:
    return f"{count} pair{'s' if count != 1 else ''}"


def _join(items: list[str]) -> str:
    """`a, b and c`; of a long list the first few and how many more there are."""
    if len(items) > MOST_NAMED:
        items = [*items[: MOST_NAMED - 1], f"{len(items) - MOST_NAMED + 1} more"]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
