"""Laws of the masked language models: published sizes, equality with formulas written out, and where q, k and v are stored."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.conditioning.layouts import find_attention
from spectral_conditioning.tasks.cramming.architectures import CONSTRUCTORS, build_language_model
from spectral_conditioning.tasks.cramming.bert_base import BertBase
from spectral_conditioning.tasks.cramming.config import ModelConfig
from spectral_conditioning.tasks.cramming.crammed_bert import CrammedBert
from spectral_conditioning.tasks.cramming.glue_model import GlueModel
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS
from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel
from spectral_conditioning.tasks.cramming.task import TASK
from spectral_conditioning.training.compose import compose_tree

SMALL = ModelConfig(layers=2, width=24, heads=3, ffn=48, length=16)
V, N = 50, 10


def build(architecture: str, *, dropout: float = 0.0) -> MaskedLanguageModel:
    torch.manual_seed(0)
    model = build_language_model(
        ModelConfig(**{**vars(SMALL), "architecture": architecture, "dropout": dropout}), vocabulary=V, length=N
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases that are not 1 and 0
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("crammed_bert", 119_589_889), ("crammed_bert_simple", 110_945_024), ("bert_base", 111_241_472)],
)
def test_parameters_at_full_size(name: str, parameters: int) -> None:
    """119.6 M and 110.9 M are the published counts; each number can be added up from the sizes."""
    values = compose_tree(["experiment=cramming/pretrain", f"task={name}"]).task.model
    with torch.device("meta"):
        model = build_language_model(ModelConfig(**values), vocabulary=values.vocabulary, length=128)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    D, inner, layers = 768, 3072, 16 if name == "crammed_bert" else 12
    embedding = 32768 * D
    if name == "crammed_bert":
        layer = 4 * D * D + D * inner + inner // 2 * D + 4 * D
        assert parameters == embedding + layers * layer + 2 * 2 * D + 1
    else:
        layer = 4 * (D * D + D) + D * inner + inner + inner * D + D + 4 * D
        head = D * D + D + 2 * D + 32768
        places = 128 * D if name == "crammed_bert_simple" else (512 + 2) * D
        assert parameters == embedding + places + 2 * D + layers * layer + head


def reference(model: CrammedBert, ids_BN: Tensor, visible_BN: Tensor | None = None) -> Tensor:
    """Both crammed architectures head by head, from the state dict alone."""
    w = model.state_dict()
    H, D = SMALL.heads, SMALL.width
    d = D // H

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        y = x @ w[f"{name}.weight"].T
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    if "positions.scale" in w:
        table = torch.zeros(ids_BN.shape[1], D, dtype=torch.float64)
        for n in range(ids_BN.shape[1]):
            for i in range(0, D, 2):
                angle = n / 10000 ** (i / D)
                table[n, i], table[n, i + 1] = math.sin(angle), math.cos(angle)
        places = w["positions.scale"] * table
    else:
        places = w["positions.embedding.weight"][: ids_BN.shape[1]]
    x = norm(w["embedding.weight"][ids_BN] + places, "embedding_norm")
    for number in range(SMALL.layers):
        name = f"layers.{number}"
        fused = linear(norm(x, f"{name}.norm1"), f"{name}.attn.query_key_value")
        heads = []
        for h in range(H):
            q, k, v = (fused[..., (3 * h + part) * d : (3 * h + part + 1) * d] for part in range(3))
            scores = q @ k.transpose(1, 2) / math.sqrt(d)
            if visible_BN is not None:
                scores = scores.masked_fill(~visible_BN[:, None, :], -math.inf)
            heads.append(scores.softmax(-1) @ v)
        x = x + linear(torch.cat(heads, -1), f"{name}.attn.dense")
        inner = linear(norm(x, f"{name}.norm2"), f"{name}.ffn.dense_in")
        if model.layers[0].ffn.gated:
            value, gate = inner[..., : SMALL.ffn // 2], inner[..., SMALL.ffn // 2 :]
            inner = value * F.gelu(gate)
        else:
            inner = F.gelu(inner)
        x = x + linear(inner, f"{name}.ffn.dense_out")
    if "final_norm.weight" in w:
        x = norm(x, "final_norm")
    if "head.dense.weight" in w:
        x = norm(F.gelu(linear(x, "head.dense")), "head.norm")
    logits = x @ w["embedding.weight"].T
    return logits + w["decoder_bias"] if "decoder_bias" in w else logits


@pytest.mark.parametrize("name", ["crammed_bert", "crammed_bert_simple"])
@pytest.mark.parametrize("padded", [False, True])
def test_crammed_models_equal_the_formulas(name: str, padded: bool) -> None:
    model = build(name)
    assert isinstance(model, CrammedBert)
    ids_BN = torch.randint(V, (2, N))
    visible_BN = torch.arange(N) < torch.tensor([[6], [N]]) if padded else None
    with torch.no_grad():
        found = model.decode(model.encode(ids_BN, visible_BN))
        # The positions were tabled in float32.
        torch.testing.assert_close(found, reference(model, ids_BN, visible_BN), atol=1e-5, rtol=1e-5)


def test_bert_base_is_transformers_own_model() -> None:
    model = build("bert_base")
    assert isinstance(model, BertBase)
    ids_BN = torch.randint(V, (2, N))
    mask_BN = (torch.arange(N) < torch.tensor([[6], [N]])).long()
    with torch.no_grad():
        whole = model.model(input_ids=ids_BN, attention_mask=mask_BN).logits
        torch.testing.assert_close(model.decode(model.encode(ids_BN, mask_BN.bool())), whole)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_sparse_prediction_decodes_the_same_logits(name: str) -> None:
    model, ids_BN = build(name), torch.randint(V, (3, N))
    positions_BM = torch.stack([torch.randperm(N)[:4] for _ in range(3)])
    with torch.no_grad():
        whole_BNV = model(ids_BN)
        picked = torch.stack([whole_BNV[b, positions_BM[b]] for b in range(3)])
        torch.testing.assert_close(model(ids_BN, positions_BM), picked)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_padding_changes_no_visible_token(name: str) -> None:
    model = build(name)
    ids_BN = torch.randint(1, V, (1, N))
    longer = torch.cat([ids_BN, torch.randint(1, V, (1, 4))], dim=1)
    visible_BN = torch.arange(N + 4)[None] < N
    with torch.no_grad():
        torch.testing.assert_close(model.encode(longer, visible_BN)[:, :N], model.encode(ids_BN))


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_no_dropout_in_evaluation(name: str) -> None:
    model, ids_BN = build(name, dropout=0.5), torch.randint(1, V, (2, N))
    with torch.no_grad():
        torch.testing.assert_close(model.encode(ids_BN), build(name).encode(ids_BN), rtol=0, atol=0)
        model.train()
        assert not torch.allclose(model.encode(ids_BN), model.encode(ids_BN))


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_conditioning_finds_q_k_and_v(name: str) -> None:
    """q of head h comes from the effective query rows alone: W_Q + λI changes q by λx and neither k nor v."""
    model, lam = build(name), 3.0
    before = {at.name: {r: p.stored().clone() for r, p in at.projections.items()} for at in found(model)}
    report = condition(model, Conditioning(lam=lam, targets=("q", "v")), layouts=TASK.layouts(model))
    assert report.count == 2 * SMALL.layers
    for attention in found(model):
        assert attention.heads == SMALL.heads
        for role, projection in attention.projections.items():
            change = projection.effective() - before[attention.name][role]
            wanted = lam * torch.eye(SMALL.width).double() if role != "k" else torch.zeros_like(change)
            torch.testing.assert_close(change, wanted)


def found(model: nn.Module) -> list:  # type: ignore[type-arg]
    return find_attention(model, layouts=TASK.layouts(model))


def test_interleaved_rows_are_those_the_forward_pass_uses() -> None:
    """Zeroing the rows called v of head 1 silences head 1 and no other."""
    model = build("crammed_bert")
    (first, *_) = found(model)
    d, layer = SMALL.width // SMALL.heads, first.projections["v"].layer
    x = torch.randn(2, N, SMALL.width, dtype=torch.float64)
    outputs: list[Tensor] = []
    first.module.dense.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    with torch.no_grad():
        first.module(x)
        rows = torch.as_tensor(first.projections["v"].rows).reshape(-1)[d : 2 * d]
        layer.weight[rows] = 0
        first.module(x)
    before, after = (output.unflatten(-1, (SMALL.heads, d)) for output in outputs)
    assert after[:, :, 1].abs().max() == 0
    torch.testing.assert_close(after[:, :, [0, 2]], before[:, :, [0, 2]])


def test_initial_weights_are_the_recipes() -> None:
    torch.manual_seed(0)
    model = build_language_model(ModelConfig(width=96, layers=2, ffn=384), vocabulary=2000, length=128)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        elif "norm" in name:
            assert parameter.unique().tolist() == [1.0 if name.endswith("weight") else 0.0], name
    assert model.state_dict()["embedding.weight"][0].abs().max() == 0
    assert model.state_dict()["positions.scale"].item() == pytest.approx(96**-0.5)


def test_head_sizes_come_from_the_task_and_not_from_pretraining() -> None:
    outputs = {}
    for key, task in GLUE_TASKS.items():
        model = GlueModel(build("crammed_bert").float(), outputs=task.outputs, settings=SMALL).eval()
        outputs[key] = model(torch.ones(2, 4, dtype=torch.long)).shape[-1]
    assert outputs == {"cola": 2, "sst2": 2, "mrpc": 2, "stsb": 1, "qqp": 2, "mnli": 3, "qnli": 2, "rte": 2}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_fine_tuning_leaves_the_decoder_alone(name: str) -> None:
    model = GlueModel(build(name).float(), outputs=2, settings=SMALL)
    model(torch.randint(1, V, (2, N))).sum().backward()
    for key, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
