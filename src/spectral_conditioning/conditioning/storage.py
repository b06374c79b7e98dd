"""How layers store a weight, and the (out, in) matrix that it stands for."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning.placement import TensorPlan
from spectral_conditioning.errors import ConditioningError

# Layer classes that store (in, out), by name: conditioning imports no library but torch.
TRANSPOSED = ("transformers.pytorch_utils.Conv1D",)

_shared_identities: weakref.WeakValueDictionary[tuple[object, ...], Tensor] = weakref.WeakValueDictionary()


def qualified_name(cls: type) -> str:
    """Return `package.module.Class`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_transposed(layer: nn.Module) -> bool:
    """True when the layer stores (in, out); a conditioned layer answers for its plain class."""
    return qualified_name(getattr(type(layer), "_plain", type(layer))) in TRANSPOSED


def raw_tensor(layer: Any, name: str, *, missing_ok: bool = False) -> Any:
    """Return the tensor that a layer stores, W on a conditioned one; None, or a ConditioningError, where there is none."""
    parameters = layer._parameters
    tensor = parameters[name] if name in parameters else layer.__dict__.get(name)
    if tensor is None and not missing_ok:
        raise ConditioningError(f"{type(layer).__name__} stores no {name}; it holds {list(parameters)}.")
    return tensor


def as_matrix(layer: nn.Module, tensor: Tensor) -> Tensor:
    """View a stored tensor as its (out, in) matrix: 1×1 convolutions are flattened, transposed layers transposed."""
    if is_transposed(layer):
        return tensor.T
    return tensor.flatten(1) if tensor.ndim > 2 else tensor


def as_stored(matrix: Tensor, shape: torch.Size, *, transposed: bool) -> Tensor:
    """Return an (out, in) matrix in the shape that the layer stores, contiguous."""
    return (matrix.T if transposed else matrix).contiguous().view(shape)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums with C are formed: float32, or float64 for float64 weights."""
    return torch.promote_types(dtype, torch.float32)


def stored_identity(plan: TensorPlan, lam: float, weight: Tensor, *, transposed: bool) -> Tensor:
    """Return λ times the partial identity of `plan`, dense, in the shape, on the device and in the sum's dtype of `weight`.

    Layers of equal plan on one device share one tensor for as long as any of them lives: a ViT-B holds 7 MB for its twelve
    layers instead of 85 MB, and a sum that reads it finds it in cache.
    """
    dtype = accumulation_dtype(weight.dtype)
    key = (plan, lam, weight.device, dtype, weight.shape, transposed)
    # Tensors made under FakeTensorMode and its like must not leave it, nor enter it.
    is_real = type(torch.empty(0, device="cpu")) is Tensor
    identity = _shared_identities.get(key) if is_real else None
    if identity is None:
        with torch.inference_mode(False):
            identity = as_stored(_identity(plan, lam, dtype), weight.shape, transposed=transposed).to(weight.device)
        if is_real:
            _shared_identities[key] = identity
    return identity


def _identity(plan: TensorPlan, lam: float, dtype: torch.dtype) -> Tensor:
    matrix = torch.zeros(plan.shape, dtype=dtype, device="cpu")
    rows, columns = plan.ones()
    matrix[rows, columns] = lam
    return matrix
