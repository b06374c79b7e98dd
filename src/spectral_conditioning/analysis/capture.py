"""What reaches every attention module during one run: the tokens that W_Q and W_K read, and what is added to the logits.

Tokens are taken from the projections' own inputs, or from the module's where it reads the weights itself (BEiT,
nn.MultiheadAttention). Position biases and masks are taken from the softmax that runs inside the module: a fused
attention call names its mask, and an explicit softmax shows its logits, of which s q·k is subtracted later (heads.py).
"""

# B batch entries (images, windows), N query tokens, M key tokens, D and E their widths, H heads.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from spectral_conditioning.analysis.observe import observing
from spectral_conditioning.conditioning import Attention


@dataclass
class AttentionInput:
    """Inputs of one attention module in one run, for evenly spaced entries of the batch; the last call wins.

    `mask` is what a fused attention call added to its logits or was told to hide, broadcastable to (B, H, N, M);
    `logits` are those of an explicit softmax. Both None: the softmax was not seen.
    """

    heads: int
    queries_BND: Tensor | None = None
    keys_BME: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    logits: Tensor | None = None

    @property
    def complete(self) -> bool:
        """Whether the run reached both projections."""
        return self.queries_BND is not None and self.keys_BME is not None


def capture_inputs(
    model: nn.Module,
    attentions: Sequence[Attention],
    run: Callable[[], object],
    *,
    entries: int = 1,
    softmax: bool = True,
) -> dict[str, AttentionInput]:
    """Call `run` once and return what reached each attention module, by its name.

    entries: batch entries kept. softmax: also watch the softmax for masks and position biases. The model, its modes, its
    gradients and all random generators are left as they were.
    """
    found = {attention.name: AttentionInput(attention.heads) for attention in attentions}
    active: list[AttentionInput] = []
    handles: list[RemovableHandle] = []
    try:
        for attention in attentions:
            handles += _hooks(attention, found[attention.name], active, entries)
        with observing(model), _watching(active, entries, softmax):
            run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _hooks(
    attention: Attention, found: AttentionInput, active: list[AttentionInput], entries: int
) -> list[RemovableHandle]:
    module = attention.module

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        active.append(found)
        given = [
            value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.is_floating_point()
        ]
        if isinstance(module, nn.MultiheadAttention):
            query: Tensor = kwargs["query"] if "query" in kwargs else args[0]
            key: Tensor = kwargs["key"] if "key" in kwargs else args[1]
            swap = not module.batch_first and query.ndim == 3
            given = [value.transpose(0, 1) if swap else value for value in (query, key)]
        if given:
            found.queries_BND = _tokens(given[0], entries)
            found.keys_BME = _tokens(given[1] if isinstance(module, nn.MultiheadAttention) else given[0], entries)

    def leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        active.pop()

    handles = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, always_call=True),
    ]
    for role, field in (("q", "queries_BND"), ("k", "keys_BME")):
        layer = attention.projections[role].layer
        if layer is not module:
            handles.append(layer.register_forward_pre_hook(_reader(found, field, entries)))
    return handles


def _reader(found: AttentionInput, field: str, entries: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def read(layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            x = x.flatten(2).transpose(1, 2)
        setattr(found, field, _tokens(x, entries))

    return read


def _tokens(x: Tensor, entries: int) -> Tensor:
    """Return (B, N, D) from (…, N, D); a (B, D) input is one token an entry, as class attention gives its query."""
    x = x[:, None] if x.ndim == 2 else x.reshape(-1, *x.shape[-2:])
    return x[spaced(len(x), entries).to(x.device)].detach()


def _entries(values_BHNM: Tensor, entries: int) -> Tensor:
    return values_BHNM[spaced(len(values_BHNM), entries).to(values_BHNM.device)].detach()


def spaced(count: int, limit: int | None) -> Tensor:
    """Return `limit` indices of `count`, evenly spaced from the first to the last (all of them for None)."""
    return torch.linspace(0, count - 1, count if limit is None else min(count, limit)).round().long()


@contextmanager
def _watching(active: list[AttentionInput], entries: int, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with _SoftmaxWatch(active, entries):
        yield


class _SoftmaxWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the masks of fused attention and the logits of explicit softmaxes that run inside an attention module."""

    def __init__(self, active: list[AttentionInput], entries: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._active, self._entries = active, entries

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if self._active and name.startswith("_scaled_dot_product"):
            self._note_fused(func, args, kwargs)
        elif self._active and name in ("_softmax", "_safe_softmax") and args[0].ndim in (3, 4):
            found = self._active[-1]
            logits = args[0] if args[0].ndim == 4 else args[0].unflatten(0, (-1, found.heads))
            found.logits = _entries(logits, self._entries)
        return func(*args, **kwargs)

    def _note_fused(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        mask = given.get("attn_mask", given.get("attn_bias"))
        found = self._active[-1]
        found.causal = bool(given.get("is_causal", False))
        found.logits = None
        found.mask = _entries(mask, self._entries) if mask is not None and mask.ndim == 4 else mask
