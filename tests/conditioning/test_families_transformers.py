"""Every transformers family on its real, tiny model: forward, keys, folding and counts against weights edited by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import condition, conditioned_layers, find_attention, fold

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 50,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CROSS = {"is_decoder": True, "add_cross_attention": True}


def separate(*names: str, kv_heads: int = 4) -> list[Any]:
    return [(f"*{name}.weight", role, "stacked", 4, kv_heads) for role, name in zip("qkv", names, strict=True)]


BERT = separate("query", "key", "value")
LLAMA = separate("q_proj", "k_proj", "v_proj", kv_heads=2)
CONV1D = [("*attn.c_attn.weight", "qkv", "stacked transposed", 4, 4)]
# class prefix, configuration, packings, projections
MODELS: dict[str, tuple[str, str, dict[str, Any], list[Any], int]] = {
    "BERT": ("BertModel", "BertConfig", SIZES, BERT, 6),
    "BERT decoder": ("BertModel", "BertConfig", {**SIZES, **CROSS}, BERT, 12),
    "RoBERTa": ("RobertaModel", "RobertaConfig", SIZES, BERT, 6),
    "ELECTRA": ("ElectraModel", "ElectraConfig", {**SIZES, "embedding_size": 16}, BERT, 6),
    "ALBERT, shared layers": ("AlbertModel", "AlbertConfig", {**SIZES, "embedding_size": 16}, BERT, 3),
    "DistilBERT": (
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 50, "max_position_embeddings": 64},
        separate("q_lin", "k_lin", "v_lin"),
        6,
    ),
    "GPT-2": ("GPT2Model", "GPT2Config", GPT2, CONV1D, 6),
    "GPT-2 decoder": (
        "GPT2Model",
        "GPT2Config",
        {**GPT2, "add_cross_attention": True},
        [
            *CONV1D,
            ("*crossattention.q_attn.weight", "q", "stacked transposed", 4, 4),
            ("*crossattention.c_attn.weight", "kv", "stacked transposed", 4, 4),
        ],
        12,
    ),
    "GPT-NeoX": (
        "GPTNeoXModel",
        "GPTNeoXConfig",
        SIZES,
        [("*query_key_value.weight", "qkv", "interleaved", 4, 4)],
        6,
    ),
    "Llama": ("LlamaModel", "LlamaConfig", GROUPED, LLAMA, 6),
    "Mistral": ("MistralModel", "MistralConfig", GROUPED, LLAMA, 6),
    "Qwen2": ("Qwen2Model", "Qwen2Config", GROUPED, LLAMA, 6),
    "Qwen3": ("Qwen3Model", "Qwen3Config", {**GROUPED, "head_dim": 16}, LLAMA, 6),
    "T5": (
        "T5Model",
        "T5Config",
        {"d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 50},
        [(f"*Attention.{role}.weight", role, "stacked", 4, 4) for role in "qkv"],
        18,
    ),
    "Nyströmformer": (
        "NystromformerModel",
        "NystromformerConfig",
        {**SIZES, "num_landmarks": 4, "segment_means_seq_len": 16},
        BERT,
        6,
    ),
    "ViT": (
        "ViTModel",
        "ViTConfig",
        {**{k: v for k, v in SIZES.items() if k != "vocab_size"}, "image_size": 16, "patch_size": 8},
        separate("q_proj", "k_proj", "v_proj"),
        6,
    ),
}


def build(family: str) -> nn.Module:
    model, config, arguments, _, _ = MODELS[family]
    return getattr(transformers, model)(getattr(transformers, config)(**arguments))


def inputs(family: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 50, (2, 16), generator=generator)
    if family == "ViT":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    values = {"input_ids": tokens}
    if family == "T5":
        values["decoder_input_ids"] = tokens.flip(0)
    if family.endswith("decoder"):
        values["encoder_hidden_states"] = torch.randn(2, 5, 32, generator=generator)
    return values


@pytest.mark.parametrize("family", MODELS)
def test_family(family: str, hand_edited: Callable[..., int], randomised: Callable[..., nn.Module]) -> None:
    *_, packings, count = MODELS[family]
    plain = randomised(build(family))
    values = inputs(family)
    reference, model = copy.deepcopy(plain), copy.deepcopy(plain)
    edited = hand_edited(reference, 0.7, packings)
    report = condition(model, lam=0.7)

    assert report.count == count
    layers = conditioned_layers(model)
    assert len(layers) == edited
    for name, layer in layers.items():
        torch.testing.assert_close(layer.effective_weight(), reference.get_submodule(name).weight, rtol=0, atol=0)
    with torch.no_grad():
        expected, before = reference(**values)[0], plain(**values)[0]
        assert (expected - before).abs().max() > 1e-2 * before.abs().max()
        torch.testing.assert_close(model(**values)[0], expected, rtol=1e-4, atol=1e-4)
        assert set(model.state_dict()) - set(plain.state_dict()) == {f"{name}._extra_state" for name in layers}
        fold(model)
        torch.testing.assert_close(model(**values)[0], expected, rtol=1e-4, atol=1e-4)
    assert list(model.state_dict()) == list(plain.state_dict())


class Captured(torch.overrides.TorchFunctionMode):
    """Records the q, k and v that reach scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            values = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            self.calls.append((values["query"], values["key"], values["value"]))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "roles"),
    [("BERT", "qkv"), ("GPT-2", "qkv"), ("GPT-NeoX", "v"), ("Llama", "v"), ("Qwen2", "v"), ("ViT", "qkv")],
)
def test_rows_reach_the_role_and_head_that_the_layout_says(
    family: str, roles: str, randomised: Callable[..., nn.Module]
) -> None:
    """What enters softmax attention as head h of a role equals x times that head's rows (rotary q and k are left out)."""
    model = randomised(build(family))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.detach().zero_()
    condition(model, lam=0.7)
    attention = find_attention(model)[0]
    seen: list[Tensor] = []
    attention.module.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    with torch.no_grad(), Captured() as captured:
        model(**inputs(family))
    x_BND = seen[0]
    for role, found_BHNd in zip("qkv", captured.calls[0], strict=True):
        if role in roles:
            projection = attention.projections[role]
            heads = projection.per_head(projection.effective())
            expected = torch.stack([x_BND @ weight_dD.T for weight_dD in heads], dim=1)
            repeats = found_BHNd.shape[1] // expected.shape[1]
            torch.testing.assert_close(found_BHNd, expected.repeat_interleave(repeats, dim=1), rtol=1e-4, atol=1e-4)


def test_grouped_heads_are_reported() -> None:
    report = condition(build("Llama"), lam=1.0)
    assert [(row.role, row.heads, row.shape) for row in report.projections[:3]] == [
        ("q", 4, (32, 32)),
        ("k", 2, (16, 32)),
        ("v", 2, (16, 32)),
    ]
    assert "head 0 only" in report.remarks[0]
    assert "x[:d]" in condition(build("Llama"), lam=1.0, placement="per_head").remarks[0]


def test_scale_is_the_modules_own() -> None:
    assert find_attention(build("T5"))[0].scale == 1.0
    assert find_attention(build("BERT"))[0].scale == 8**-0.5


def test_tied_embeddings_survive_fold_and_export(tmp_path: Any, randomised: Callable[..., nn.Module]) -> None:
    config = transformers.GPT2Config(**GPT2)
    model = randomised(transformers.GPT2LMHeadModel(config))
    condition(model, lam=2.0)
    values = inputs("GPT-2")
    with torch.no_grad():
        expected = model(**values).logits
    fold(model)
    assert model.lm_head.weight is model.transformer.wte.weight
    model.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    with torch.no_grad():
        torch.testing.assert_close(loaded(**values).logits, expected, rtol=1e-5, atol=1e-5)
