"""Reference implementation of "Spectral Conditioning of Attention Improves Transformer Performance" (NeurIPS 2025).

from spectral_conditioning import condition
report = condition(model, lam=10.0)     # W_Q, W_K, W_V become W + λI in the forward pass; in place
"""

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
from spectral_conditioning.errors import (
    ConditioningError,
    ConfigError,
    DataError,
    RecordError,
    SpectralError,
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
