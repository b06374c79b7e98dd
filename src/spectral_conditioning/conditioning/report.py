"""What condition() touched."""

from __future__ import annotations

from dataclasses import dataclass, field

from spectral_conditioning.conditioning.settings import Conditioning


@dataclass(frozen=True)
class ProjectionRow:
    """One corrected projection: the rows of one role in one stored tensor; shape is that of the role's (heads·d, D) matrix."""

    attention: str
    layer: str
    tensor: str
    role: str
    family: str
    layout: str
    heads: int
    head_dim: int
    shape: tuple[int, int]


@dataclass
class Report:
    """The outcome of condition(): its settings, the projections that got a correction, and remarks.

    remarks: zero matrices, null directions that were completed, the coordinates that meet under grouped-query attention, …
    """

    settings: Conditioning
    projections: list[ProjectionRow] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of corrected projections: 36 in a ViT-B (12 blocks × Q, K, V), 0 for the baseline."""
        return len(self.projections)

    def __str__(self) -> str:
        """One line for a log, for instance `identity λ=10 (full, q k v): 36 projections corrected`."""
        settings = self.settings
        if settings.is_baseline:
            return "baseline (λ=0): 0 projections corrected, the model is untouched"
        unit = " σ_max" if settings.relative or settings.correction in ("polar", "svd") else ""
        where = f"{settings.placement}, {' '.join(settings.targets)}"
        return f"{settings.correction} λ={settings.lam:g}{unit} ({where}): {self.count} projections corrected"

    def table(self) -> str:
        """Return one line for each projection, and the remarks."""
        header = ("layer", "role", "family", "layout", "heads", "shape")
        rows = [header]
        for row in self.projections:
            name = f"{row.layer}.{row.tensor}"
            shape = f"{row.shape[0]}×{row.shape[1]}"
            rows.append((name, row.role, row.family, row.layout, f"{row.heads}×{row.head_dim}", shape))
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(
            [str(self), *(lines if self.projections else []), *(f"note: {remark}" for remark in self.remarks)]
        )
