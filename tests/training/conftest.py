"""What tests of the run path share."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Trainer

from spectral_conditioning.training.callbacks import RecordOrder


@pytest.fixture
def sample_ids(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Collect the sample ids of every training batch."""
    seen: list[list[int]] = []
    original = RecordOrder.on_train_batch_start

    def notes(self: RecordOrder, trainer: Trainer, module: Any, batch: Any, index: int) -> None:
        original(self, trainer, module, batch, index)
        seen.append(batch.index.tolist())

    monkeypatch.setattr(RecordOrder, "on_train_batch_start", notes)
    return seen
