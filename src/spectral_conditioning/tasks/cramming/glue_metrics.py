"""GLUE's metrics over a whole set, by scikit-learn and scipy, and what a constant prediction would score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from sklearn import metrics

from spectral_conditioning.tasks.cramming.glue_tasks import GlueTask

Score = Callable[[np.ndarray, np.ndarray], float]


def _correlation(function: Callable[..., tuple[float, float]]) -> Score:
    def score(labels: np.ndarray, predictions: np.ndarray) -> float:
        if len(labels) < 2:
            return math.nan  # One row has no correlation, and scipy no answer.
        with warnings.catch_warnings():
            # A constant prediction has no correlation; that is what NaN says.
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            return float(function(labels, predictions)[0])

    return score


SCORES: dict[str, Score] = {
    "accuracy": lambda labels, predictions: float(metrics.accuracy_score(labels, predictions)),
    "f1": lambda labels, predictions: float(metrics.f1_score(labels, predictions, zero_division=0)),
    "matthews": lambda labels, predictions: float(metrics.matthews_corrcoef(labels, predictions)),
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}


def score(task: GlueTask, labels: np.ndarray, predictions: np.ndarray, *, prefix: str = "") -> dict[str, float]:
    """Return every metric of a task over all labels (n,) and predictions (n,), class ids or scores."""
    names = (task.metric, *task.others)
    return {f"{prefix}{name}": SCORES[name](labels, predictions) for name in names}


def chance_scores(task: GlueTask, labels: Sequence[float]) -> dict[str, float]:
    """Return the best score that one constant prediction reaches, for each metric; correlations have none and count 0."""
    found: dict[str, float] = {}
    values = np.array(labels)
    for name in (task.metric, *task.others):
        constants = range(task.outputs) if not task.regression else (float(values.mean()),)
        scores = [SCORES[name](values, np.full(len(values), constant)) for constant in constants]
        found[name] = max((value for value in scores if math.isfinite(value)), default=0.0)
    return found
