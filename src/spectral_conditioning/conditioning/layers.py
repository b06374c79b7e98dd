"""The conditioned layer classes, one for each class of layer that stores a projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from spectral_conditioning.conditioning import guard, precision
from spectral_conditioning.conditioning.mixin import Conditioned
from spectral_conditioning.conditioning.storage import TRANSPOSED, qualified_name, raw_tensor


def _property(name: str) -> property:
    def read(layer: Conditioned) -> Tensor:
        try:
            return layer._read(name)
        except AttributeError as error:
            # Python would fall back on nn.Module.__getattr__, which returns W without C.
            raise RuntimeError(f"reading {layer.name_of(name)} failed: {error}") from error

    def assign(layer: Conditioned, value: object) -> None:
        layer._assign(name, value)

    return property(read, assign)


class ConditionedProduct(Conditioned):
    """Mixin of layers whose forward is the product with their weight."""

    def forward(self, input: Tensor) -> Tensor:
        return self._multiplied(super().forward, input)  # type: ignore[misc]

    def _multiplied(self, product: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
        """Return `product(input)` in the precision that the settings ask for."""
        if not self.conditioning().float32_projection:
            return product(input)
        return precision.in_float32(product, input, raw_tensor(self, "weight"), self.name_of("weight"))


class ConditionedLinear(ConditionedProduct, nn.Linear):
    """nn.Linear with weight W + C."""

    _plain = nn.Linear
    weight = _property("weight")  # type: ignore[assignment]

    def forward(self, input: Tensor) -> Tensor:
        return self._multiplied(self._linear, input)

    def _linear(self, input: Tensor) -> Tensor:
        return F.linear(input, self.effective_weight(), self.bias)


class ConditionedConv1d(ConditionedProduct, nn.Conv1d):
    """nn.Conv1d of kernel size 1 with weight W + C."""

    _plain = nn.Conv1d
    weight = _property("weight")  # type: ignore[assignment]


class ConditionedConv2d(ConditionedProduct, nn.Conv2d):
    """nn.Conv2d of kernel size 1 with weight W + C."""

    _plain = nn.Conv2d
    weight = _property("weight")  # type: ignore[assignment]


class ConditionedMultiheadAttention(Conditioned, nn.MultiheadAttention):
    """nn.MultiheadAttention with corrected input projections, stacked or separate."""

    _plain = nn.MultiheadAttention
    in_proj_weight = _property("in_proj_weight")  # type: ignore[assignment]
    q_proj_weight = _property("q_proj_weight")  # type: ignore[assignment]
    k_proj_weight = _property("k_proj_weight")  # type: ignore[assignment]
    v_proj_weight = _property("v_proj_weight")  # type: ignore[assignment]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not guard.is_active():
            return super().forward(*args, **kwargs)
        # One forward pass of the plain class reads its weights up to four times; the sum is formed once.
        self.__dict__["_sums"] = {}
        try:
            return super().forward(*args, **kwargs)
        finally:
            del self.__dict__["_sums"]

    def _read(self, name: str) -> Tensor:
        sums = self.__dict__.get("_sums")
        if sums is None:
            return super()._read(name)
        if name not in sums:
            sums[name] = self.effective_weight(name)
        total: Tensor = sums[name]
        return total

    def _reset_parameters(self) -> None:
        self._call_plain("_reset_parameters")

    def reset_parameters(self) -> None:
        self._reset_parameters()


_FIXED: dict[type[nn.Module], type[Conditioned]] = {
    cls._plain: cls for cls in (ConditionedLinear, ConditionedConv1d, ConditionedConv2d, ConditionedMultiheadAttention)
}


_made: dict[type[nn.Module], type[Conditioned] | None] = dict(_FIXED)


def conditioned_class(plain: type[nn.Module]) -> type[Conditioned] | None:
    """Return the conditioned class for a layer class, or None when it cannot be served.

    Served are the four torch classes, subclasses of them that inherit `forward` (whose own forward could use the weight in any
    way), and the transposed layers named in TRANSPOSED.
    """
    if plain not in _made:
        _made[plain] = _make(plain)
    return _made[plain]


def _make(plain: type[nn.Module]) -> type[Conditioned] | None:
    """Make a conditioned class on demand; pickles name the plain class (see __reduce_ex__)."""
    if qualified_name(plain) in TRANSPOSED:
        return type(
            f"Conditioned{plain.__name__}",
            (ConditionedProduct, plain),
            {"_plain": plain, "weight": _property("weight")},
        )
    for base, conditioned in _FIXED.items():
        overridden = any(name in cls.__dict__ for cls in plain.__mro__ for name in ("weight", "in_proj_weight"))
        inherits = issubclass(plain, base) and plain.forward is base.forward and plain.train is base.train
        if inherits and not overridden:
            return type(f"Conditioned{plain.__name__}", (conditioned, plain), {"_plain": plain})
    return None


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module as it was before conditioning."""
    return module._plain if isinstance(module, Conditioned) else type(module)
