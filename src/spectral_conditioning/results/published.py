"""The paper's numbers (experiments/<family>/paper.csv) and which of them stand beside which of our experiments."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.metric import Metric, leaf

COLUMNS = ["family", "row", "metric", "arm", "value", "std", "seeds", "source", "note"]
# Our metric names that mean one of paper.csv's.
_ALIASES = {
    "top1": "accuracy",
    "acc": "accuracy",
    "mcc": "matthews",
    "bbox_map": "ap_box",
    "bbox_map_50": "ap_box_50",
    "segm_map": "ap_mask",
    "map": "ap_box",
}


@dataclass(frozen=True)
class PublishedRow:
    """One line of a paper's table: baseline → conditioned, in percent, means over `seeds` seeds."""

    family: str
    row: str
    metric: str
    baseline: float
    baseline_std: float | None
    conditioned: float
    conditioned_std: float | None
    seeds: int | None
    train_samples: int | None

    @property
    def gain(self) -> float:
        return self.conditioned - self.baseline

    def text(self) -> str:
        """`ViT-B accuracy 80.7 ± 0.41 → 81.7 ± 0.38 (+1.0)`."""
        before = f"{self.baseline:g}" + (f" ± {self.baseline_std:g}" if self.baseline_std else "")
        after = f"{self.conditioned:g}" + (f" ± {self.conditioned_std:g}" if self.conditioned_std else "")
        return f"{self.row} {self.metric} {before} → {after} ({self.gain:+.1f})"


@dataclass(frozen=True)
class Reference:
    """What of the paper stands beside one experiment: one row, or all rows of its family when none is its own."""

    rows: tuple[PublishedRow, ...]
    exact: bool

    @property
    def gain(self) -> float:
        """The paper's gain in percentage points; over a family, the mean of its rows."""
        return sum(row.gain for row in self.rows) / len(self.rows)

    def heading(self) -> str:
        """Say how the rows relate to the experiment."""
        if self.exact:
            return "The paper's row"
        return "The paper's nearest row" if len(self.rows) == 1 else "The paper's rows of this family"

    def text(self) -> str:
        """Every row, and the mean gain over several."""
        rows = "; ".join(row.text() for row in self.rows)
        mean = "" if len(self.rows) == 1 else f"; mean gain {self.gain:+.2f}"
        return f"{rows}{mean}"


def experiments_folder() -> Path | None:
    """Return the folder of paper.csv files: inside the installed package, else the repository that holds these sources."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "experiments", package.parents[1] / "experiments")
    return next((path for path in candidates if any(path.glob("*/paper.csv"))), None)


def read_published(folder: Path | None = None) -> list[PublishedRow]:
    """Read every paper.csv below `folder`; rows that lack one of the two arms are left out. [] when there is no folder.

    Raises RecordError when a file has other columns or a number that is none.
    """
    folder = folder or experiments_folder()
    if folder is None:
        return []
    rows: list[PublishedRow] = []
    for path in sorted(folder.glob("*/paper.csv")):
        rows += _rows_of(path)
    return rows


def reference_for(
    experiment: str, metric: Metric, published: Sequence[PublishedRow], *, model: str = ""
) -> Reference | None:
    """Return the paper's row for `family/name`, or the family's rows, of the same metric; None when there is none.

    A row is an experiment's own when the experiment's name holds it (`ViT-B` ↔ imagenet/vit_b, `ListOps` ↔
    lra/listops_small).
    """
    family, _, name = experiment.partition("/")
    own = leaf(metric.name).lower()
    wanted = _ALIASES.get(own, own)
    same = [row for row in published if row.family == family and row.metric.lower() == wanted]
    exact = [row for row in same if _names_row(name, row.row)]
    if exact:
        return Reference((exact[0],), exact=True)
    near = [row for row in same if model and _words(model)[0] == _words(row.row)[0]]
    chosen = near or same
    return Reference(tuple(chosen), exact=False) if chosen else None


def _rows_of(path: Path) -> list[PublishedRow]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise RecordError(f"{path}: columns {reader.fieldnames}, expected {COLUMNS}")
        lines = list(reader)
    samples = {line["row"]: int(line["value"]) for line in lines if line["metric"] == "train_samples"}
    cells = {(line["row"], line["metric"], line["arm"]): line for line in lines}
    rows = []
    for (row, metric, arm), line in cells.items():
        other = cells.get((row, metric, "conditioned"))
        if arm != "baseline" or other is None or not line["value"] or not other["value"]:
            continue
        try:
            rows.append(
                PublishedRow(
                    family=line["family"],
                    row=row,
                    metric=metric,
                    baseline=float(line["value"]),
                    baseline_std=float(line["std"]) if line["std"] else None,
                    conditioned=float(other["value"]),
                    conditioned_std=float(other["std"]) if other["std"] else None,
                    seeds=int(other["seeds"]) if other["seeds"] else None,
                    train_samples=samples.get(row, samples.get("*")),
                )
            )
        except ValueError as error:
            raise RecordError(f"{path}: row {row!r}, metric {metric!r}: {error}") from error
    return rows


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower()) or [""]


def _names_row(name: str, row: str) -> bool:
    """True when neighbouring words of an experiment's name are the row's name, or its end of two words or more.

    `listops_small` and `skyformer_listops` name ListOps, `sst2` SST-2, `xcit_s` Mask R-CNN XCiT-S; `vit_base` names no ViT-B.
    """
    words, wanted = _words(name), _words(row)
    parts = {"".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, len(words) + 1)}
    ends = {"".join(wanted[start:]) for start in range(len(wanted)) if start == 0 or len(wanted) - start > 1}
    return bool(parts & ends)
