"""Settings inside state dicts, and the refusal of state dicts with other settings.

Each conditioned layer adds one entry, `<layer>._extra_state`: a uint8 tensor with JSON, so that EMA copies, safetensors and
`torch.load(weights_only=True)` take it like any tensor. A C that the settings do not determine adds
`<layer>.<tensor>_correction`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FORMAT = "spectral-conditioning/1"
EXTRA_STATE = "_extra_state"
CORRECTION_SUFFIX = "_correction"

# Which modules are conditioned is checked entry by entry, so the patterns that chose them need not agree; how products are
# rounded says nothing about W and C.
_NOT_COMPARED = ("include", "exclude", "float32_projection")


def encode(payload: Mapping[str, Any]) -> Tensor:
    """Return the payload as UTF-8 JSON in a uint8 tensor on the CPU."""
    text = json.dumps({"format": FORMAT, **payload}, sort_keys=True, ensure_ascii=True)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).clone()


def decode(value: Any) -> dict[str, Any] | None:
    """Return the payload of an extra state, or None when it is not one of ours."""
    if not isinstance(value, Tensor) or value.dtype != torch.uint8 or value.ndim != 1 or value.is_meta:
        return None
    try:
        payload = json.loads(bytes(value.tolist()))
    except ValueError:
        return None
    return payload if isinstance(payload, dict) and payload.get("format") == FORMAT else None


def differences(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between two payloads, as `lam: 1.0 here, 10.0 in the checkpoint`."""
    found = []
    mine, theirs = own["settings"], other.get("settings", {})
    for key in sorted({*mine, *theirs} - {*_NOT_COMPARED}):
        if mine.get(key) != theirs.get(key):
            found.append(f"{key}: {mine.get(key)!r} here, {theirs.get(key)!r} in the checkpoint")
    if not found and own["tensors"] != other.get("tensors"):
        found.append(f"layout: {own['tensors']} here, {other.get('tensors')} in the checkpoint")
    return found


def entry_problem(
    name: str, own: Mapping[str, Any], tensors: Mapping[str, bool], state_dict: Mapping[str, Any], prefix: str
) -> str | None:
    """Return why the entries of one conditioned layer must not be loaded, or None.

    own: the layer's payload. tensors: {name of each tensor of the layer: whether its C is saved}. prefix: of the
    layer, dot included.
    """
    extra = prefix + EXTRA_STATE
    if extra not in state_dict:
        if any(prefix + tensor in state_dict for tensor in tensors):
            return f"{name} is conditioned here and plain in the checkpoint"
        return None
    other = decode(state_dict[extra])
    if other is None:
        return f"{name}: its extra state in the checkpoint is not one of this package"
    different = differences(own, other)
    if different:
        return f"{name}: " + "; ".join(different)
    for tensor, saved in tensors.items():
        if saved and prefix + tensor + CORRECTION_SUFFIX not in state_dict:
            return f"{name}: the checkpoint lacks {tensor}{CORRECTION_SUFFIX}, its saved C"
    return None
