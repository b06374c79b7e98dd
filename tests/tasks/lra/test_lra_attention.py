"""Nyström attention against transformers, exact softmax, a literal transcription of its formulas, and its own promises."""

# B batch, N tokens, D width, H heads, d head width, m landmarks.

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.lra.attention import NystromAttention, Padding, SelfAttention, SoftmaxAttention

D, H, d = 16, 2, 8


def nystrom(tokens: int, landmarks: int, *, seed: int = 0, **options: object) -> NystromAttention:
    torch.manual_seed(seed)
    layer = NystromAttention(D, H, d, tokens=tokens, landmarks=landmarks, **options)  # type: ignore[arg-type]
    return layer.double().eval()


def exact(tokens: int, landmarks: int, **options: object) -> NystromAttention:
    return nystrom(tokens, landmarks, mode="exact", start="matrix", **options)


def inputs(batch: int, tokens: int, *, seed: int = 1, size: float = 2.0) -> Tensor:
    return torch.randn(batch, tokens, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * size


def suffix_padding(lengths: list[int], tokens: int) -> Padding:
    lengths_B = torch.tensor(lengths)
    return Padding((torch.arange(tokens) < lengths_B[:, None]).double(), lengths_B)


def heads_of(layer: SelfAttention, x_BND: Tensor) -> list[Tensor]:
    return [w(x_BND).unflatten(-1, (H, d)).transpose(1, 2) for w in (layer.W_q, layer.W_k, layer.W_v)]


def merged(layer: SelfAttention, x_BHNd: Tensor) -> Tensor:
    return layer.out(x_BHNd.transpose(1, 2).flatten(-2))


def softmax_of(layer: SelfAttention, x_BND: Tensor) -> Tensor:
    q, k, v = heads_of(layer, x_BND)
    return merged(layer, torch.softmax(q @ k.mT / math.sqrt(d), dim=-1) @ v)


def transformers_twin(
    layer: SelfAttention, *, heads: int, tokens: int, landmarks: int, kernel: int | None
) -> nn.Module:
    """Return transformers' module with the layer's weights, projection back left out."""
    modeling = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    config = pytest.importorskip("transformers").NystromformerConfig(
        hidden_size=D,
        num_attention_heads=heads,
        segment_means_seq_len=tokens,
        num_landmarks=landmarks,
        conv_kernel_size=kernel or 3,
    )
    twin = modeling.NystromformerSelfAttention(config).double().eval()
    for ours, theirs in ((layer.W_q, twin.query), (layer.W_k, twin.key), (layer.W_v, twin.value)):
        theirs.load_state_dict(ours.state_dict())
    if kernel is None:
        twin.conv_kernel_size = None
    elif isinstance(layer.conv_weight, nn.Parameter):
        twin.conv.weight.data.copy_(layer.conv_weight.data)
    return twin


@pytest.mark.parametrize("kernel", [35, 5, None])
@pytest.mark.parametrize(("tokens", "landmarks"), [(96, 8), (64, 32), (24, 24)])
def test_published_mode_equals_transformers_in_value_and_gradient(
    tokens: int, landmarks: int, kernel: int | None
) -> None:
    layer = nystrom(tokens, landmarks, kernel_size=kernel or 0)
    twin = transformers_twin(layer, heads=H, tokens=tokens, landmarks=landmarks, kernel=kernel)
    x_BND = inputs(3, tokens)
    ours, theirs = layer(x_BND), layer.out(twin(x_BND)[0])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    weight = inputs(3, tokens, seed=5)
    ours_grad = torch.autograd.grad((ours * weight).sum(), layer.W_q.weight)[0]
    theirs_grad = torch.autograd.grad((theirs * weight).sum(), twin.query.weight)[0]
    torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-7, atol=1e-9)


