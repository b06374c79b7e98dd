"""Singular values of the attention projections, stacked over heads and head by head: σ_min, σ_max and κ = σ_max / σ_min.

Theorem 3.4 speaks of the D×d matrix of one head, the paper's figures of the stored D×D matrix. The two differ a great
deal (a correction placed per head makes every head well conditioned and the stacked matrix badly so): report both.

Eigenvalues of W Wᵀ in float64 cost what float32 singular values cost and hold σ to 1e-7 of σ_max; a matrix with κ above
1e6 is decomposed itself, in float64. A ViT-B (36 projections, stacked and per head) takes about 3 s of one CPU core.
"""

# H heads, d head width, D model width, k = min(rows, columns). Weights are (out, in).

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning import Attention, Layout, find_attention

# Past this condition number the squared spectrum in float64 has fewer than four digits of σ_min left.
_GRAM_LIMIT = 1e6


@dataclass(frozen=True)
class ProjectionSpectrum:
    """Singular values, descending, of one projection: `stacked_k` of the (H·d, D) matrix, `heads_Hk` of each head's (d, D)."""

    attention: str
    role: str
    stacked_k: Tensor
    heads_Hk: Tensor

    @property
    def sigma_max(self) -> float:
        """Largest singular value of the stacked matrix."""
        return float(self.stacked_k[0])

    @property
    def sigma_min(self) -> float:
        """Smallest singular value of the stacked matrix."""
        return float(self.stacked_k[-1])

    @property
    def kappa(self) -> float:
        """κ of the stacked matrix; infinite for a singular one."""
        return _ratio(self.sigma_max, self.sigma_min)

    @property
    def kappa_heads(self) -> list[float]:
        """κ of each head's matrix."""
        return [_ratio(float(sigma_k[0]), float(sigma_k[-1])) for sigma_k in self.heads_Hk]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, singular values included."""
        return {
            "attention": self.attention,
            "role": self.role,
            "sigma_max": self.sigma_max,
            "sigma_min": self.sigma_min,
            "kappa": self.kappa,
            "kappa_heads": self.kappa_heads,
            "singular_values": self.stacked_k.tolist(),
        }


def singular_values(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return the singular values of each (m, n) matrix, descending, in float64; matrices of one shape are decomposed together."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        by_shape.setdefault(tuple(matrix.shape), []).append(index)
    found: dict[int, Tensor] = {}
    for indices in by_shape.values():
        batch = torch.stack([matrices[index].detach() for index in indices]).double()
        found.update(zip(indices, _batched(batch), strict=True))
    return [found[index] for index in range(len(matrices))]


def spectra(
    model: nn.Module,
    *,
    stored: bool = False,
    include: Sequence[str] = (),
    layouts: Mapping[type[nn.Module] | str, Layout] | None = None,
) -> list[ProjectionSpectrum]:
    """Return the spectra of the Q, K and V projections of every attention module.

    stored: False for the W + C that the forward pass uses, True for the trained W. Raises ConditioningError as
    `find_attention`.
    """
    return spectra_of(find_attention(model, include=include, layouts=layouts), stored=stored)


def spectra_of(attentions: Iterable[Attention], *, stored: bool = False) -> list[ProjectionSpectrum]:
    """Return the spectra of the projections of attention modules already found, as `spectra` does."""
    labels: list[tuple[str, str]] = []
    stacked: list[Tensor] = []
    heads: list[Tensor] = []
    for attention in attentions:
        for role, projection in attention.projections.items():
            matrix = projection.stored() if stored else projection.effective()
            labels.append((attention.name, role))
            stacked.append(matrix)
            heads.append(projection.per_head(matrix))
    by_head = iter(singular_values([matrix for group in heads for matrix in group]))
    return [
        ProjectionSpectrum(name, role, sigma_k, torch.stack([next(by_head) for _ in range(len(group))]))
        for (name, role), sigma_k, group in zip(labels, singular_values(stacked), heads, strict=True)
    ]


def spectra_summary(
    model: nn.Module,
    *,
    layers: int | None = None,
    stored: bool = False,
    layouts: Mapping[type[nn.Module] | str, Layout] | None = None,
) -> dict[str, float]:
    """Return the paper's curves at one step as a flat dictionary: means over layers of the stacked matrices of each role.

    Keys, for role q, k and v: `sigma_min/q`, `sigma_max/q`, `kappa/q` (mean), `kappa_median/q`, and `kappa_head/q`, the
    mean over layers and heads. `layers`: take this many, evenly spaced from first to last (None: all). Values may be
    infinite.
    """
    attentions = find_attention(model, layouts=layouts)
    found = spectra_of(evenly_spaced(attentions, layers), stored=stored)
    summary: dict[str, float] = {}
    for role in ("q", "k", "v"):
        of_role = [spectrum for spectrum in found if spectrum.role == role]
        summary[f"sigma_min/{role}"] = fmean(spectrum.sigma_min for spectrum in of_role)
        summary[f"sigma_max/{role}"] = fmean(spectrum.sigma_max for spectrum in of_role)
        summary[f"kappa/{role}"] = fmean(spectrum.kappa for spectrum in of_role)
        summary[f"kappa_median/{role}"] = median(spectrum.kappa for spectrum in of_role)
        summary[f"kappa_head/{role}"] = fmean(kappa for spectrum in of_role for kappa in spectrum.kappa_heads)
    return summary


def evenly_spaced(attentions: Sequence[Attention], count: int | None) -> list[Attention]:
    """Return `count` of the layers from first to last, or all of them."""
    if count is None or count >= len(attentions):
        return list(attentions)
    if count < 1:
        raise ValueError(f"{count} layers were asked for; allowed: 1 to {len(attentions)}, or None for all")
    last = len(attentions) - 1
    return [attentions[round(index * last / max(1, count - 1))] for index in range(count)]


def _batched(batch: Tensor) -> Tensor:
    wide = batch if batch.shape[-2] <= batch.shape[-1] else batch.mT
    squares = torch.linalg.eigvalsh(wide @ wide.mT).flip(-1)
    sigma: Tensor = squares.clamp_min(0).sqrt()
    unresolved = sigma[..., -1] * _GRAM_LIMIT < sigma[..., 0]
    if bool(unresolved.any()):
        sigma[unresolved] = torch.linalg.svdvals(wide[unresolved])
    return sigma


def _ratio(largest: float, smallest: float) -> float:
    return largest / smallest if smallest > 0 else float("inf")
