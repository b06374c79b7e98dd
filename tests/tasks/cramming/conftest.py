"""Text with words to learn, small prepared folders, and runs that train within a second."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from spectral_conditioning.tasks.cramming.preparation import Settings
from spectral_conditioning.tasks.cramming.prepare import prepare_text
from spectral_conditioning.tasks.cramming.token_store import TokenStore
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig

WORDS = (
    "the of and to in is was that for it with as on be at by this had not are but from or have an they which one you were her "
    "all she there would their we him been has when who will more no if out so said what up its about into than them can only "
    "other new some could time these two may then do first any my now such like our over man me even most made after also did"
).split()
VOCABULARY, LENGTH = 300, 32


def sentences(seed: int, count: int) -> str:
    """Return text in which each word mostly decides the next one, so that there is something to learn."""
    draw = random.Random(seed)
    words, place = [], draw.randrange(len(WORDS))
    for _ in range(count):
        place = (place * 5 + draw.choice((1, 1, 1, 2, 7))) % len(WORDS)
        words.append(WORDS[place] + draw.choice(("", "", "", "", ",", ".")))
    return " ".join(words)


def write_records(path: Path, documents: int, *, words: int = 120, seed: int = 0) -> Path:
    """Write JSON lines in the format of The Pile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = (
        {"text": sentences(seed + number, words + number % 40), "meta": {"pile_set_name": "Test"}}
        for number in range(documents)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 documents of about 140 words."""
    return write_records(tmp_path_factory.mktemp("text") / "pile.jsonl", 200)


@pytest.fixture(scope="session")
def store(records: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """The documents prepared."""
    settings = Settings(vocabulary=VOCABULARY, length=LENGTH, filter=0.0, holdout=10)
    return prepare_text(str(records), tmp_path_factory.mktemp("prepared"), settings)


TINY = [
    "experiment=cramming/small_pretrain",
    "task.model.layers=2",
    "task.model.width=32",
    "task.model.heads=2",
    "task.model.ffn=64",
    "data.source=prepared",
    f"data.length={LENGTH}",
    "data.batch_size=16",
    "data.val_sequences=40",
    "budget={steps: 6, epochs: null, tokens: null}",
    "evaluate.every_steps=3",
    "trainer.log_every=1",
    "trainer.checkpoint_every=2",
    "trainer.progress=none",
]


@pytest.fixture
def tiny(tmp_path: Path, store: TokenStore) -> Callable[..., RunConfig]:
    """Compose a tiny pretraining run with more overrides; its folder is `runs` in the test's own folder unless given."""

    def make(*overrides: str, runs: str = "runs") -> RunConfig:
        return compose_run([*TINY, f"data.path={store.folder}", f"paths.runs={tmp_path / runs}", *overrides])

    return make


@pytest.fixture
def train(tiny: Callable[..., RunConfig]) -> Callable[..., Outcome]:
    """Pretrain the tiny run with more overrides."""

    def make(*overrides: str, runs: str = "runs") -> Outcome:
        return run(tiny(*overrides, runs=runs))

    return make