def test_exact_mode_equals_transformers_where_one_matrix_is_the_whole_batch() -> None:
    torch.manual_seed(0)
    layer = NystromAttention(D, 1, D, tokens=48, landmarks=8, mode="exact", start="matrix", kernel_size=0).double()
    twin = transformers_twin(layer, heads=1, tokens=48, landmarks=8, kernel=None)
    x_BND = inputs(1, 48)
    torch.testing.assert_close(layer(x_BND), layer.out(twin(x_BND)[0]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", ["published", "exact"])
def test_as_many_landmarks_as_tokens_is_exact_softmax_and_fewer_are_not(mode: str) -> None:
    start = "batch" if mode == "published" else "matrix"
    x_BND = inputs(2, 64)
    full = nystrom(64, 64, mode=mode, start=start, kernel_size=0)
    torch.testing.assert_close(full(x_BND), softmax_of(full, x_BND), rtol=1e-9, atol=1e-11)
    assert full.exact_softmax
    assert "exact softmax" in repr(full)
    longer = inputs(2, 128)
    few = nystrom(128, 64, mode=mode, start=start, kernel_size=0)
    assert (few(longer) - softmax_of(few, longer)).abs().max() > 1e-3
    assert not few.exact_softmax
    assert "64 landmarks of 128 tokens" in repr(few)


def test_error_against_exact_softmax_shrinks_as_landmarks_grow() -> None:
    x_BND = inputs(2, 128, size=1.0).cumsum(dim=1) / 8  # neighbours are alike, as landmarks assume
    errors = []
    for landmarks in (2, 8, 32, 64, 128):
        layer = exact(128, landmarks, kernel_size=0, iterations=20)
        reference = softmax_of(layer, x_BND)
        errors.append(((layer(x_BND) - reference).norm() / reference.norm()).item())
    assert all(later < earlier for earlier, later in itertools.pairwise(errors)), errors
    assert errors[-1] < 1e-12


def published_by_the_formula(layer: NystromAttention, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """The published arithmetic, one sequence and head at a time but for the shared start value, kernels in full."""
    m = layer.landmarks
    q, k, v = heads_of(layer, x_BND)
    q, k = (t * mask_BN[:, None, :, None] / d**0.25 for t in (q, k))
    B, _, N, _ = q.shape
    middles, outer, inner = {}, {}, {}
    for b in range(B):
        for h in range(H):
            means = [torch.stack([part.mean(0) for part in t[b, h].split(N // m)]) for t in (q, k)]
            outer[b, h] = (q[b, h] @ means[1].T).softmax(-1)
            middles[b, h] = (means[0] @ means[1].T).softmax(-1)
            inner[b, h] = (means[0] @ k[b, h].T - 1e9 * (1 - mask_BN[b])).softmax(-1)
    largest = max(kernel.sum(0).max() for kernel in middles.values())
    result = torch.empty_like(v)
    eye = torch.eye(m, dtype=torch.float64)
    for (b, h), K in middles.items():
        Z = K.T / largest
        for _ in range(layer.iterations):
            Z = Z @ (13 * eye - K @ Z @ (15 * eye - K @ Z @ (7 * eye - K @ Z))) / 4
        result[b, h] = outer[b, h] @ Z @ inner[b, h] @ v[b, h]
        taps = layer.conv_weight[h, 0, :, 0]  # type: ignore[index]
        reach = len(taps) // 2
        values = nn.functional.pad(v[b, h] * mask_BN[b, :, None], (0, 0, reach, reach))
        result[b, h] += sum(taps[i] * values[i : i + N] for i in range(len(taps)))
    return merged(layer, result)


def test_published_mode_follows_the_masked_formulas_literally() -> None:
    layer = nystrom(48, 8, kernel_size=7)
    x_BND = inputs(3, 48)
    mask_BN = torch.ones(3, 48, dtype=torch.float64)
    mask_BN[0, 30:] = 0
    mask_BN[1, [3, 4, 20]] = 0  # a black pixel in the middle counts as padding too
    mask_BN[2, :] = 0
    mask_BN[2, :2] = 1
    expected = published_by_the_formula(layer, x_BND, mask_BN)
    torch.testing.assert_close(layer(x_BND, Padding(mask_BN)), expected, rtol=1e-7, atol=1e-9)


def test_batch_mates_matter_in_the_published_mode_and_not_in_the_exact_one() -> None:
    x_1ND = inputs(1, 64)
    mates = torch.cat([x_1ND, 20 * x_1ND])
    published = nystrom(64, 8)
    assert (published(x_1ND)[0] - published(mates)[0]).abs().max() > 1e-3
    single = exact(64, 8)
    torch.testing.assert_close(single(x_1ND)[0], single(mates)[0], rtol=0, atol=1e-12)
    as_float = exact(64, 8).float()
    torch.testing.assert_close(as_float(x_1ND.float())[0], as_float(mates.float())[0], rtol=0, atol=1e-5)


def test_padding_content_never_reaches_a_token_in_the_exact_mode() -> None:
    layer = exact(32, 8).float()
    x_BND = inputs(2, 32).float()
    padding = suffix_padding([20, 32], 32)
    other = x_BND.clone()
    other[0, 20:] = 100 * torch.randn(12, D, generator=torch.Generator().manual_seed(3))
    before, after = layer(x_BND, padding), layer(other, padding)
    torch.testing.assert_close(before[0, :20], after[0, :20], rtol=0, atol=1e-5)
    torch.testing.assert_close(before[1], after[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 20, 33, 64])
def test_padding_amount_never_matters_in_the_exact_mode(length: int) -> None:
    layer = exact(96, 8)
    x_BND = inputs(1, 96)
    alone = layer(x_BND[:, :length])
    for padded in (length + 1, 80, 96):
        mate = torch.cat([x_BND[:, :padded], inputs(1, padded, seed=9)])
        together = layer(mate, suffix_padding([length, padded], padded))
        torch.testing.assert_close(together[:1, :length], alone, rtol=1e-9, atol=1e-11)


def test_short_sequences_get_exact_softmax_beside_long_ones() -> None:
    layer = exact(96, 8, kernel_size=0)
    x_BND = inputs(2, 96)
    together = layer(x_BND, suffix_padding([6, 96], 96))
    torch.testing.assert_close(together[:1, :6], softmax_of(layer, x_BND[:1, :6]), rtol=1e-9, atol=1e-11)


def test_exact_mode_gradients_are_finite_beside_an_empty_sequence() -> None:
    layer = exact(40, 8)
    out = layer(inputs(3, 40).requires_grad_(), suffix_padding([0, 3, 40], 40))
    gradients = torch.autograd.grad(out.pow(2).sum(), list(layer.parameters()))
    assert all(bool(g.isfinite().all()) for g in gradients)


def test_published_mode_refuses_any_other_length() -> None:
    layer = nystrom(64, 8)
    for tokens in (128, 32):
        with pytest.raises(ConfigError, match=f"padded to 64 tokens and got {tokens}"):
            layer(inputs(1, tokens))
    with pytest.raises(ConfigError, match="does not divide"):
        nystrom(100, 8)


def test_softmax_alternative_masks_keys() -> None:
    torch.manual_seed(0)
    layer = SoftmaxAttention(D, H, d).double()
    x_BND = inputs(2, 12)
    torch.testing.assert_close(layer(x_BND), softmax_of(layer, x_BND), rtol=1e-9, atol=1e-11)
    masked = layer(x_BND, suffix_padding([7, 12], 12))
    torch.testing.assert_close(masked[:1, :7], softmax_of(layer, x_BND[:1, :7]), rtol=1e-9, atol=1e-11)


def test_softmax_alternative_drops_in_training_only() -> None:
    torch.manual_seed(0)
    layer = SoftmaxAttention(D, H, d, dropout=0.5).double()
    x_BND = inputs(2, 12)
    assert not torch.allclose(layer(x_BND), layer(x_BND))
    layer.eval()
    torch.testing.assert_close(layer(x_BND), softmax_of(layer, x_BND), rtol=1e-9, atol=1e-11)


class CountElements(TorchDispatchMode):
    """Adds up the elements of everything that is computed, and keeps the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.total += tensor.numel()
                self.largest = max(self.largest, tensor.numel())
        return result


@pytest.mark.parametrize("mode", ["published", "exact"])
def test_work_and_memory_are_linear_in_the_length(mode: str) -> None:
    counts = []
    for tokens in (2048, 4096):
        layer = nystrom(tokens, 16, mode=mode, start="batch" if mode == "published" else "matrix").float()
        padding = suffix_padding([tokens - 100], tokens)
        with CountElements() as count:
            layer(inputs(1, tokens).float(), padding).sum().backward()
        assert count.largest < tokens * tokens / 4
        counts.append(count.total)
    assert 1.7 < counts[1] / counts[0] < 2.1


def test_attention_core_stays_in_float32_under_autocast() -> None:
    layer = nystrom(64, 8).float()
    seen = []
    attend = layer.attend

    def spy(q: Tensor, *rest: object) -> Tensor:
        out = attend(q, *rest)  # type: ignore[arg-type]
        seen.extend([q.dtype, out.dtype])
        return out

    layer.attend = spy  # type: ignore[method-assign,assignment]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(inputs(1, 64).float())
    assert seen == [torch.float32, torch.float32]
