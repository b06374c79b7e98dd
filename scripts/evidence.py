"""The README's tables of recorded small runs, made from the results.csv files under experiments/."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from pathlib import Path

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
DIGITS = EXPERIMENTS / "ablations" / "digits"
# What is shown, experiment, its results below experiments/, unit, factor.
RECORDED = (
    ("Digits, ViT", "imagenet/small", "ablations/digits/lambda", "accuracy, %", 100),
    ("Flowers 64 px, ViT", "imagenet/flowers", "imagenet/flowers", "accuracy, %", 100),
    ("ListOps, Nyströmformer", "lra/small_listops", "lra/small", "accuracy, %", 100),
    ("Digits as pixels, Nyströmformer", "lra/small_image", "lra/small", "accuracy, %", 100),
    ("Nuclei, Mask R-CNN, XCiT", "coco/small", "coco/nuclei", "box AP", 100),
    ("Masked LM, crammed BERT", "cramming/small_pretrain", "cramming/small", "loss, nats (lower is better)", 1),
)
# Column → the first of these arms that an experiment has.
ARMS = {
    "λ=10 on Q, K, V": ("identity-10",),
    # Fused on a stacked qkv weight is Q alone; crammed BERT's interleaved weight has an arm of its own for Q.
    "λ=10 on Q alone": ("identity-10-q", "identity-10-fused"),
    "Theorem 3.5": ("polar-1",),
}
SERIES = {
    "full: λI on each of W_Q, W_K, W_V": "identity (full, qkv)",
    "per head": "identity (per_head, qkv)",
    "fused: λI on the stored qkv weight": "identity (fused, qkv)",
}
Row = dict[str, str]


def rows(folder: str, experiment: str, setting: str | None = "") -> list[Row]:
    """Return the rows of an experiment in `folder`/results.csv, of one setting (None: of all)."""
    with open(EXPERIMENTS / folder / "results.csv", newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["experiment"] == experiment]
    return [row for row in found if setting is None or row["setting"] == setting]


def failed(row: Row) -> bool:
    """True for a run that diverged or ended at chance."""
    return row["status"] != "finished" or row["at_chance"] == "True"


def median(arm: list[Row], factor: float, digits: int) -> str:
    """Return the median over all seeds, with the number of runs at chance or diverged behind it."""
    values = [factor * float(row["value"]) for row in arm if row["value"]]
    lost = sum(map(failed, arm))
    return (f"{statistics.median(values):.{digits}f}" if values else "–") + (f" ({lost} failed)" if lost else "")


def difference(arm: list[Row], baseline: list[Row], factor: float, digits: int) -> str:
    """Return the median over seeds of arm − baseline, all seeds counted, and how many seeds had the better sign."""
    base = {row["seed"]: float(row["value"]) for row in baseline if row["value"]}
    pairs = [factor * (float(row["value"]) - base[row["seed"]]) for row in arm if row["value"] and row["seed"] in base]
    better = sum((pair > 0) == (arm[0]["mode"] == "max") and pair != 0 for pair in pairs)
    sign = f"{statistics.median(pairs):+.{digits}f}".replace("-", "−")
    lost = sum(map(failed, arm))
    return f"{sign}, {better} of {len(pairs)}" + (f" ({lost} failed)" if lost else "")


def table(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    header = list(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *map(list, lines)])


def lambda_table() -> str:
    """Return digits over λ and placement, the median of every arm's seeds."""
    found = rows("ablations/digits/lambda", "imagenet/small")
    lams = sorted({float(row["lam"]) for row in found if row["series"] in SERIES.values()})
    lines = []
    for name, series in SERIES.items():
        cells = [[r for r in found if r["series"] == series and float(r["lam"]) == lam] for lam in lams]
        lines.append([name, *(median(cell, 100, 1) for cell in cells)])
    others = [
        f"{name} {median([r for r in found if r['arm_id'] == arm], 100, 1)}"
        for name, arm in (("Baseline", "none"), ("Theorem 3.5 once", "polar-1"), ("at every step", "polar-1-every1"))
    ]
    counts = {row["arm"]: len({r["seed"] for r in found if r["arm"] == row["arm"]}) for row in found}
    most = max(counts.values())
    rest = sorted({count for count in counts.values() if count < most})
    named = f" for {', '.join(arm for arm, count in counts.items() if count == most)}" if rest else " in every arm"
    fewer = f"; {' or '.join(map(str, rest))} for the rest" if rest else ""
    return (
        table(["digits, accuracy %", *(f"λ={lam:g}" for lam in lams)], lines)
        + f"\n\nMedian over seeds, failed runs (at chance or diverged) counted. {', '.join(others)}. Seeds: {most}"
        f"{named}{fewer}."
    )


def tasks_table() -> str:
    """Return one line per recorded small experiment: the baseline, and each conditioned arm's paired difference."""
    lines = []
    for title, experiment, folder, unit, factor in RECORDED:
        found = rows(folder, experiment)
        digits = 2 if factor == 1 else 1
        arm = {key: [row for row in found if row["arm_id"] == key] for key in {row["arm_id"] for row in found}}
        cells = [next((arm[key] for key in keys if key in arm), []) for keys in ARMS.values()]
        lines.append([
            title, unit, f"{median(arm['none'], factor, digits)} ({len(arm['none'])})",
            *(difference(cell, arm["none"], factor, digits) if cell else "–" for cell in cells),
        ])  # fmt: skip
    return table(["recorded here", "metric", "baseline (seeds)", *ARMS], lines)


def block() -> str:
    """Return the README's block of recorded evidence."""
    picture = (DIGITS / "lambda" / "lambda.png").relative_to(EXPERIMENTS.parent)
    return f"{tasks_table()}\n\n{lambda_table()}\n\n![Accuracy on digits over λ]({picture})"
