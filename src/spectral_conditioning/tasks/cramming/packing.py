"""Token ids of documents, joined and cut into sequences of one length."""

# S sequences, N tokens, T tokens of any number.

from __future__ import annotations

import numpy as np

from spectral_conditioning.tasks.cramming.token_store import TOKEN


class Packer:
    """Join token ids end to end and give out whole sequences; the rest waits for more."""

    def __init__(self, length: int, rest: list[int] | None = None) -> None:
        self.length = length
        self.rest_T = np.array(rest or [], dtype=TOKEN)

    def pack(self, ids_T: np.ndarray) -> np.ndarray:
        """Return the sequences (S, N) that the tokens complete."""
        joined_T = np.concatenate([self.rest_T, ids_T])
        whole = len(joined_T) // self.length * self.length
        self.rest_T = joined_T[whole:]
        return joined_T[:whole].reshape(-1, self.length)
