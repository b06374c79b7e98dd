"""Finding attention: which modules are attention, and where the rows of their Q, K and V are.

A wrong guess fits every shape and fails silently, so nothing here is guessed: a class is in the table of families.py, or the
caller passes its layout (packing.py), or it is an error.
"""

# H heads, d head width, D model width. Weights are (out, in), whatever the layer stores.

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning.layers import plain_class
from spectral_conditioning.conditioning.mixin import Conditioned
from spectral_conditioning.conditioning.packing import Layout, Packed, head_starts
from spectral_conditioning.conditioning.placement import RoleRows
from spectral_conditioning.conditioning.storage import as_matrix, qualified_name, raw_tensor
from spectral_conditioning.errors import ConditioningError, closest


@dataclass(frozen=True)
class Projection:
    """The rows of one role in one stored tensor; head h has rows starts[h] … starts[h] + head_dim − 1."""

    role: str
    layer: nn.Module
    layer_name: str
    tensor_name: str
    heads: int
    head_dim: int
    starts: tuple[int, ...]

    @property
    def rows(self) -> Tensor:
        """Row indices of this role in the stored (out, in) matrix, head after head, int64 (heads·d,)."""
        return RoleRows(self.role, self.starts, self.head_dim).rows()

    def stored(self) -> Tensor:
        """Return the trained W, (heads·d, D), detached."""
        return self._select(raw_tensor(self.layer, self.tensor_name))

    def effective(self) -> Tensor:
        """Return the W + C that the forward pass uses, (heads·d, D), detached; W on a plain layer."""
        if isinstance(self.layer, Conditioned):
            with torch.no_grad():
                return self._select(self.layer.effective_weight(self.tensor_name))
        return self.stored()

    def per_head(self, matrix: Tensor) -> Tensor:
        """Split a (heads·d, D) matrix into (heads, d, D)."""
        return matrix.reshape(self.heads, self.head_dim, -1)

    def _select(self, tensor: Tensor) -> Tensor:
        matrix = as_matrix(self.layer, tensor.detach())
        first, count = self.starts[0], self.heads * self.head_dim
        if self.starts == tuple(range(first, first + count, self.head_dim)):
            return matrix[first : first + count]
        return matrix[self.rows.to(matrix.device)]


@dataclass(frozen=True)
class Attention:
    """One attention module with its projections by role. `heads` are query heads, `scale` multiplies the logits."""

    name: str
    module: nn.Module
    family: str
    heads: int
    head_dim: int
    scale: float
    projections: dict[str, Projection] = field(repr=False)


def find_attention(
    model: nn.Module,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    layouts: Mapping[type[nn.Module] | str, Layout] | None = None,
) -> list[Attention]:
    """Return every attention module of `model`, plain or conditioned, in the order of `model.named_modules()`.

    include, exclude: shell patterns on module paths. layouts: {class, or pattern on paths: Layout} for attention that
    families.py does not know; it takes precedence over the table.

    Raises ConditioningError: a pattern or layout that matches nothing, a module that calls itself attention and is unknown, no
    attention at all, or weights that do not fit their layout.
    """
    from spectral_conditioning.conditioning.families import match_family

    given = dict(layouts or {})
    unused = set(given)
    found: list[tuple[str, nn.Module, str, tuple[Layout, ...]]] = []
    unknown: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        key, layout = _given_layout(name, module, given)
        if layout is not None:
            unused.discard(key)
            found.append((name, module, plain_class(module).__name__, (layout,)))
            continue
        family = match_family(plain_class(module))
        if family is not None:
            found.append((name, module, family.name, family.layouts))
        elif _calls_itself_attention(module):
            unknown.append((name, module))
    if unused:
        raise ConditioningError(
            f"layouts: {sorted(_key_name(key) for key in unused)} matched no module of {type(model).__name__}. "
            "Pass the class of the attention module, or a shell pattern on module paths. Nothing was changed."
        )
    names = [name for name, *_ in found] + [name for name, _ in unknown]
    selected = _select(names, include, exclude, model)
    _refuse_unknown([(n, m) for n, m in unknown if n in selected], [name for name, *_ in found])
    attentions = [_resolve(*item) for item in found if item[0] in selected]
    if not attentions:
        raise ConditioningError(
            f"no attention found in {type(model).__name__} ({sum(1 for _ in model.modules())} modules). "
            "`families()` lists what is known; pass layouts={YourAttention: stacked('qkv', heads='num_heads')} "
            "for a class of your own. Nothing was changed."
        )
    return attentions


def _key_name(key: type[nn.Module] | str) -> str:
    return key if isinstance(key, str) else key.__name__


def _given_layout(
    name: str, module: nn.Module, given: Mapping[type[nn.Module] | str, Layout]
) -> tuple[Any, Layout | None]:
    for key, layout in given.items():
        matches = fnmatch.fnmatchcase(name, key) if isinstance(key, str) else plain_class(module) is key
        if matches:
            return key, layout
    return None, None


