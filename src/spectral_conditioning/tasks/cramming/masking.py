"""Which tokens are predicted: exactly round(rate · N) of a sequence of N, 80 % masked, 10 % replaced, 10 % kept (BERT's rule)."""

# N tokens, M predicted positions.

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class MaskCounts:
    """How many positions are masked, replaced by a random token, and kept."""

    masked: int
    replaced: int
    kept: int

    @property
    def predicted(self) -> int:
        return self.masked + self.replaced + self.kept


def mask_counts(rate: float, length: int) -> MaskCounts:
    """Split round(rate · length) positions: for 32 of 128, 26 masked, 3 replaced, 3 kept."""
    predicted = round(rate * length)
    masked, replaced = round(0.8 * predicted), round(0.1 * predicted)
    return MaskCounts(masked, replaced, max(0, predicted - masked - replaced))


def mask_sequence(ids_N: Tensor, counts: MaskCounts, *, mask_id: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (ids with masks, positions (M,) in rising order, the original tokens there), drawn from torch's global generator.

    Special tokens are predicted like any other and random tokens come from the whole vocabulary, as in cramming.
    """
    chosen_M = torch.randperm(ids_N.shape[0])[: counts.predicted]
    masked_N = ids_N.clone()
    masked_N[chosen_M[: counts.masked]] = mask_id
    replaced = chosen_M[counts.masked : counts.masked + counts.replaced]
    masked_N[replaced] = torch.randint(vocabulary, (counts.replaced,), dtype=ids_N.dtype)
    positions_M = chosen_M.sort().values
    return masked_N, positions_M, ids_N[positions_M]
