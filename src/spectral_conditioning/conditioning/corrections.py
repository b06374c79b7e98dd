"""The corrections: C for each block of each weight, computed in batches of equal shape over all layers."""

# Weights are (out, in). Blocks are (rows, in); B blocks of equal shape are stacked to (B, rows, in).

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spectral_conditioning.conditioning.placement import Block, TensorPlan
from spectral_conditioning.conditioning.polar import polar, sigma_upper
from spectral_conditioning.conditioning.settings import Conditioning
from spectral_conditioning.randomness import generator

# Stacks are cut to this many elements (128 MB in float32), which bounds the memory of a refresh.
_CHUNK_ELEMENTS = 2**25
# σ_max for relative λ is at most .1 % high (n^{1/2^14} for n singular values).
_SQUARINGS = 12


@dataclass(frozen=True)
class Source:
    """A weight that C is computed from: its name for reports and draws, its plan, the (out, in) matrix."""

    name: str
    plan: TensorPlan
    matrix: Tensor


@dataclass
class Computed:
    """C for each source, (out, in) in the sum's dtype, and remarks about single blocks (zero, null directions completed)."""

    matrices: list[Tensor]
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Item:
    source: int
    block: Block
    label: str


def compute(sources: Sequence[Source], settings: Conditioning) -> Computed:
    """Return C for each source under `settings`. Nothing is drawn from global generators and no gradient is recorded."""
    with torch.no_grad():
        matrices = [torch.zeros_like(source.matrix, dtype=_dtype(source.matrix)) for source in sources]
        computed = Computed(matrices)
        for items in _batches(sources):
            blocks = torch.stack([_rows(sources[item.source].matrix, item.block) for item in items])
            blocks = blocks.to(_dtype(blocks))
            corrections = _FORMULAS[settings.correction](
                blocks, settings, [item.label for item in items], computed.remarks
            )
            for item, correction in zip(items, corrections, strict=True):
                _scatter(matrices[item.source], item.block, correction)
        return computed


def _batches(sources: Sequence[Source]) -> list[list[_Item]]:
    """Group blocks of equal shape, dtype and device into batches of bounded size."""
    groups: dict[tuple[int, int, torch.dtype, torch.device], list[_Item]] = defaultdict(list)
    for index, source in enumerate(sources):
        for block in source.plan.blocks():
            key = (len(block.rows), source.matrix.shape[1], source.matrix.dtype, source.matrix.device)
            groups[key].append(_Item(index, block, f"{source.name}:{block.label}"))
    batches = []
    for (rows, columns, _, _), items in groups.items():
        size = max(1, _CHUNK_ELEMENTS // (rows * columns))
        batches += [items[start : start + size] for start in range(0, len(items), size)]
    return batches


def _rows(matrix: Tensor, block: Block) -> Tensor:
    span = block.span
    return matrix[span] if span is not None else matrix[block.rows.to(matrix.device)]


def _scatter(matrix: Tensor, block: Block, correction: Tensor) -> None:
    """Write the kept rows of a block's correction to their rows of C."""
    if block.span is not None and block.kept is None:
        matrix[block.span] = correction
        return
    kept = slice(None) if block.kept is None else block.kept
    matrix[block.rows[kept].to(matrix.device)] = correction[
        kept.to(matrix.device) if isinstance(kept, Tensor) else kept
    ]


def _dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _eye(blocks: Tensor) -> Tensor:
    return torch.eye(blocks.shape[-2], blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)


def _sigma(blocks: Tensor, labels: list[str], remarks: list[str]) -> Tensor:
    """Return σ_max for each block, shaped to multiply the stack, and remark on zero blocks."""
    sigma = sigma_upper(blocks, squarings=_SQUARINGS)
    for index in torch.nonzero(sigma == 0).flatten().tolist():
        remarks.append(f"{labels[index]} is a zero matrix: its C, measured in units of σ_max, is zero")
    return sigma[:, None, None]


def _identity(blocks: Tensor, settings: Conditioning, labels: list[str], remarks: list[str]) -> Tensor:
    """C = λ I_k, or λ σ I_k when relative."""
    unit = _sigma(blocks, labels, remarks) if settings.relative else torch.ones_like(blocks[:, :1, :1])
    return settings.lam * unit * _eye(blocks)


def _scaled_identity(blocks: Tensor, settings: Conditioning, labels: list[str], remarks: list[str]) -> Tensor:
    """C = (W + μ I_k) σ/(μ + σ) − W with μ = λ, or λ σ when relative: the spectrum of `identity` at the scale of W."""
    sigma = _sigma(blocks, labels, remarks)
    shift = settings.lam * (sigma if settings.relative else torch.ones_like(sigma))
    ratio = torch.where(sigma > 0, sigma / (shift + sigma), torch.zeros_like(sigma))
    return (blocks + shift * _eye(blocks)) * ratio - blocks


def _polar(blocks: Tensor, settings: Conditioning, labels: list[str], remarks: list[str]) -> Tensor:
    """C = λ σ U Vᵀ by polynomial iteration (polar.py)."""
    result = polar(blocks)
    for index in result.zero:
        remarks.append(f"{labels[index]} is a zero matrix: σ_max = 0 and C is zero")
    for index, count in result.completed.items():
        remarks.append(f"{labels[index]} has {count} null direction(s): its polar factor was completed by SVD")
    return settings.lam * result.sigma[:, None, None] * result.factors


def _svd(blocks: Tensor, settings: Conditioning, labels: list[str], remarks: list[str]) -> Tensor:
    """C = λ σ U Vᵀ by singular value decomposition."""
    finite = blocks.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    u, s, vh = torch.linalg.svd(torch.where(finite, blocks, torch.zeros_like(blocks)), full_matrices=False)
    for index in torch.nonzero(s[:, 0] == 0).flatten().tolist():
        remarks.append(f"{labels[index]} is a zero matrix: σ_max = 0 and C is zero")
    correction = settings.lam * s[:, :1, None] * (u @ vh)
    return torch.where(finite, correction, torch.full_like(correction, torch.nan))


def _orthogonal(blocks: Tensor, settings: Conditioning, labels: list[str], remarks: list[str]) -> Tensor:
    """C = λ Q (λ σ Q when relative): Q uniform among matrices with all singular values 1, drawn for each block's name."""
    unit = _sigma(blocks, labels, remarks) if settings.relative else torch.ones_like(blocks[:, :1, :1])
    rows, columns = blocks.shape[-2:]
    drawn = torch.empty_like(blocks)
    for index, label in enumerate(labels):
        source = generator(settings.seed, f"orthogonal {label}")
        normal = torch.randn(
            max(rows, columns), min(rows, columns), dtype=torch.float64, device="cpu", generator=source
        )
        q, r = torch.linalg.qr(normal)
        q = q * r.diagonal().sign()  # makes the draw uniform: QR alone fixes signs by convention
        drawn[index] = (q if rows >= columns else q.T).to(drawn)
    return settings.lam * unit * drawn


_Formula = Callable[[Tensor, Conditioning, list[str], list[str]], Tensor]
_FORMULAS: dict[str, _Formula] = {
    "identity": _identity,
    "polar": _polar,
    "svd": _svd,
    "scaled_identity": _scaled_identity,
    "orthogonal": _orthogonal,
}
