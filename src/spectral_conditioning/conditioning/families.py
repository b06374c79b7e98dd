"""The attention classes whose layout is known, as data.

A class matches by its full name, or as a subclass that inherits the forward of a listed class; a subclass with a
forward of its own may store its rows in another order and is unknown. Each family is tested on the real class of its
library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from spectral_conditioning.conditioning.packing import (
    Layout,
    Packed,
    fused_kv,
    interleaved,
    separate,
    stacked,
)
from spectral_conditioning.conditioning.storage import qualified_name


@dataclass(frozen=True)
class Family:
    """Attention classes of one layout. Of several layouts the first whose weights a module has is the one that holds.

    models: {model name of the library: number of Q, K and V projections}, for full-size models that the tests build.
    """

    name: str
    classes: tuple[str, ...]
    layouts: tuple[Layout, ...]
    models: Mapping[str, int] = field(default_factory=dict)


_TIMM_QKV = stacked("qkv", heads="num_heads", scale="scale")
_TIMM_QKV_UNSCALED = stacked("qkv", heads="num_heads", scale=1.0)
_BERT = separate("query", "key", "value", heads="num_attention_heads", scale="scaling")
_GROUPED = separate(
    "q_proj",
    "k_proj",
    "v_proj",
    heads="config.num_attention_heads",
    kv_heads="config.num_key_value_heads",
    scale="scaling",
)
_MULTIHEAD = (
    Layout((Packed("", "qkv", "stacked", "in_proj_weight"),), heads="num_heads"),
    Layout(
        (
            Packed("", "q", tensor="q_proj_weight"),
            Packed("", "k", tensor="k_proj_weight"),
            Packed("", "v", tensor="v_proj_weight"),
        ),
        heads="num_heads",
    ),
)

FAMILIES: tuple[Family, ...] = (
    Family("torch MultiheadAttention", ("torch.nn.modules.activation.MultiheadAttention",), _MULTIHEAD),
    Family(
        "timm ViT, DeiT",
        ("timm.layers.attention.Attention",),
        (_TIMM_QKV,),
        {"vit_base_patch16_224": 36, "deit_base_patch16_224": 36},
    ),
    Family(
        "timm Swin",
        ("timm.models.swin_transformer.WindowAttention",),
        (_TIMM_QKV,),
        {"swin_base_patch4_window7_224": 72},
    ),
    Family(
        "timm SwinV2",
        ("timm.models.swin_transformer_v2.WindowAttention",),
        (_TIMM_QKV_UNSCALED,),
        {"swinv2_base_window8_256": 72},
    ),
    Family("timm XCiT (XCA)", ("timm.models.xcit.XCA",), (_TIMM_QKV_UNSCALED,), {"xcit_medium_24_p16_224": 78}),
    Family(
        "timm class attention (CaiT, XCiT)",
        ("timm.models.cait.ClassAttn",),
        (separate("q", "k", "v", heads="num_heads", scale="scale"),),
    ),
    Family("timm CaiT", ("timm.models.cait.TalkingHeadAttn",), (_TIMM_QKV,), {"cait_s24_224": 78}),
    Family("timm DaViT window", ("timm.models.davit.WindowAttention",), (_TIMM_QKV,), {"davit_base": 72}),
    Family("timm DaViT channel", ("timm.models.davit.ChannelAttention",), (_TIMM_QKV,)),
    Family("timm DaViT channel v2", ("timm.models.davit.ChannelAttentionV2",), (stacked("qkv", heads="groups"),)),
    Family("timm BEiT", ("timm.models.beit.Attention",), (_TIMM_QKV,), {"beit_base_patch16_224": 36}),
    Family(
        "timm EVA, RoPE",
        ("timm.models.eva.EvaAttention", "timm.layers.attention.AttentionRope"),
        (
            _TIMM_QKV,
            separate("q_proj", "k_proj", "v_proj", heads="num_heads", scale="scale"),
        ),
    ),
    Family(
        "transformers BERT, RoBERTa, ALBERT, ELECTRA",
        (
            "transformers.models.bert.modeling_bert.BertSelfAttention",
            "transformers.models.bert.modeling_bert.BertCrossAttention",
            "transformers.models.roberta.modeling_roberta.RobertaSelfAttention",
            "transformers.models.roberta.modeling_roberta.RobertaCrossAttention",
            "transformers.models.electra.modeling_electra.ElectraSelfAttention",
            "transformers.models.electra.modeling_electra.ElectraCrossAttention",
            "transformers.models.albert.modeling_albert.AlbertAttention",
        ),
        (_BERT,),
    ),
    Family(
        "transformers DistilBERT",
        ("transformers.models.distilbert.modeling_distilbert.DistilBertSelfAttention",),
        (separate("q_lin", "k_lin", "v_lin", heads="n_heads", scale="scaling"),),
    ),
    Family(
        "transformers ViT",
        ("transformers.models.vit.modeling_vit.ViTAttention",),
        (separate("q_proj", "k_proj", "v_proj", heads="num_attention_heads", scale="scaling"),),
    ),
    Family(
        "transformers Nyströmformer",
        ("transformers.models.nystromformer.modeling_nystromformer.NystromformerSelfAttention",),
        (separate("query", "key", "value", heads="num_attention_heads"),),
    ),
    Family(
        "transformers GPT-2",
        ("transformers.models.gpt2.modeling_gpt2.GPT2Attention",),
        (
            fused_kv("q_attn", "c_attn", heads="num_heads", scale="scaling"),
            stacked("c_attn", heads="num_heads", scale="scaling"),
        ),
    ),
    Family(
        "transformers GPT-NeoX",
        ("transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention",),
        (interleaved("query_key_value", heads="config.num_attention_heads", scale="scaling"),),
    ),
    Family(
        "transformers Llama, Mistral, Qwen",
        (
            "transformers.models.llama.modeling_llama.LlamaAttention",
            "transformers.models.mistral.modeling_mistral.MistralAttention",
            "transformers.models.qwen2.modeling_qwen2.Qwen2Attention",
            "transformers.models.qwen3.modeling_qwen3.Qwen3Attention",
        ),
        (_GROUPED,),
    ),
    Family(
        "transformers T5",
        ("transformers.models.t5.modeling_t5.T5Attention",),
        (separate("q", "k", "v", heads="n_heads", scale="scaling"),),
    ),
)

_BY_CLASS = {name: family for family in FAMILIES for name in family.classes}


class FamilyTable(tuple[Family, ...]):
    """The families; printing it gives the table."""

    def __str__(self) -> str:
        rows = [("family", "classes", "stored rows", "projections")]
        for family in self:
            classes = ", ".join(name.rpartition(".")[2] for name in family.classes)
            layouts = " or ".join(layout.describe() for layout in family.layouts)
            models = ", ".join(f"{model} {count}" for model, count in family.models.items())
            rows.append((family.name, classes, layouts, "3 a module" + (f"; {models}" if models else "")))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)) for row in rows
        )


def families() -> FamilyTable:
    """Return the table of known attention families: `print(families())`."""
    return FamilyTable(FAMILIES)


def match_family(cls: type[nn.Module]) -> Family | None:
    """Return the family of an attention class, or None."""
    for base in cls.__mro__:
        family = _BY_CLASS.get(qualified_name(base))
        if family is not None:
            return family if cls.forward is getattr(base, "forward", None) else None
    return None
