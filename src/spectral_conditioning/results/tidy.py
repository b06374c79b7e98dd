"""compare.csv (one line a run, also of those left out, broken or unfinished) and compare_arms.csv (one line an arm)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from spectral_conditioning.errors import one_line
from spectral_conditioning.results.arms import series_label
from spectral_conditioning.results.collect import Fault
from spectral_conditioning.results.pairing import Pairing
from spectral_conditioning.results.records import Run, shown_source
from spectral_conditioning.results.summary import Arm, Table

RUN_COLUMNS = [
    "experiment",
    "setting",
    "arm",
    "arm_id",
    "series",
    "lam",
    "seed",
    "status",
    "comparison",
    "reason",
    "metric",
    "mode",
    "unit",
    "value",
    "value_step",
    "rule",
    "weights",
    "difference",
    "chance",
    "at_chance",
    "steps",
    "diverged_at",
    "skipped_steps",
    "saturated_layers",
    "parameters",
    "train_samples",
    "val_samples",
    "commit",
    "source",
]
ARM_COLUMNS = [
    "experiment", "setting", "arm", "series", "lam", "metric", "mode", "unit", "seeds", "learned", "diverged", "collapsed",
    "mean", "std", "median", "pairs", "seeds_ahead", "difference", "difference_std", "interval_low", "interval_high",
    "bootstrap_low", "bootstrap_high", "p_t", "p_t_holm", "p_sign_flip", "p_sign_flip_holm", "seeds_needed", "paper",
    "paper_gain", "parameters", "train_samples", "steps",
]  # fmt: skip


def runs_csv(
    tables: Iterable[Table], pairings: Iterable[Pairing], faults: Mapping[str, Iterable[Fault]] | None = None
) -> str:
    """One line for every run; values in the record's unit (accuracies as fractions).

    faults: {status: runs without a usable record}; of those only status, reason and source are known.
    """
    lines: list[dict[str, Any]] = []
    for table in tables:
        differences = {id(pair.run): pair.difference for arm in table.arms for pair in arm.pairs}
        for arm in table.all_arms:
            for run in arm.runs:
                paired = {"arm": arm.label, "setting": table.setting, "comparison": "paired"}
                lines.append({**_run_line(run), **paired, "difference": differences.get(id(run))})
    for pairing in pairings:
        for comparison, excluded in (("refused", pairing.refused), ("unpaired", pairing.unpaired)):
            for each in excluded:
                lines.append({**_run_line(each.run), "comparison": comparison, "reason": "; ".join(each.reasons)})
    for status, found in (faults or {}).items():
        for fault in found:
            lines.append({"status": status, "reason": one_line(fault.reason), "source": shown_source(fault.source)})
    return csv_text(RUN_COLUMNS, lines)


def arms_csv(tables: Iterable[Table]) -> str:
    """One line for every arm of every table; values in the table's unit (accuracies in percent).

    interval: Student's, 95 % (from 3 pairs); bootstrap: the percentile bootstrap's (from 5).
    """
    return csv_text(ARM_COLUMNS, [_arm_line(arm, table) for table in tables for arm in table.all_arms])


def _run_line(run: Run) -> dict[str, Any]:
    return {
        "experiment": run.experiment, "setting": "", "arm": run.arm, "arm_id": run.arm_id, "series": series_label(run),
        "lam": run.lam, "seed": run.seed, "status": run.status, "metric": run.metric.name, "mode": run.metric.mode,
        "unit": "fraction" if run.metric.percent else "", "value": run.value, "value_step": run.value_step, "rule": run.rule,
        "weights": run.weights, "chance": run.chance, "at_chance": run.at_chance, "steps": run.steps,
        "diverged_at": run.diverged_at, "skipped_steps": run.skipped_steps,
        "saturated_layers": (run.saturation or {}).get("saturated"), "commit": run.code.get("commit"),
        "source": shown_source(run.source),
        **{key: run.scale.get(key) for key in ("parameters", "train_samples", "val_samples")},
    }  # fmt: skip


def _arm_line(arm: Arm, table: Table) -> dict[str, Any]:
    run = arm.runs[0]
    low, high = arm.interval or (None, None)
    bootstrap_low, bootstrap_high = arm.bootstrap or (None, None)
    return {
        "experiment": table.experiment, "setting": table.setting, "arm": arm.label, "series": series_label(run),
        "lam": run.lam, "metric": table.metric.name, "mode": table.metric.mode, "unit": table.metric.unit,
        "seeds": len(arm.runs), "learned": len(arm.values), "diverged": len(arm.diverged), "collapsed": len(arm.collapsed),
        "mean": arm.mean, "std": arm.std, "median": arm.median, "pairs": len(arm.differences),
        "seeds_ahead": arm.wins if arm.pairs else None, "difference": arm.difference_mean,
        "difference_std": arm.difference_std, "interval_low": low, "interval_high": high, "bootstrap_low": bootstrap_low,
        "bootstrap_high": bootstrap_high,
        "p_t": arm.p_t, "p_t_holm": arm.p_t_holm, "p_sign_flip": arm.p_flip, "p_sign_flip_holm": arm.p_flip_holm,
        "seeds_needed": arm.seeds_needed, "paper": table.reference.text() if table.reference else None,
        "paper_gain": table.reference.gain if table.reference else None, "parameters": run.scale.get("parameters"),
        "train_samples": run.scale.get("train_samples"), "steps": max(each.steps for each in arm.runs),
    }  # fmt: skip


def csv_text(columns: list[str], lines: list[dict[str, Any]]) -> str:
    """Return CSV with a header; numbers to eight significant digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: _cell(value) for key, value in line.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Eight significant digits: more than any metric has, and free of binary noise such as 0.30000000000000004."""
    return f"{value:.8g}" if isinstance(value, float) else value
