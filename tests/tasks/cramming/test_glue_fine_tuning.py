"""Laws of fine-tuning: metrics over the whole set as scikit-learn and scipy compute them, heads, losses, encoding and padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.tasks.cramming.glue_data import EncodedExamples, Sentences, collate, cut_pair
from spectral_conditioning.tasks.cramming.glue_files import Example
from spectral_conditioning.tasks.cramming.glue_metrics import chance_scores, score
from spectral_conditioning.tasks.cramming.glue_module import GlueModule
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS
from spectral_conditioning.tasks.cramming.token_store import TOKENIZER, TokenStore
from spectral_conditioning.tasks.cramming.wordpiece import load_tokenizer
from spectral_conditioning.tasks.optim import OptimConfig, cosine_factor
from spectral_conditioning.training.compose import compose_run

from .cramming_text import sentences


class Table(nn.Module):
    """Outputs that the test chose: `ids` are row numbers."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, ids: Tensor, visible: Tensor | None) -> Tensor:
        return self.outputs[ids[:, 0]]


def module(key: str, outputs: Tensor, chance: float = -1.0) -> GlueModule:
    task = GLUE_TASKS[key]
    return GlueModule(
        Table(outputs),  # type: ignore[arg-type]
        optim=OptimConfig(),
        total_steps=1,
        task=task,
        chance=dict.fromkeys((task.metric, *task.others), chance),
    )


def evaluate(key: str, outputs: Tensor, labels: Tensor, parts: Tensor | None = None, **more: Any) -> dict[str, float]:
    """Evaluate in uneven batches, with a filler at the end that must not count."""
    training = module(key, outputs, **more)
    parts = torch.zeros(len(labels), dtype=torch.long) if parts is None else parts
    rows = torch.arange(len(labels))
    for chosen in rows.split(7):
        batch = Sentences(chosen[:, None], None, labels[chosen], parts[chosen])
        training.evaluate_batch(batch, torch.ones(len(chosen), dtype=torch.bool))
    filler = Sentences(rows[:2, None], None, labels[:2], parts[:2])
    training.evaluate_batch(filler, torch.tensor([False, False]))
    return training.evaluation_metrics()


