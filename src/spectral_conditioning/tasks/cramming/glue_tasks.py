"""The table of GLUE tasks: columns, labels and metrics, as in Wang et al. (2019) and the files distributed with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

NLI = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task.

    folder: name of its folder in GLUE's distribution. sentences: one or two text columns, as (names in TSV headers and tables).
    label: names of the label column. labels: class names in the order of their ids in the published tables, () for a
    regression. metric: the number that GLUE counts; others are logged beside it. header: the columns where a labelled
    file has no header line. validation: part → file stem or split.
    """

    folder: str
    sentences: tuple[tuple[str, ...], ...]
    label: tuple[str, ...]
    labels: tuple[str, ...]
    metric: str
    others: tuple[str, ...] = ()
    header: tuple[str, ...] | None = None
    validation: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: {"": ("dev", "validation")})

    @property
    def outputs(self) -> int:
        """Size of the prediction head: a class each, or one number."""
        return len(self.labels) or 1

    @property
    def regression(self) -> bool:
        """Whether labels are scores."""
        return not self.labels


GLUE_TASKS: dict[str, GlueTask] = {
    "cola": GlueTask(
        folder="CoLA",
        sentences=(("sentence",),),
        label=("label",),
        labels=("unacceptable", "acceptable"),
        metric="matthews",
        others=("accuracy",),
        header=("source", "label", "star", "sentence"),
    ),
    "sst2": GlueTask(
        folder="SST-2",
        sentences=(("sentence",),),
        label=("label",),
        labels=("negative", "positive"),
        metric="accuracy",
    ),
    "mrpc": GlueTask(
        folder="MRPC",
        sentences=(("#1 String", "sentence1"), ("#2 String", "sentence2")),
        label=("Quality", "label"),
        labels=("not_equivalent", "equivalent"),
        metric="f1",
        others=("accuracy",),
    ),
    "stsb": GlueTask(
        folder="STS-B",
        sentences=(("sentence1",), ("sentence2",)),
        label=("score", "label"),
        labels=(),
        metric="pearson",
        others=("spearman",),
    ),
    "qqp": GlueTask(
        folder="QQP",
        sentences=(("question1",), ("question2",)),
        label=("is_duplicate", "label"),
        labels=("not_duplicate", "duplicate"),
        metric="f1",
        others=("accuracy",),
    ),
    "mnli": GlueTask(
        folder="MNLI",
        sentences=(("sentence1", "premise"), ("sentence2", "hypothesis")),
        label=("gold_label", "label"),
        labels=NLI,
        metric="accuracy",
        validation={
            "": ("dev_matched", "validation_matched", "dev", "validation"),
            "mismatched": ("dev_mismatched", "validation_mismatched"),
        },
    ),
    "qnli": GlueTask(
        folder="QNLI",
        sentences=(("question",), ("sentence",)),
        label=("label",),
        labels=ENTAILMENT,
        metric="accuracy",
    ),
    "rte": GlueTask(
        folder="RTE",
        sentences=(("sentence1", "premise"), ("sentence2", "hypothesis")),
        label=("label",),
        labels=ENTAILMENT,
        metric="accuracy",
    ),
}

# The nine numbers of the published average (MNLI counts twice) and the eight without the mismatched part: (task, metric).
NINE: tuple[tuple[str, str], ...] = (
    ("cola", "matthews"),
    ("sst2", "accuracy"),
    ("mrpc", "f1"),
    ("stsb", "pearson"),
    ("qqp", "f1"),
    ("mnli", "accuracy"),
    ("mnli", "mismatched_accuracy"),
    ("qnli", "accuracy"),
    ("rte", "accuracy"),
)
EIGHT = tuple(entry for entry in NINE if entry[1] != "mismatched_accuracy")
