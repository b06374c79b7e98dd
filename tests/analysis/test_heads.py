"""Heads bound from real models: the formula's output is the model's, so weights, biases, masks and scale are right."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import nn

from spectral_conditioning import condition
from spectral_conditioning.analysis.capture import capture_inputs
from spectral_conditioning.analysis.heads import UnsupportedAttentionError, bind_head, unsupported
from spectral_conditioning.conditioning import find_attention

transformers = pytest.importorskip("transformers")


def images(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def vit() -> tuple[nn.Module, tuple[Any, ...], str]:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2), (images(32),), "proj"


def swin() -> tuple[nn.Module, tuple[Any, ...], str]:
    sizes = {"img_size": 56, "depths": (2,), "embed_dim": 48, "num_heads": (2,)}
    return timm.create_model("swin_tiny_patch4_window7_224", **sizes), (images(56),), "proj"


def xcit() -> tuple[nn.Module, tuple[Any, ...], str]:
    return timm.create_model("xcit_nano_12_p16_224", img_size=64, depth=1), (images(64),), "proj"


def davit() -> tuple[nn.Module, tuple[Any, ...], str]:
    model = timm.create_model("davit_tiny", depths=(1,), embed_dims=(48,), num_heads=(3,))
    return model, (images(56),), "proj"


def beit() -> tuple[nn.Module, tuple[Any, ...], str]:
    model = timm.create_model("beit_base_patch16_224", img_size=32, depth=1, embed_dim=48, num_heads=3)
    return model, (images(32),), "proj"


def bert() -> tuple[nn.Module, tuple[Any, ...], str]:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < 6).expand(2, 9).long()
    return model, (ids, mask), "dense"


def gpt2() -> tuple[nn.Module, tuple[Any, ...], str]:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, n_positions=16)
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    return transformers.GPT2Model(config), (ids,), "c_proj"


MODELS = {"vit": vit, "swin": swin, "xcit": xcit, "davit": davit, "beit": beit, "bert": bert, "gpt2": gpt2}


def disturb(model: nn.Module) -> None:
    """Make biases, norms and position tables non-trivial, so that leaving one out shows."""
    draws = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or "bias_table" in name:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_output_of_a_bound_head_is_the_models(build: Callable[[], Any], fused: bool):
    model, inputs, last_layer = build()
    model = model.double().eval()
    disturb(model)
    condition(model, lam=0.5)
    if not fused and hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    attentions = find_attention(model)
    outputs: dict[str, torch.Tensor] = {}
    for attention in attentions:
        if hasattr(attention.module, "fused_attn"):
            attention.module.fused_attn = fused
        names = dict(model.named_modules())
        layer = names.get(f"{attention.name}.{last_layer}") or names[f"{attention.name[:-5]}.output.{last_layer}"]
        layer.register_forward_pre_hook(
            lambda module, args, name=attention.name: outputs.__setitem__(name, args[0].detach())
        )
    captured = capture_inputs(model, attentions, lambda: model(*inputs))
    for attention in attentions:
        for head in (0, attention.heads - 1):
            expected = outputs[attention.name].reshape(-1, *outputs[attention.name].shape[-2:])[0]
            expected = expected[:, head * attention.head_dim : (head + 1) * attention.head_dim]
            found = bind_head(attention, captured[attention.name], head=head).output_No
            assert torch.allclose(found, expected[: len(found)], rtol=0, atol=1e-12), attention.name


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 12, "vdim": 12}], ids=["stacked", "separate"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_torch_multihead_attention(batch_first: bool, sizes: dict[str, int], need_weights: bool):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, batch_first=batch_first, dtype=torch.float64, **sizes)
    nn.init.normal_(module.in_proj_bias)
    condition(module, lam=0.5)
    x, z = torch.randn(3, 5, 16, dtype=torch.float64), torch.randn(3, 7, sizes.get("kdim", 16), dtype=torch.float64)
    mask = torch.randn(5, 7, dtype=torch.float64)
    given = (x, z) if batch_first else (x.transpose(0, 1), z.transpose(0, 1))
    attention = find_attention(module)[0]
    captured = capture_inputs(
        module, [attention], lambda: module(given[0], given[1], given[1], attn_mask=mask, need_weights=need_weights)
    )
    heads = [bind_head(attention, captured[attention.name], head=head).output_No for head in range(2)]
    with torch.no_grad():
        expected = module(given[0], given[1], given[1], attn_mask=mask)[0]
        expected = expected[0] if batch_first else expected[:, 0]
        found = module.out_proj(torch.cat(heads, dim=1))
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_other_attention_is_refused_by_name():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, qk_norm=True)
    attention = find_attention(model)[0]
    assert "q_norm" in (unsupported(attention) or "")
    captured = capture_inputs(model, [attention], lambda: model(images(32).float()))
    with pytest.raises(UnsupportedAttentionError, match=r"blocks\.0\.attn .*q_norm"):
        bind_head(attention, captured[attention.name])


def test_a_head_that_does_not_exist_and_a_layer_that_did_not_run():
    model, *_ = vit()
    model.double()
    attentions = find_attention(model)
    captured = capture_inputs(model, attentions, lambda: model.blocks[0](torch.randn(1, 5, 192, dtype=torch.float64)))
    with pytest.raises(UnsupportedAttentionError, match="heads 0 to 2; head 3"):
        bind_head(attentions[0], captured["blocks.0.attn"], head=3)
    with pytest.raises(UnsupportedAttentionError, match="did not reach"):
        bind_head(attentions[1], captured["blocks.1.attn"])


def test_fewer_tokens_are_attention_among_those_tokens():
    model, inputs, _ = vit()
    model.double()
    attention = find_attention(model)[0]
    captured = capture_inputs(model, [attention], lambda: model(*inputs))
    whole, part = (bind_head(attention, captured[attention.name], max_tokens=count) for count in (None, 3))
    kept = [0, 2, 4]
    assert torch.equal(part.tokens_ND, whole.tokens_ND[kept])
    expected = torch.softmax(whole.logits_NM[kept][:, kept], dim=1) @ whole.values_Mo[kept]
    assert torch.allclose(part.output_No, expected, rtol=0, atol=1e-13)
