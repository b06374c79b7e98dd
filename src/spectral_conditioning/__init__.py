"""Reference implementation of "Spectral Conditioning of Attention Improves Transformer Performance" (NeurIPS 2025).

from spectral_conditioning import condition
report = condition(model, lam=10.0)     # W_Q, W_K, W_V become W + λI in the forward pass; in place
"""

from spectral_conditioning.conditioning.decay import attach_decay
from spectral_conditioning.conditioning.families import families
from spectral_conditioning.conditioning.fold import Folded, fold
from spectral_conditioning.conditioning.inject import condition, conditioned_layers, strip
from spectral_conditioning.conditioning.layouts import Attention, Projection, find_attention
from spectral_conditioning.conditioning.loading import check_state_dict
from spectral_conditioning.conditioning.packing import (
    Layout,
    Packed,
    fused_kv,
    interleaved,
    separate,
    stacked,
)
from spectral_conditioning.conditioning.refresh import Refresher, refresh
from spectral_conditioning.conditioning.report import Report
from spectral_conditioning.conditioning.settings import Conditioning
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
