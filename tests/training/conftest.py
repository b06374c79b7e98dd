"""A run small enough to train within a second: one layer of width 16 on digits, six steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig

TINY = [
    "experiment=imagenet/small",
    "task.model.embed_dim=16",
    "task.model.num_heads=2",
    "task.model.depth=1",
    "data.batch_size=32",
    "budget={steps: 6, epochs: null, tokens: null}",
    "evaluate={every_steps: 2, every_epochs: null}",
    "trainer.log_every=1",
    "trainer.checkpoint_every=2",
    "trainer.progress=none",
]


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., RunConfig]:
    """Compose the tiny run with more overrides; its folder is `runs` in the test's own folder unless given."""

    def make(*overrides: str, runs: str = "runs") -> RunConfig:
        return compose_run([*TINY, f"paths.runs={tmp_path / runs}", *overrides])

    return make


@pytest.fixture
def train(tiny: Callable[..., RunConfig]) -> Callable[..., Outcome]:
    """Train the tiny run with more overrides."""

    def make(*overrides: str, runs: str = "runs") -> Outcome:
        return run(tiny(*overrides, runs=runs))

    return make
