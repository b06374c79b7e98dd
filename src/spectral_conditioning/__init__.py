"""Reference implementation of "Spectral Conditioning of Attention Improves Transformer Performance" (NeurIPS 2025).

from spectral_conditioning import condition
report = condition(model, lam=10.0)     # W_Q, W_K, W_V become W + λI in the forward pass; in place

torch is imported when the first of these names is used: `spectral compare` starts without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spectral_conditioning.errors import (
    ConditioningError,
    ConfigError,
    DataError,
    RecordError,
    SpectralError,
)

if TYPE_CHECKING:
    from spectral_conditioning.conditioning import (
        Attention,
        Conditioning,
        Folded,
        Layout,
        Packed,
        Projection,
        Refresher,
        Report,
        attach_decay,
        check_state_dict,
        condition,
        conditioned_layers,
        families,
        find_attention,
        fold,
        fused_kv,
        interleaved,
        refresh,
        separate,
        stacked,
        strip,
    )

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "Conditioning",
    "ConditioningError",
    "ConfigError",
    "DataError",
    "Folded",
    "Layout",
    "Packed",
    "Projection",
    "RecordError",
    "Refresher",
    "Report",
    "SpectralError",
    "attach_decay",
    "check_state_dict",
    "condition",
    "conditioned_layers",
    "families",
    "find_attention",
    "fold",
    "fused_kv",
    "interleaved",
    "refresh",
    "separate",
    "stacked",
    "strip",
]


def __getattr__(name: str) -> Any:
    """Import `spectral_conditioning.conditioning` when it or one of its names is first used (PEP 562)."""
    if name != "conditioning" and name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    conditioning = import_module(f"{__name__}.conditioning")
    return conditioning if name == "conditioning" else getattr(conditioning, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
