"""The check of a state dict at the root of a model, before any of the model's tensors is copied.

A pre-hook on the model given to condition() sees every load that passes through it, strict or not, under any wrapper.
Tensors that a wrapper holds beside the model may have been copied by then. A model that never met condition() has no
hook: torch refuses a conditioned state dict there with strict=True (unexpected `_extra_state` keys), and cannot see
it with strict=False. Call `check_state_dict(model, state_dict)` first in that case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from spectral_conditioning.conditioning import state
from spectral_conditioning.conditioning.mixin import Conditioned
from spectral_conditioning.errors import ConditioningError


def check_state_dict(model: nn.Module, state_dict: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConditioningError unless the conditioning saved in `state_dict` (keys under `prefix`) is the model's own.

    Plain entries for a conditioned layer, conditioned entries for a plain one, and other settings or layouts are refused.
    """
    problems = []
    layers = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Conditioned):
            start = f"{prefix}{name}." if name else prefix
            layers[start + state.EXTRA_STATE] = module
            problem = state.entry_problem(
                start.rstrip("."), module.payload(), module.saved_tensors(), state_dict, start
            )
            problems += [problem] if problem else []
    for key, value in state_dict.items():
        if key.endswith(state.EXTRA_STATE) and key.startswith(prefix) and key not in layers:
            payload = state.decode(value)
            if payload is not None:
                settings = payload["settings"]
                layer = key.removesuffix("." + state.EXTRA_STATE)
                problems.append(
                    f"{layer} is conditioned in the checkpoint ({settings['correction']} λ={settings['lam']:g}) and plain, or "
                    "absent, here"
                )
    if problems:
        shown = "\n".join(f"  - {problem}" for problem in problems[:4])
        more = f"\n  … and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ConditioningError(
            f"checkpoint refused, {len(problems)} entries disagree with {type(model).__name__} about conditioning:\n"
            f"{shown}{more}\nCondition the model with the checkpoint's settings before loading it. To start from plain "
            "weights, load them before condition(); to get a plain model, load into a conditioned one and call strip() or "
            "fold(). Nothing was copied."
        )


def guard_loading(model: nn.Module) -> None:
    """Make every later load into `model` pass `check_state_dict`; a second call changes nothing."""
    if not _is_guarded(model):
        model.register_load_state_dict_pre_hook(_check_before_load)  # type: ignore[no-untyped-call]


def unguard_loading(model: nn.Module) -> None:
    """Remove the check again."""
    hooks = model._load_state_dict_pre_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is _check_before_load]:
        del hooks[key]


def _is_guarded(model: nn.Module) -> bool:
    return any(getattr(hook, "hook", hook) is _check_before_load for hook in model._load_state_dict_pre_hooks.values())


def _check_before_load(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    check_state_dict(module, state_dict, prefix)
