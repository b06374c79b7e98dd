"""Which entries of a stored weight a correction occupies.

A stored weight is an (out, in) matrix. Its targeted rows are cut into blocks, and each block gets a correction of its own:

    full      one block for each role: its (heads·d, D) rows, head after head.
    per_head  one block for each head of each role: (d, D).
    fused     one block for the whole stored matrix; the rows of roles that are not targeted are set to zero afterwards.

The identity correction has ones at (i, i) of each block, i < min(rows, D).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoleRows:
    """Rows of one role (or of roles that share them, "qk"): head h has rows starts[h] … starts[h] + head_dim − 1."""

    role: str
    starts: tuple[int, ...]
    head_dim: int

    def rows(self) -> Tensor:
        """Return the row indices, head after head, int64 (heads·d,)."""
        return (torch.tensor(self.starts, device="cpu")[:, None] + torch.arange(self.head_dim, device="cpu")).flatten()


@dataclass(frozen=True)
class Block:
    """Rows that share one correction; `kept` masks those that take it (None: all of them)."""

    label: str
    rows: Tensor
    kept: Tensor | None = None

    @property
    def span(self) -> slice | None:
        """The rows as a slice when they are contiguous, so that they can be viewed instead of gathered."""
        first, count = int(self.rows[0]), len(self.rows)
        contiguous = int(self.rows[-1]) == first + count - 1 and bool((self.rows.diff() == 1).all())
        return slice(first, first + count) if contiguous else None


@dataclass(frozen=True)
class TensorPlan:
    """What is corrected in one stored tensor: its (out, in) shape, the rows of the targeted roles, the placement."""

    shape: tuple[int, int]
    roles: tuple[RoleRows, ...]
    placement: str

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in a fixed order."""
        if self.placement == "fused":
            kept = torch.zeros(self.shape[0], dtype=torch.bool, device="cpu")
            for role in self.roles:
                kept[role.rows()] = True
            label = "".join(role.role for role in self.roles)
            yield Block(label, torch.arange(self.shape[0], device="cpu"), None if bool(kept.all()) else kept)
            return
        for role in self.roles:
            rows = role.rows()
            if self.placement == "full":
                yield Block(role.role, rows)
                continue
            for head, head_rows in enumerate(rows.view(-1, role.head_dim)):
                yield Block(f"{role.role}[{head}]", head_rows)

    def ones(self) -> tuple[Tensor, Tensor]:
        """Return the (row, column) indices at which the identity correction is not zero."""
        rows, columns = [], []
        for block in self.blocks():
            count = min(len(block.rows), self.shape[1])
            diagonal = torch.arange(count, device="cpu")
            kept = slice(None) if block.kept is None else block.kept[:count]
            rows.append(block.rows[:count][kept])
            columns.append(diagonal[kept])
        return torch.cat(rows), torch.cat(columns)

    def touched(self, correction: str) -> frozenset[str]:
        """Return the roles of which at least one row is corrected: `fused` identities can miss some."""
        if correction != "identity" or self.placement != "fused":
            return frozenset("".join(role.role for role in self.roles))
        rows = set(self.ones()[0].tolist())
        return frozenset("".join(role.role for role in self.roles if rows.intersection(role.rows().tolist())))

    def to_dict(self) -> dict[str, object]:
        """Return the plan as JSON values, for the state dict."""
        roles = {role.role: {"starts": list(role.starts), "head_dim": role.head_dim} for role in self.roles}
        return {"shape": list(self.shape), "roles": roles}
