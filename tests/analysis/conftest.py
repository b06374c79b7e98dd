"""Random attention heads in float64 and their Jacobian by automatic differentiation, the reference of these tests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from spectral_conditioning.analysis.attention_inputs import ChannelHead, HeadInputs, SoftmaxHead


def make_head(
    kind: type[HeadInputs] = SoftmaxHead,
    *,
    tokens: int,
    width: int,
    head: int,
    bias: bool = False,
    context: int | None = None,
    norm: str | None = None,
    seed: int = 0,
    **fields: Any,
) -> Any:
    """Return a head with Gaussian weights of variance 1/width; norm: "layer" or "affine" normalises the tokens."""
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    x_ND = normal(tokens, width)
    if norm is not None:
        x_ND = torch.nn.functional.layer_norm(x_ND, (width,))
    if norm == "affine":
        x_ND = x_ND * (1 + 0.3 * normal(width)) + normal(width)
    biases = {"q_bias_d": normal(head), "k_bias_d": normal(head), "v_bias_o": normal(head)} if bias else {}
    return kind(
        x_ND,
        *(normal(head, width) / width**0.5 for _ in range(3)),
        context_ME=None if context is None else normal(context, width),
        **biases,
        **fields,
    )


def autograd_jacobian(head: SoftmaxHead | ChannelHead) -> Tensor:
    """Return J, rows (token, output), columns [W_Q; W_K; W_V] flattened row by row."""

    def output(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return replace(head, q_dD=q, k_dE=k, v_oE=v).output_No

    blocks = jacrev(output, argnums=(0, 1, 2))(head.q_dD, head.k_dE, head.v_oE)
    return torch.cat([block.flatten(2).flatten(0, 1) for block in blocks], dim=1)


@pytest.fixture(scope="session")
def random_head() -> Callable[..., Any]:
    """`make_head`."""
    return make_head


@pytest.fixture(scope="session")
def jacobian_by_autograd() -> Callable[..., Tensor]:
    """`autograd_jacobian`."""
    return autograd_jacobian
