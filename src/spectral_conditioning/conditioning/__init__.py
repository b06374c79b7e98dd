"""Spectral conditioning of the attention of any PyTorch model: W_effective = W + C for the Q, K and V projections.

settings.py     Conditioning: which C, where, when it is computed anew
packing.py      declarations of where the rows of Q, K and V are;  families.py  the table of known attention classes
layouts.py      find_attention: the attention modules of a model and their projections
placement.py    which entries of a stored weight C occupies;  corrections.py, polar.py  its values
layers.py       layers whose weight is W + C;  storage.py  how layers store a weight;  guard.py  lost in-place edits
precision.py    products with W + C in float32 under autocast
targets.py      what is to be corrected, and every reason to refuse;  inject.py  condition, strip;  report.py
folding.py      fold;  refreshing.py  refresh, Refresher;  decay.py  attach_decay;  state.py, loading.py  state dicts
"""

from spectral_conditioning.conditioning.decay import attach_decay
from spectral_conditioning.conditioning.families import families
from spectral_conditioning.conditioning.folding import Folded, fold
from spectral_conditioning.conditioning.inject import condition, conditioned_layers, strip
from spectral_conditioning.conditioning.layouts import Attention, Projection, find_attention
from spectral_conditioning.conditioning.loading import check_state_dict
from spectral_conditioning.conditioning.packing import Layout, Packed, fused_kv, interleaved, separate, stacked
from spectral_conditioning.conditioning.refreshing import Refresher, refresh
from spectral_conditioning.conditioning.report import Report
from spectral_conditioning.conditioning.settings import Conditioning

__all__ = [
    "Attention",
    "Conditioning",
    "Folded",
    "Layout",
    "Packed",
    "Projection",
    "Refresher",
    "Report",
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