def _calls_itself_attention(module: nn.Module) -> bool:
    name = plain_class(module).__name__.lower()
    return ("attention" in name or "attn" in name) and any(p.ndim > 1 for p in module.parameters())


def _select(names: list[str], include: Sequence[str], exclude: Sequence[str], model: nn.Module) -> set[str]:
    for kind, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                nearest = closest(pattern, names)
                hint = f"closest {nearest!r}" if nearest else f"they are {names[:4]!r} …"
                raise ConditioningError(
                    f"{kind} pattern {pattern!r} matched 0 of {len(names)} attention modules of {type(model).__name__}; "
                    f"{hint}. Nothing was changed."
                )
    kept = {name for name in names if not include or any(fnmatch.fnmatchcase(name, p) for p in include)}
    return {name for name in kept if not any(fnmatch.fnmatchcase(name, p) for p in exclude)}


def _refuse_unknown(unknown: list[tuple[str, nn.Module]], found: list[str]) -> None:
    """Raise for a module that calls itself attention, unless it only wraps, or is part of, one that is known."""
    for name, module in unknown:
        wraps = any(other != name and (not name or other.startswith(name + ".")) for other in found)
        part_of = any(other != name and (not other or name.startswith(other + ".")) for other in found)
        if not wraps and not part_of:
            raise ConditioningError(
                f"{name or '(the model)'} is a {qualified_name(plain_class(module))}, an attention class whose layout is not "
                f"known. Pass layouts={{{plain_class(module).__name__}: stacked('qkv', heads='num_heads')}} with its real "
                f"layout (separate, stacked, interleaved or fused_kv), or exclude={(name,)!r}. Nothing was changed."
            )


def _resolve(name: str, module: nn.Module, family: str, layouts: tuple[Layout, ...]) -> Attention:
    layout = next((layout for layout in layouts if _fits(module, layout)), None)
    if layout is None:
        tried = " or ".join(layout.describe() for layout in layouts)
        raise ConditioningError(
            f"{name or '(the model)'} ({family}) does not have the weights of its layout: {tried}. It may be quantised, wrapped "
            "(LoRA) or of another version; pass layouts= for it, or exclude it. Nothing was changed."
        )
    heads = _number(module, layout.heads, name)
    kv_heads = heads if layout.kv_heads is None else _number(module, layout.kv_heads, name)
    if kv_heads < 1 or heads % kv_heads:
        raise ConditioningError(f"{name}: {heads} query heads do not split over {kv_heads} key/value heads.")
    projections: dict[str, Projection] = {}
    for part in layout.parts:
        for projection in _unpack(name, module, part, heads, kv_heads):
            projections[projection.role] = projection
    head_dim = projections["q"].head_dim
    scale = head_dim**-0.5 if layout.scale is None else _value(module, layout.scale)
    ordered = {role: projections[role] for role in ("q", "k", "v")}
    return Attention(name, module, family, heads, head_dim, float(scale), ordered)


def _fits(module: nn.Module, layout: Layout) -> bool:
    for part in layout.parts:
        layer = _value(module, part.layer)
        if not isinstance(layer, nn.Module) or raw_tensor(layer, part.tensor, missing_ok=True) is None:
            return False
    return True


def _value(module: nn.Module, path: Any) -> Any:
    """Return a constant as it is, or the attribute at a dotted path (None when a part of it is missing)."""
    if not isinstance(path, str):
        return path
    value: Any = module
    for part in filter(None, path.split(".")):
        value = getattr(value, part, None)
    return value


def _number(module: nn.Module, path: str | int, name: str) -> int:
    value = _value(module, path)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConditioningError(
            f"{name or '(the model)'}: the number of heads at {path!r} is {value!r}, not a positive integer. "
            "Name the right attribute of the module in its layout. Nothing was changed."
        )
    return value


def _unpack(name: str, module: nn.Module, part: Packed, heads: int, kv_heads: int) -> list[Projection]:
    """Return one Projection for each role in a stored weight."""
    layer = _value(module, part.layer)
    tensor = raw_tensor(layer, part.tensor)
    layer_name = ".".join(filter(None, (name, part.layer)))
    if tensor.ndim < 2:
        raise ConditioningError(
            f"{layer_name}.{part.tensor} has shape {tuple(tensor.shape)}: a flattened weight (FSDP1) or a packed quantised one. "
            "Condition before wrapping, and use fully_shard (FSDP2). Nothing was changed."
        )
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    total, rows = sum(counts[role] for role in part.roles), as_matrix(layer, tensor).shape[0]
    if rows % total:
        raise ConditioningError(
            f"{layer_name}.{part.tensor} has {rows} rows, which {total} heads ({part.roles}) do not divide. Nothing was changed."
        )
    head_dim = rows // total
    starts = head_starts(part, counts, head_dim)
    return [
        Projection(role, layer, layer_name, part.tensor, counts[role], head_dim, starts[role]) for role in part.roles
    ]
