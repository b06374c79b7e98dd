"""Settings of the whole suite: no network, no stray threads, no files outside the temporary folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    OMP_NUM_THREADS="1",
)
for name in ("SPECTRAL_RUNS", "SPECTRAL_DATA"):
    os.environ.pop(name, None)

import pytest  # noqa: E402  (the variables above must be set before torch is imported)
import torch  # noqa: E402

torch.set_num_threads(1)

# A run small enough to train within a second: one layer of width 16 on digits, six steps.
TINY = [
    "experiment=imagenet/small",
    "task.model.embed_dim=16",
    "task.model.num_heads=2",
    "task.model.depth=1",
    "data.batch_size=32",
    "budget={steps: 6, epochs: null, tokens: null}",
    "evaluate={every_steps: 2, every_epochs: null, spectra: 0}",
    "trainer.log_every=1",
    "trainer.checkpoint_every=2",
    "trainer.progress=none",
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder of its own, so that a relative path can never reach the checkout."""
    monkeypatch.chdir(str(tmp_path))


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Any]:
    """Compose the tiny run with more overrides; its folder is `runs` in the test's own folder unless given."""
    from spectral_conditioning.training.compose import compose_run

    def make(*overrides: str, runs: str = "runs") -> Any:
        return compose_run([*TINY, f"paths.runs={tmp_path / runs}", *overrides])

    return make


@pytest.fixture
def train(tiny: Callable[..., Any]) -> Callable[..., Any]:
    """Train the tiny run with more overrides and return its outcome."""
    from spectral_conditioning.training.run import run

    def make(*overrides: str, runs: str = "runs") -> Any:
        return run(tiny(*overrides, runs=runs))

    return make
