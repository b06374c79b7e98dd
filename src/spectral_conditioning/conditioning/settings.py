"""`Conditioning`: what is added to which attention weights, and when it is computed anew."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spectral_conditioning.errors import ConditioningError, closest, problems_message

ROLES = ("q", "k", "v")
CORRECTIONS = ("identity", "polar", "svd", "scaled_identity", "orthogonal")
PLACEMENTS = ("full", "per_head", "fused")
DECAY_CENTRES = ("correction", "zero")
PRESERVED = ("weight", "function")

# W + C is formed in float32, whose range a larger λ, or its square in the logits, leaves.
_LARGEST = 1e30

# Of these the matrix C is built from the singular vectors of W, so λ counts σ_max(W) by definition.
_INTRINSICALLY_RELATIVE = ("polar", "svd")

# The paper's λ of each correction: Theorem 3.5 has λ = 1, its experiments with λI have λ = 10.
_THEOREM_LAM, _PRACTICE_LAM = 1.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Settings of the correction C in W_effective = W + C, for each attention projection W (out, in).

    correction (σ = σ_max of the matrix that C is computed from, see `placement`):
        identity         C = λ I_k, ones on the first k = min(out, in) main-diagonal entries (the paper in practice, λ = 10).
        polar            C = λ σ U Vᵀ with W = U S Vᵀ, by a polynomial iteration without SVD (Theorem 3.5 at λ = 1).
        svd              the same by SVD, the reference.
        scaled_identity  control: C = (W₀ + λ I_k) σ/(λ + σ) − W₀, the condition number of `identity` at the scale of W₀.
        orthogonal       control: C = λ Q, Q a random partial isometry drawn from `seed`.
        Every C is a constant between refreshes: the gradient reaches W as if C were not there.
    lam: λ ≥ 0; 0 is the baseline and leaves the model alone. Left out (None): 1 for polar and svd, 10 for the others.
    relative: measure λ in units of σ, for identity, scaled_identity and orthogonal (polar and svd always do).
    placement:
        full      one C for the stacked matrix (heads·d, D) of each targeted role.
        per_head  one C for each head's (d, D) block of each targeted role.
        fused     one C for each stored weight tensor, of which the rows of targeted roles are kept. The identity of a
                  stacked [Q; K; V] weight then lies on Q alone; on separate projections `fused` equals `full`.
    targets: any of q, k, v.
    refresh_every: 0 computes C once; n computes it anew from the current W after every n optimizer steps.
    decay_toward: the point that weight decay pulls W + C to: "correction" (decay acts on the stored W) or "zero" (decay
        acts on W + C; call `attach_decay(model, optimizer)`).
    preserve: "weight" keeps W and lets the function change; "function" stores W − C, so that W + C is the given weight up to
        one rounding, at the start and at each refresh.
    include, exclude: shell patterns on the paths of attention modules ("blocks.*.attn"); each must match something.
    seed: of the generator that `orthogonal` draws from. No global generator is ever touched.
    float32_projection: under autocast, form the products with W + C in float32 and cast their outputs. Autocast rounds W + C,
        and next to λ = 10 most of the diagonal of W is lost in bfloat16. Needs W in float32 and layers that are called:
        nn.MultiheadAttention is refused, and so is, in its first forward pass, attention that reads `.weight` itself.

    Raises ConditioningError that lists every setting out of range.
    """

    correction: str = "identity"
    lam: float = None  # type: ignore[assignment]  # A number once built; its default depends on the correction.
    relative: bool = False
    placement: str = "full"
    targets: tuple[str, ...] = ROLES
    refresh_every: int = 0
    decay_toward: str = "correction"
    preserve: str = "weight"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    seed: int = 0
    float32_projection: bool = False

    def __post_init__(self) -> None:
        for name in ("targets", "include", "exclude"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        if self.lam is None:
            lam = _THEOREM_LAM if self.correction in _INTRINSICALLY_RELATIVE else _PRACTICE_LAM
            object.__setattr__(self, "lam", lam)
        problems = list(self._problems())
        if problems:
            raise ConditioningError(problems_message("Conditioning", problems))
        object.__setattr__(self, "lam", float(self.lam))
        object.__setattr__(self, "targets", tuple(role for role in ROLES if role in self.targets))

    def _problems(self) -> Iterable[str]:
        yield from _choice("correction", self.correction, CORRECTIONS)
        yield from _choice("placement", self.placement, PLACEMENTS)
        yield from _choice("decay_toward", self.decay_toward, DECAY_CENTRES)
        yield from _choice("preserve", self.preserve, PRESERVED)
        if isinstance(self.lam, bool) or not isinstance(self.lam, int | float):
            yield f"lam={self.lam!r} is not a number; give a float ≥ 0, 0 being the baseline"
        elif math.isfinite(self.lam) and self.lam > _LARGEST:
            yield f"lam={self.lam!r} does not fit float32, in which W + C is formed; give at most {_LARGEST:g}"
        elif not math.isfinite(self.lam) or self.lam < 0:
            yield f"lam={self.lam!r} is not finite and ≥ 0; give such a number, 0 being the baseline"
        for name in ("refresh_every", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                yield f"{name}={value!r} is not an integer ≥ 0"
        for name in ("relative", "float32_projection"):
            if not isinstance(getattr(self, name), bool):
                yield f"{name}={getattr(self, name)!r} is not true or false"
        for name in ("include", "exclude"):
            if not all(isinstance(pattern, str) for pattern in getattr(self, name)):
                yield f"{name}={list(getattr(self, name))!r} must hold shell patterns such as 'blocks.*.attn'"
        yield from self._target_problems()
        yield from self._combination_problems()

    def _target_problems(self) -> Iterable[str]:
        unknown = [target for target in self.targets if target not in ROLES]
        if unknown or not self.targets or len(set(self.targets)) != len(self.targets):
            yield f"targets={list(self.targets)!r}: name each of q, k, v at most once, and at least one"

    def _combination_problems(self) -> Iterable[str]:
        if self.correction in _INTRINSICALLY_RELATIVE and self.relative is True:
            yield f"relative=True has no meaning for {self.correction!r}, whose λ counts σ_max(W) already; leave it False"
        if self.refresh_every and self.correction in CORRECTIONS and not self.depends_on_weight:
            yield (
                f"refresh_every={self.refresh_every} has no effect on {self.correction!r}, whose C does not depend on W; "
                "set it to 0, or choose relative=True, polar, svd or scaled_identity"
            )

    @property
    def is_baseline(self) -> bool:
        """True when λ = 0: nothing is added, and no module is touched."""
        return self.lam == 0

    @property
    def depends_on_weight(self) -> bool:
        """True when C is a function of W, so that a refresh can change it."""
        return self.correction in ("polar", "svd", "scaled_identity") or self.relative is True

    @property
    def is_saved(self) -> bool:
        """True when these settings alone do not give C, so that C travels in the state dict."""
        return self.depends_on_weight or self.correction == "orthogonal"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values (tuples as lists).

        float32_projection is left out when False: names of runs and checkpoints made without it stay as they are.
        """
        values = dataclasses.asdict(self)
        if not self.float32_projection:
            del values["float32_projection"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Conditioning:
        """Build from `to_dict()` or a configuration; an unknown key is a ConditioningError that names the nearest known one."""
        known = [field.name for field in dataclasses.fields(cls)]
        problems = []
        for key in values:
            if key not in known:
                nearest = closest(str(key), known)
                problems.append(
                    f"unknown setting {key!r}" + (f"; closest {nearest!r}" if nearest else f"; allowed {known}")
                )
        if problems:
            raise ConditioningError(problems_message("Conditioning", problems))
        return cls(**dict(values))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Accept one name, or any sequence of names (a configuration file gives lists); None means no name."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> Iterable[str]:
    if value not in allowed:
        nearest = closest(str(value), allowed)
        hint = f" (closest {nearest!r})" if nearest else ""
        yield f"{name}={value!r} is not one of {', '.join(allowed)}{hint}"
