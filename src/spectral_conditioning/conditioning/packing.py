"""Declarations of where the rows of Q, K and V are in stored weights.

separate("q_proj", "k_proj", "v_proj", heads="num_heads")      one layer each; K and V may have fewer heads (kv_heads=)
stacked("qkv", heads="num_heads")                              rows [Q; K; V], each head-major
interleaved("query_key_value", heads="num_heads")              per head [q_h; k_h; v_h]; with kv_heads= per K/V group
                                                               [q ... q; k; v]
fused_kv("q", "kv", heads="num_heads")                         Q alone, rows [K; V] together
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Packed:
    """One stored weight: the layer's path inside the attention module ("" is the module itself), the roles in storage order,
    and the order of rows: "stacked" (role after role) or "interleaved" (for each K/V group its query heads, then k, then v)."""

    layer: str
    roles: str
    order: str = "stacked"
    tensor: str = "weight"


@dataclass(frozen=True)
class Layout:
    """Layout of one kind of attention. `heads`, `kv_heads` and `scale` are numbers or attribute paths of the module.

    kv_heads None: as many as query heads. scale None: 1/√d.
    """

    parts: tuple[Packed, ...]
    heads: str | int
    kv_heads: str | int | None = None
    scale: str | float | None = None

    def describe(self) -> str:
        """Return for instance `qkv [q; k; v]`, `q, kv [k; v]` or `query_key_value [q k v per head]`."""
        return ", ".join(_describe_part(part, self.kv_heads is not None) for part in self.parts)


def separate(
    q: str,
    k: str,
    v: str,
    *,
    heads: str | int,
    kv_heads: str | int | None = None,
    scale: str | float | None = None,
) -> Layout:
    """Return the layout of three layers of their own."""
    return Layout((Packed(q, "q"), Packed(k, "k"), Packed(v, "v")), heads, kv_heads, scale)


def stacked(
    layer: str,
    *,
    heads: str | int,
    roles: str = "qkv",
    kv_heads: str | int | None = None,
    scale: str | float | None = None,
) -> Layout:
    """Return the layout of one layer with rows [Q; K; V], in the order of `roles`."""
    return Layout((Packed(layer, roles),), heads, kv_heads, scale)


def interleaved(
    layer: str,
    *,
    heads: str | int,
    roles: str = "qkv",
    kv_heads: str | int | None = None,
    scale: str | float | None = None,
) -> Layout:
    """Return the layout of one layer whose rows go head by head, or K/V group by group when `kv_heads` is given."""
    return Layout((Packed(layer, roles, "interleaved"),), heads, kv_heads, scale)


def fused_kv(
    q: str,
    kv: str,
    *,
    heads: str | int,
    order: str = "stacked",
    kv_heads: str | int | None = None,
    scale: str | float | None = None,
) -> Layout:
    """Return the layout of Q in a layer of its own beside K and V in one layer, stacked or interleaved by head."""
    return Layout((Packed(q, "q"), Packed(kv, "kv", order)), heads, kv_heads, scale)


def head_starts(part: Packed, counts: Mapping[str, int], head_dim: int) -> dict[str, tuple[int, ...]]:
    """Return the first row of each head, for each role of a stored weight."""
    starts: dict[str, list[int]] = {role: [] for role in part.roles}
    groups = 1 if part.order == "stacked" else counts["k"]
    row = 0
    for _ in range(groups):
        for role in part.roles:
            for _ in range(counts[role] // groups):
                starts[role].append(row)
                row += head_dim
    return {role: tuple(values) for role, values in starts.items()}


def _describe_part(part: Packed, grouped: bool) -> str:
    name = part.layer or part.tensor
    if len(part.roles) == 1:
        return name
    if part.order == "stacked":
        return f"{name} [{'; '.join(part.roles)}]"
    return f"{name} [{' '.join(part.roles)} per {'group' if grouped else 'head'}]"
