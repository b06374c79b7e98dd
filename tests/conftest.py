"""Settings of the whole suite: no network, no stray threads, no files outside the temporary folder."""

from __future__ import annotations

import os

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

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder of its own, so that a relative path can never reach the checkout."""
    monkeypatch.chdir(str(tmp_path))
