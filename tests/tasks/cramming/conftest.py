"""Text with words to learn, small prepared folders, and runs that train within a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spectral_conditioning.tasks.cramming.preparation import Settings
from spectral_conditioning.tasks.cramming.prepare import prepare_text
from spectral_conditioning.tasks.cramming.token_store import TokenStore
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig

from .cramming_text import write_records

VOCABULARY, LENGTH = 270, 32


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
    "evaluate={every_steps: 3, spectra: 0}",
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
