"""Laws of the experiment files: each says what it is, has its recipe's values, and takes two real steps of its own model."""

from __future__ import annotations

import math
import string
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from spectral_conditioning.tasks.cramming.masking import mask_counts
from spectral_conditioning.tasks.cramming.token_store import FORMAT, META, TOKENIZER, ShardWriter, write_json
from spectral_conditioning.tasks.cramming.wordpiece import PREFIX, PRINTABLE, SPECIALS, assemble
from spectral_conditioning.training.compose import compose_run, config_directory
from spectral_conditioning.training.run import run

FAMILY = config_directory() / "experiment/cramming"
PRETRAINING = ("pretrain", "pretrain_v1", "small_pretrain")
FINE_TUNING = ("glue", "small_glue")
CPU = [
    "trainer=cpu",
    "trainer.progress=none",
    "trainer.checkpoint_every=null",
    "evaluate={every_steps: null, every_epochs: null, spectra: 0}",
    "budget={steps: 2, epochs: null, tokens: null}",
    "data.workers=0",
]


def test_every_file_on_disk_is_tested_here() -> None:
    assert {path.stem for path in FAMILY.glob("*.yaml")} == {*PRETRAINING, *FINE_TUNING}


@pytest.mark.parametrize("name", [*PRETRAINING, *FINE_TUNING])
def test_header_says_what_a_reader_needs(name: str) -> None:
    text = (FAMILY / f"{name}.yaml").read_text()
    for word in ("command:", "hardware:", "score:", "inferred:"):
        assert f"# {word}" in text, word
    assert f"experiment=cramming/{name}" in text


@pytest.mark.parametrize(
    ("name", "rate", "predicted", "batch", "ramp"),
    [("pretrain", 0.25, 32, 8192, 0.6), ("pretrain_v1", 0.15, 19, 4096, 0.5)],
)
def test_values_of_the_published_recipes(name: str, rate: float, predicted: int, batch: int, ramp: float) -> None:
    config = compose_run([f"experiment=cramming/{name}"])
    data, optim, model = config.data, config.optim, config.task.model
    assert (data.mask_rate, data.batch_size, data.ramp, data.length) == (rate, batch, ramp, 128)
    assert mask_counts(data.mask_rate, data.length).predicted == predicted
    assert data.order == "stored"
    assert (model.architecture, model.vocabulary, model.dropout) == ("crammed_bert", 32768, 0.0)
    assert (optim.lr, tuple(optim.betas), optim.eps, optim.weight_decay) == (1e-3, (0.9, 0.98), 1e-12, 0.01)
    assert (optim.schedule, optim.peak, optim.start_factor, optim.clip_norm) == ("triangle", 0.75, 0.25, 0.5)
    assert config.budget.tokens == 43_166_767 * 128
    assert not config.trainer.compile


def many_words(count: int) -> Tokenizer:
    """A tokenizer of exactly `count` words, untrained."""
    words = [*SPECIALS, *PRINTABLE, *(PREFIX + character for character in PRINTABLE)]
    letters = string.ascii_lowercase
    more = (f"{a}{b}{c}{d}" for a in letters for b in letters for c in letters for d in letters)
    while len(words) < count:
        words.append(next(more))
    return assemble({word: index for index, word in enumerate(words)})


@pytest.fixture(scope="session")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with 32,768 words and a few random sequences of 128."""
    folder = tmp_path_factory.mktemp("full")
    many_words(32768).save(str(folder / TOKENIZER))
    draw = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 8), ("val", 2)):
        block = draw.integers(0, 32768, (count, 128)).astype(np.uint16)
        splits[split] = ShardWriter(folder, split, length=128).write([block])
    meta = {"format": FORMAT, "plan": "", "length": 128, "vocabulary": 32768, "tokenizer": "random"}
    write_json(folder / META, {**meta, "unigram_entropy": math.log(32768), "splits": splits})
    return folder


@pytest.mark.parametrize("name", PRETRAINING)
def test_two_steps_of_pretraining(name: str, full_size: Path, tmp_path: Path) -> None:
    """The published sizes included: 119.6 M parameters, one sequence, then more by the ramp."""
    ramp = [] if name == "small_pretrain" else ["data.ramp_unit=1"]
    layers = {"pretrain": 16, "pretrain_v1": 1, "small_pretrain": 4}[name]  # the two recipes share their model
    outcome = run(
        compose_run(
            [
                f"experiment=cramming/{name}",
                *CPU,
                *ramp,
                f"task.model.layers={layers}",
                "trainer.precision=32-true",
                "data.source=prepared",
                f"data.path={full_size}",
                "data.batch_size=2",
                "data.micro_batch_size=1",
                "data.val_sequences=1",
                f"paths.runs={tmp_path / 'runs'}",
                "conditioning=identity",
            ]
        )
    )
    assert outcome.status == "finished"
    assert outcome.record["steps"] == 2
    assert outcome.record["projections"] == 3 * layers
    if name == "pretrain":
        assert outcome.record["scale"]["parameters"] == 119_589_889
    # Untrained, it knows as much as a uniform guess.
    assert outcome.record["metrics"]["val/loss"] == pytest.approx(math.log(32768), rel=0.15)


@pytest.mark.parametrize("name", FINE_TUNING)
def test_two_steps_of_fine_tuning(name: str, full_size: Path, tmp_path: Path) -> None:
    shared = [*CPU, f"paths.runs={tmp_path / 'runs'}", "conditioning=identity", "data.batch_size=2"]
    start = run(
        compose_run(["experiment=cramming/small_pretrain", *shared, "data.source=prepared", f"data.path={full_size}"])
    )
    glue = tmp_path / "glue/RTE"
    glue.mkdir(parents=True)
    for split in ("train", "dev"):
        rows = "".join(f"{i}\tthe aaaa\taaab it\t{label}\n" for i, label in enumerate(("entailment", "not_entailment")))
        (glue / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    outcome = run(
        compose_run(
            [
                f"experiment=cramming/{name}",
                *shared,
                "task.model.glue_task=rte",
                f"data.path={glue.parent}",
                f"init.weights={start.folder}",
            ]
        )
    )
    assert outcome.record["experiment"] == f"cramming/{name}/rte"
    assert (outcome.record["steps"], outcome.record["status"]) == (2, "finished")
