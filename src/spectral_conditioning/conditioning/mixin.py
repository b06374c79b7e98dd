"""`Conditioned`: what makes the weight of a layer W + C while W stays the registered parameter of the same name.

condition() swaps the class of a layer for one of these. A property shadows the parameter: `layer.weight` computes W + C, and
`named_parameters()`, state dicts, optimizers, EMA copies, `functional_call` and `torch.compile` see W under its old
name. The sum is formed in float32 or wider, before any autocast cast, and ∂(W + C)/∂W is the identity. W itself is
`layer.trained_weight()`.

What a property cannot pass on to W: in-place edits (guard.py catches most), `layer.weight.requires_grad_()` and
`layer.weight.grad`; use `layer.trained_weight()` for these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from spectral_conditioning.conditioning import guard, precision, state
from spectral_conditioning.conditioning.placement import TensorPlan
from spectral_conditioning.conditioning.settings import Conditioning
from spectral_conditioning.conditioning.storage import TRANSPOSED, qualified_name, raw_tensor, stored_identity
from spectral_conditioning.errors import ConditioningError


class Conditioned:
    """Mixin of every conditioned layer; put before the layer class it is mixed into."""

    _plain: ClassVar[type[nn.Module]]
    _parameters: dict[str, nn.Parameter | None]
    _buffers: dict[str, Tensor | None]

    def conditioning(self) -> Conditioning:
        """Return the settings."""
        settings: Conditioning = self.__dict__["_settings"]
        return settings

    def plans(self) -> dict[str, TensorPlan]:
        """Return the plan of each corrected tensor by name."""
        plans: dict[str, TensorPlan] = self.__dict__["_plans"]
        return plans

    def trained_weight(self, name: str = "weight") -> nn.Parameter:
        """Return the registered parameter W, the one that is trained and saved."""
        weight = self._parameters.get(name)
        if weight is None:
            raise ConditioningError(
                f"{self.name_of(name)} is not a parameter of its own; it holds {list(self.plans())}."
            )
        return weight

    def correction(self, name: str = "weight") -> Tensor | None:
        """Return C in the shape that the layer stores, or None for a tensor that is not corrected."""
        if name not in self.__dict__["_plans"]:
            return None
        saved = self._buffers.get(name + state.CORRECTION_SUFFIX)
        identity: Tensor = self.__dict__["_identities"][name] if saved is None else saved
        return identity

    def effective_weight(self, name: str = "weight") -> Tensor:
        """Return W + C, differentiable in W with the identity as derivative; W itself for a tensor that is not corrected."""
        if guard.is_active():
            guard.check()
        weight: Tensor = raw_tensor(self, name, missing_ok=True)
        correction = self.correction(name)
        if weight is None or correction is None:
            return weight
        if weight.ndim != correction.ndim:
            raise ConditioningError(
                f"{self.name_of(name)} has shape {tuple(weight.shape)} where {tuple(correction.shape)} was conditioned: a "
                "wrapper (FSDP1) flattened it. Use torch.distributed.fsdp.fully_shard (FSDP2)."
            )
        if hasattr(weight, "device_mesh"):
            if weight.grad_fn is not None:
                raise ConditioningError(
                    f"{self.name_of(name)}: fully_shard of this torch version took W + C for the parameter W and would correct "
                    "it twice. Use a torch version this package was tested with."
                )
            correction = replicated(correction, weight)
        elif correction.device != weight.device:
            correction = self._moved(name, weight)
        total = weight + correction
        return total if total.dtype == weight.dtype else total.to(weight.dtype)

    def name_of(self, tensor: str) -> str:
        """Return the path that a tensor of the layer had in the model given to condition()."""
        path: str = self.__dict__["_path"]
        return f"{path}.{tensor}" if path else tensor

    def payload(self) -> dict[str, Any]:
        """Return what the state dict says about this layer's conditioning."""
        tensors = {name: plan.to_dict() for name, plan in self.plans().items()}
        return {
            "settings": self.conditioning().to_dict(),
            "tensors": tensors,
            "refreshed": self.__dict__["_refreshed"],
        }

    def saved_tensors(self) -> dict[str, bool]:
        """Return {corrected tensor: whether its C travels in the state dict}."""
        return {name: name + state.CORRECTION_SUFFIX in self._buffers for name in self.plans()}

    def get_extra_state(self) -> Tensor:
        return state.encode(self.payload())

    def set_extra_state(self, value: Any) -> None:
        payload = state.decode(value)
        if payload is not None:
            self.__dict__["_refreshed"] = int(payload.get("refreshed", 0))

    def reset_parameters(self) -> None:
        """Initialise W anew as the plain layer does; C stays as it is (call refresh() when it depends on W)."""
        self._call_plain("reset_parameters")

    def extra_repr(self) -> str:
        settings = self.conditioning()
        plain = super().extra_repr()  # type: ignore[misc]
        return f"{plain}, + {settings.correction} λ={settings.lam:g} ({settings.placement})".lstrip(", ")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class may have been made on demand, so pickles name the plain class; shared identities are looked up again.
        values = {key: value for key, value in self.__dict__.items() if key != "_identities"}
        return _rebuild, (self._plain,), values

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)  # type: ignore[misc]
        self._sync()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._apply(fn, *args, **kwargs)  # type: ignore[misc]
        self._sync()
        return result

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        guard.check()
        super()._save_to_state_dict(*args, **kwargs)  # type: ignore[misc]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        problem = state.entry_problem(prefix.rstrip("."), self.payload(), self.saved_tensors(), state_dict, prefix)
        if problem:
            raise ConditioningError(f"checkpoint refused: {problem}.")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]

    def _sync(self) -> None:
        """Fetch the identity matrices that fit the device and dtype of W."""
        identities: dict[str, Tensor] = {}
        if not self.conditioning().is_saved:
            for name in self.plans():
                weight = raw_tensor(self, name, missing_ok=True)
                if weight is not None:
                    identities[name] = self._identity(name, weight)
        self.__dict__["_identities"] = identities

    def _identity(self, name: str, weight: Tensor) -> Tensor:
        lam, transposed = self.conditioning().lam, qualified_name(self._plain) in TRANSPOSED
        return stored_identity(self.plans()[name], lam, weight, transposed=transposed)

    def _moved(self, name: str, weight: Tensor) -> Tensor:
        """Return C on the device of a W that was swapped in or assigned, and keep it when W is the registered parameter."""
        if self.conditioning().is_saved:
            saved = self._buffers[name + state.CORRECTION_SUFFIX]
            assert saved is not None
            return saved.to(weight.device)
        identity = self._identity(name, weight)
        if isinstance(weight, nn.Parameter):
            self.__dict__["_identities"][name] = identity
        return identity

    def _read(self, name: str) -> Tensor:
        """Serve the property."""
        weight = self._parameters.get(name)
        if weight is not None and hasattr(weight, "device_mesh") and guard.is_fully_shard_calling():
            return weight
        if weight is not None and self.conditioning().float32_projection:
            precision.refuse_outside_read(weight, self.name_of(name))
        total = self.effective_weight(name)
        if guard.is_active() and isinstance(total, Tensor) and not isinstance(total, nn.Parameter):
            guard.watch(f"{self.name_of(name)}", total)
        return total

    def _assign(self, name: str, value: Any) -> None:
        """Serve assignment of a plain tensor: only replicas (nn.DataParallel) hold W outside the parameters."""
        if not self.__dict__.get("_is_replica", False):
            raise ConditioningError(
                f"{self.name_of(name)} is the sum W + C and cannot be assigned a plain tensor (FSDP1 does). Assign an "
                "nn.Parameter to replace W, or call strip(model) first."
            )
        self.__dict__[name] = value

    def _call_plain(self, method: str) -> None:
        """Call a method of the plain class while the layer is plain, so that it reaches W."""
        conditioned = self.__class__
        self.__class__ = self._plain  # type: ignore[assignment]
        try:
            getattr(self, method)()
        finally:
            self.__class__ = conditioned


def replicated(correction: Tensor, weight: Any) -> Any:
    """Return C as a replicated DTensor on the mesh of a sharded W."""
    from torch.distributed.tensor import DTensor, Replicate

    placements = [Replicate()] * weight.device_mesh.ndim
    return DTensor.from_local(correction.to(weight.device), weight.device_mesh, placements)


def _rebuild(plain: type[nn.Module]) -> Any:
    """Make an empty conditioned layer for pickle and deepcopy."""
    from spectral_conditioning.conditioning.layers import conditioned_class

    conditioned = conditioned_class(plain)
    assert conditioned is not None
    return conditioned.__new__(conditioned)