@pytest.mark.parametrize("key", GLUE_TASKS)
def test_metrics_over_the_whole_set(key: str) -> None:
    """Equal to scikit-learn and scipy on all rows at once, which a mean over batches is not."""
    task = GLUE_TASKS[key]
    torch.manual_seed(3)
    outputs = torch.randn(50, task.outputs)
    labels = torch.rand(50) * 5 if task.regression else torch.randint(task.outputs, (50,))
    found = evaluate(key, outputs, labels)
    y = labels.numpy()
    p = outputs[:, 0].double().numpy() if task.regression else outputs.argmax(1).numpy()
    wanted = {
        "accuracy": lambda: metrics.accuracy_score(y, p),
        "f1": lambda: metrics.f1_score(y, p),
        "matthews": lambda: metrics.matthews_corrcoef(y, p),
        "pearson": lambda: stats.pearsonr(y, p)[0],
        "spearman": lambda: stats.spearmanr(y, p)[0],
    }
    for name in (task.metric, *task.others):
        assert found[name] == pytest.approx(float(wanted[name]()), abs=1e-9), name
    loss = F.mse_loss(outputs[:, 0], labels) if task.regression else F.cross_entropy(outputs, labels)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_perfect_predictor_scores_one_on_both_parts_of_mnli() -> None:
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    found = evaluate("mnli", F.one_hot(labels, 3).float(), labels, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert found["accuracy"] == found["mismatched_accuracy"] == 1.0


def test_matched_and_mismatched_are_scored_apart() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    guesses = torch.tensor([0, 1, 2, 1, 1, 1])
    found = evaluate("mnli", F.one_hot(guesses, 3).float(), labels, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert found["accuracy"] == 1.0
    assert found["mismatched_accuracy"] == pytest.approx(1 / 3)


def test_evaluation_starts_anew() -> None:
    training = module("sst2", torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    everything = torch.tensor([True])
    first = Sentences(torch.tensor([[0]]), None, torch.tensor([1]), torch.tensor([0]))
    training.evaluate_batch(first, everything)
    assert training.evaluation_metrics()["accuracy"] == 1.0
    training.evaluate_batch(first._replace(ids=torch.tensor([[1]])), everything)
    assert training.evaluation_metrics()["accuracy"] == 0.0


def test_regression_trains_on_squared_error() -> None:
    training = module("stsb", torch.tensor([[1.0], [4.0]]))
    batch = Sentences(torch.tensor([[0], [1]]), None, torch.tensor([2.0, 1.0]), torch.zeros(2, dtype=torch.long))
    assert training.training_losses(batch)["loss"].item() == pytest.approx((1 + 9) / 2)


def test_chance_is_the_best_constant() -> None:
    """MRPC's development set has 68.4 % positives: accuracy 0.684 and F1 0.812 are what no learning gives."""
    labels = [1.0] * 279 + [0.0] * 129
    found = chance_scores(GLUE_TASKS["mrpc"], labels)
    assert round(found["accuracy"], 3) == 0.684
    assert round(found["f1"], 3) == 0.812
    assert chance_scores(GLUE_TASKS["cola"], labels)["matthews"] == 0
    assert chance_scores(GLUE_TASKS["stsb"], [0.0, 2.0, 5.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_a_constant_prediction_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    labels = torch.tensor([1, 1, 0])
    evaluate("sst2", torch.tensor([[0.0, 1.0]] * 3), labels, chance=2 / 3)
    assert "has collapsed or has not begun to learn" in caplog.text
    caplog.clear()
    found = evaluate("stsb", torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]), chance=0.0)
    assert math.isnan(found["pearson"])  # no score is made up
    assert "has collapsed" in caplog.text
    caplog.clear()
    evaluate("sst2", F.one_hot(labels, 2).float(), labels, chance=2 / 3)
    assert not caplog.text


def test_scores_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    labels, predictions, order = rng.integers(0, 2, 40), rng.integers(0, 2, 40), rng.permutation(40)
    task = GLUE_TASKS["cola"]
    assert score(task, labels, predictions) == pytest.approx(score(task, labels[order], predictions[order]))


@pytest.mark.parametrize("length", [8, 12, 20, 64])
def test_pairs_are_cut_as_the_tokenizers_library_cuts_them(store: TokenStore, length: int) -> None:
    tokenizer = load_tokenizer(store.folder / TOKENIZER)
    library = load_tokenizer(store.folder / TOKENIZER)
    library.enable_truncation(length, strategy="longest_first")
    for a, b in ((3, 20), (20, 3), (9, 9), (10, 11), (2, 2)):
        pair = (sentences(a, a), sentences(b + 50, b))
        (ids, _, _) = EncodedExamples([Example(pair, 0)], tokenizer, length=length)[0]
        wanted = library.encode(*pair).ids
        assert ids == wanted
        assert len(ids) <= length
        (single, _, _) = EncodedExamples([Example(pair[:1], 0)], tokenizer, length=length)[0]
        assert single == library.encode(pair[0]).ids


def test_the_longer_sentence_is_cut_first() -> None:
    assert cut_pair([1, 2, 3, 4, 5], [6, 7], 5) == ([1, 2, 3], [6, 7])
    assert cut_pair([1, 2, 3], [6, 7, 8], 5) == ([1, 2], [6, 7, 8])


def test_padding_is_hidden_or_fills_the_length() -> None:
    samples = [([4, 9, 5], 1, 0), ([4, 5], 0, 0)]
    hidden = collate(samples, padding=0, regression=False, length=None)
    assert hidden.ids.tolist() == [[4, 9, 5], [4, 5, 0]]
    assert hidden.visible is not None
    assert hidden.visible.tolist() == [[True, True, True], [True, True, False]]
    filled = collate(samples, padding=0, regression=True, length=5)
    assert filled.ids.shape == (2, 5)
    assert filled.visible is None
    assert filled.labels.dtype == torch.float32


def test_schedule_of_the_recipe() -> None:
    """A tenth of the steps up to 4e-5, then half a cosine to zero over the rest (eval=GLUE_sane)."""
    config = compose_run(
        ["experiment=cramming/glue", "task.model.glue_task=rte", "init.weights=runs/x", "data.path=glue"]
    )
    optim, steps = config.optim, 1000
    warmup = round(optim.warmup_epochs / config.budget.epochs * steps)
    assert warmup == 100
    optim.warmup_steps = warmup
    for step, wanted in ((0, 0.0), (50, 0.5), (100, 1.0), (550, 0.5), (1000, 0.0)):
        assert cosine_factor(step, optim, steps) == pytest.approx(wanted, abs=1e-12)
    assert (optim.lr, tuple(optim.betas), optim.eps) == (4e-5, (0.9, 0.98), 1e-6)
    assert (optim.weight_decay, optim.clip_norm) == (0.0, None)
    assert (config.budget.epochs, config.data.batch_size, config.task.model.dropout) == (5, 16, 0.1)
