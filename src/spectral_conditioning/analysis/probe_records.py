"""What a probe finds, as plain dataclasses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from spectral_conditioning.analysis.bounds import PublishedBound, ValidBounds
from spectral_conditioning.analysis.condition_number import JacobianCondition
from spectral_conditioning.analysis.saturation import LayerSaturation
from spectral_conditioning.analysis.spectra import ProjectionSpectrum


@dataclass(frozen=True)
class HeadProbe:
    """One head of one layer. `reason` says why there is no κ(J); `tokens` of `all_tokens` were taken."""

    head: int
    tokens: int = 0
    all_tokens: int = 0
    jacobian: JacobianCondition | None = None
    blocks: dict[str, JacobianCondition] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    published: PublishedBound | None = None
    valid: ValidBounds | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        if self.published is not None:
            values["published"] = self.published.to_dict()
        return values


@dataclass(frozen=True)
class LayerProbe:
    """One layer: its heads, its saturation, and ∂loss/∂W norms by role.

    independent: the layer was given layer-normed Gaussian tokens instead of those of the input (no gradients then).
    """

    name: str
    family: str
    saturation: LayerSaturation | None
    gradients: dict[str, float]
    heads: list[HeadProbe]
    independent: bool = False

    @property
    def label(self) -> str:
        """The module's path, and what it was run on where that is not the input."""
        return f"{self.name}, random tokens" if self.independent else self.name

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "family": self.family,
            "independent": self.independent,
            "saturation": None if self.saturation is None else asdict(self.saturation),
            "gradients": self.gradients,
            "heads": [head.to_dict() for head in self.heads],
        }


@dataclass(frozen=True)
class ProbePoint:
    """The model at one λ (None: as it was given). Spectra and saturation are of every layer, `layers` of those probed.

    control: the first of them on independent tokens, None where it is not softmax attention or was not asked for.

    weyl: {attention: {role: Weyl's bound on κ(W + λI)}}, for the identity correction, of the stacked matrix (placement
    full) or of each head (per_head). expected_logit: λ²√d of the
    first layer where identity sits on Q and K.
    """

    lam: float | None
    conditioning: dict[str, Any] | None
    layers: list[LayerProbe]
    spectra: list[ProjectionSpectrum]
    saturation: list[LayerSaturation]
    weyl: dict[str, dict[str, float]]
    expected_logit: float | None
    control: LayerProbe | None = None

    @property
    def rows(self) -> list[LayerProbe]:
        """The probed layers, the control after the first, which it belongs to."""
        return self.layers if self.control is None else [self.layers[0], self.control, *self.layers[1:]]

    @property
    def saturated(self) -> int:
        """Number of saturated layers."""
        return sum(layer.saturated for layer in self.saturation)

    def spectrum(self, attention: str, role: str) -> ProjectionSpectrum:
        """Return the spectrum of one projection."""
        return next(found for found in self.spectra if (found.attention, found.role) == (attention, role))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "lam": self.lam,
            "conditioning": self.conditioning,
            "layers": [layer.to_dict() for layer in self.layers],
            "control": None if self.control is None else self.control.to_dict(),
            "spectra": [spectrum.to_dict() for spectrum in self.spectra],
            "saturation": [asdict(layer) for layer in self.saturation],
            "weyl": self.weyl,
            "expected_logit": self.expected_logit,
        }


@dataclass(frozen=True)
class ProbeReport:
    """One point for each λ."""

    points: list[ProbePoint]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; not-finite numbers become None."""
        return {"notes": self.notes, "points": [finite(point.to_dict()) for point in self.points]}


def finite(value: Any) -> Any:
    """Return a JSON value with None in place of infinities and NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
