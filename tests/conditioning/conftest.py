"""Tiny models and references that know nothing of the package: identities added by plain loops over rows."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

# (pattern on the parameter's name, roles held in storage order, order of rows, heads of q, heads of k and v)
Packing = tuple[str, str, str, int, int]


def head_rows(roles: str, order: str, heads: int, kv_heads: int, head_dim: int) -> dict[str, list[list[int]]]:
    """Return, for each role and head, the row numbers in a stored weight."""
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    if order == "stacked":
        sequence = [(role, head) for role in roles for head in range(counts[role])]
    else:
        sequence = []
        for group in range(kv_heads):
            for role in roles:
                share = counts[role] // kv_heads
                sequence += [(role, group * share + member) for member in range(share)]
    rows: dict[str, list[list[int]]] = {role: [[] for _ in range(counts[role])] for role in roles}
    for position, (role, head) in enumerate(sequence):
        rows[role][head] = list(range(position * head_dim, (position + 1) * head_dim))
    return rows


def add_identity(
    matrix: Tensor,
    lam: float,
    packing: Packing,
    *,
    placement: str = "full",
    targets: str = "qkv",
) -> None:
    """Add λ partial identities to an (out, in) matrix in place, by the definition of the placement."""
    _, roles, order, heads, kv_heads = packing
    width = matrix.shape[1]
    total = sum(heads if role == "q" else kv_heads for role in roles)
    by_head = head_rows(roles, order, heads, kv_heads, matrix.shape[0] // total)
    wanted = {row for role in roles if role in targets for head in by_head[role] for row in head}
    if placement == "fused":
        blocks = [list(range(matrix.shape[0]))]
    elif placement == "full":
        blocks = [[row for head in by_head[role] for row in head] for role in roles]
    else:
        blocks = [head for role in roles for head in by_head[role]]
    for block in blocks:
        for column, row in enumerate(block[:width]):
            if row in wanted:
                matrix[row, column] += lam


def edit_weights(model: nn.Module, lam: float, packings: Sequence[Packing], **how: str) -> int:
    """Add identities to the parameters of a plain model that the packings name; return how many were edited."""
    edited = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for packing in packings:
                if fnmatch.fnmatchcase(name, packing[0]):
                    transposed = packing[2].endswith("transposed")
                    rule = (*packing[:2], packing[2].removesuffix(" transposed"), *packing[3:])
                    matrix = (parameter.T if transposed else parameter.flatten(1)).clone()
                    add_identity(matrix, lam, rule, **how)
                    parameter.copy_((matrix.T if transposed else matrix).reshape(parameter.shape))
                    edited += 1
                    break
    return edited


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter anew, so that no zero initialisation or small layer scale can hide attention."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1) * 0.5)
    return model.eval()


class StackedAttention(nn.Module):
    """Minimal user-written attention: one qkv layer, rows [Q; K; V]."""

    def __init__(self, dim: int = 16, heads: int = 2, layer: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = layer(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.fixture
def stacked_attention() -> type[StackedAttention]:
    return StackedAttention


@pytest.fixture
def hand_edited() -> Callable[..., int]:
    return edit_weights


@pytest.fixture
def identity_added() -> Callable[..., None]:
    return add_identity


@pytest.fixture
def randomised() -> Callable[..., nn.Module]:
    return randomise


@pytest.fixture
def vit() -> nn.Module:
    """A timm ViT of two blocks, width 32, two heads, on 16 × 16 images."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, depth=2, embed_dim=32, num_heads=2, num_classes=5
    )
    return randomise(model)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
