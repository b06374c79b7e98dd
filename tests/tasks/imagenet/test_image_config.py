"""Laws of the settings: the YAML files name every key, and every value that does not fit is found, all in one go."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import yaml

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig, problems
from spectral_conditioning.tasks.imagenet.model import ARCHITECTURE, build_classifier
from spectral_conditioning.tasks.optim import OptimConfig
from spectral_conditioning.training.compose import compose_tree, config_directory

CONF = config_directory()


def found(model: ModelConfig | None = None, data: DataConfig | None = None) -> list[str]:
    model = model or ModelConfig(in_chans=1, img_size=8)
    return problems(SimpleNamespace(task=SimpleNamespace(model=model), data=data or DataConfig()))


def keys(schema: type) -> set[str]:
    return {field.name for field in dataclasses.fields(schema)}


@pytest.mark.parametrize("name", ["vit_digits", "timm"])
def test_task_files_name_every_model_key(name: str) -> None:
    assert set(yaml.safe_load((CONF / f"task/{name}.yaml").read_text())["model"]) == keys(ModelConfig)


@pytest.mark.parametrize(
    "name", ["digits", "images", "imagenet", "imagenet_parquet", "imagenet_hub", "imagenet_shards"]
)
def test_data_files_name_every_key(name: str) -> None:
    tree = compose_tree(["experiment=imagenet/deit_b", f"data={name}"])
    assert set(tree.data) == keys(DataConfig)


def test_optimizer_file_names_every_key() -> None:
    assert set(yaml.safe_load((CONF / "optim/adamw_cosine.yaml").read_text())) == keys(OptimConfig)


def test_defaults_have_no_problems() -> None:
    assert found() == []


IMAGES = {"source": "images", "path": "somewhere"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 0}, "data.batch_size is 0"),
        (
            {"source": "digit"},
            "data.source is 'digit'; allowed: digits, images, parquet, hub, shards; closest 'digits'",
        ),
        ({"augment": True}, "data.source 'digits' is served as it is"),
        ({"repeats": 3}, "data.source 'digits' is served as it is"),
        ({"source": "images"}, "data.path is not given"),
        ({**IMAGES, "val_split": "train"}, "data.train_split and data.val_split are both 'train'"),
        ({**IMAGES, "label_column": "image"}, "data.image_column and data.label_column are both 'image'"),
        ({**IMAGES, "crop_pct": 0.0}, "data.crop_pct is 0.0"),
        ({**IMAGES, "eval_interpolation": "random"}, "data.eval_interpolation is 'random'"),
        ({**IMAGES, "interpolation": "cubic"}, "data.interpolation is 'cubic'; allowed: nearest, bilinear, bicubic"),
        ({**IMAGES, "crop_scale": (1.0, 0.5)}, "data.crop_scale is [1, 0.5]"),
        ({**IMAGES, "crop_ratio": (0.0, 0.5)}, "data.crop_ratio is [0, 0.5]"),
        ({**IMAGES, "flip": 1.5}, "data.flip is 1.5; it must lie in [0, 1]"),
        ({**IMAGES, "erasing": -0.1}, "data.erasing is -0.1"),
        ({**IMAGES, "erasing_mode": "noise"}, "data.erasing_mode is 'noise'"),
        ({**IMAGES, "erasing_count": 0}, "data.erasing_count is 0"),
        ({**IMAGES, "repeats": 0}, "data.repeats is 0"),
        ({**IMAGES, "policy": "random"}, "data.policy is 'random'"),
        ({"mixup": -1.0}, "data.mixup is -1.0"),
        ({"mixup": float("nan")}, "data.mixup is nan"),
        ({"cutmix": float("inf")}, "data.cutmix is inf"),
        ({"mix_prob": 2.0}, "data.mix_prob is 2.0"),
        ({"mix_mode": "half"}, "data.mix_mode is 'half'"),
    ],
)
def test_data_values_that_do_not_fit(changes: dict[str, object], said: str) -> None:
    model = ModelConfig() if changes.get("source") == "images" else None
    listed = found(model, DataConfig(**changes))  # type: ignore[arg-type]
    assert len(listed) == 1, listed
    assert said in listed[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"in_chans": 3}, "data.source 'digits' needs task.model.in_chans 1 and task.model.img_size 8; found 3 and 8"),
        ({"img_size": 32}, "found 1 and 32"),
        (
            {"loss": "cross-entropy"},
            "task.model.loss is 'cross-entropy'; allowed: cross_entropy, binary_cross_entropy; closest",
        ),
        ({"smoothing": 1.0}, "task.model.smoothing is 1.0; it must lie in [0, 1)"),
        ({"drop_path_rate": -0.1}, "task.model.drop_path_rate is -0.1"),
        ({"depth": 0}, "task.model.depth is 0"),
        (
            {"norm_layer": "layer_norm"},
            "task.model.norm_layer is 'layer_norm'; allowed: layernorm, rmsnorm, none; closest",
        ),
        ({"embed_dim": 64, "num_heads": 3}, "task.model.embed_dim is 64, not a multiple of task.model.num_heads (3)"),
        ({"patch_size": 3}, "task.model.img_size is 8, not a multiple of task.model.patch_size (3)"),
    ],
)
def test_model_values_that_do_not_fit(changes: dict[str, object], said: str) -> None:
    listed = found(ModelConfig(**{"in_chans": 1, "img_size": 8, **changes}))  # type: ignore[arg-type]
    assert len(listed) == 1, listed
    assert said in listed[0]


def test_all_problems_come_at_once() -> None:
    listed = found(ModelConfig(loss="none", smoothing=2.0), DataConfig(source="images", flip=3.0, batch_size=-1))
    assert len(listed) == 5


def test_every_architecture_setting_reaches_timm() -> None:
    given = ModelConfig(
        name="vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=12, depth=3, num_heads=2, mlp_ratio=2.0,
        class_token=False, global_pool="avg", qkv_bias=False, drop_rate=0.1, attn_drop_rate=0.2, drop_path_rate=0.3, in_chans=1,
    )  # fmt: skip
    assert set(ARCHITECTURE) <= keys(ModelConfig)
    model = build_classifier(given, outputs=6)
    block = model.blocks[2]  # type: ignore[union-attr,index]
    assert model.patch_embed.proj.weight.shape == (12, 1, 4, 4)  # type: ignore[union-attr]
    assert len(model.blocks) == 3  # type: ignore[arg-type]
    assert (block.attn.num_heads, block.attn.qkv.bias, block.mlp.fc1.out_features) == (2, None, 24)  # type: ignore[union-attr]
    assert (block.attn.attn_drop.p, block.drop_path1.drop_prob, model.head_drop.p) == pytest.approx((0.2, 0.3, 0.1))  # type: ignore[union-attr]
    assert model.cls_token is None
    assert model.head.out_features == 6  # type: ignore[union-attr]


@pytest.mark.parametrize(("chosen", "kind"), [(None, "LayerNorm"), ("rmsnorm", "RmsNorm"), ("none", "Identity")])
def test_the_normalisation_is_what_was_chosen(chosen: str | None, kind: str) -> None:
    given = ModelConfig(name="vit_tiny_patch16_224", img_size=16, depth=2, norm_layer=chosen)
    model = build_classifier(given, outputs=2)
    places = ["blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm"]
    assert [type(model.get_submodule(place)).__name__ for place in places] == [kind] * 5
    left = {type(module).__name__ for module in model.modules()} & {"LayerNorm", "RmsNorm"}
    assert left == {kind} - {"Identity"}


def test_setting_that_a_model_does_not_take_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot build 'swin_tiny_patch4_window7_224' with class_token=True: .*class_token"
    ):
        build_classifier(ModelConfig(name="swin_tiny_patch4_window7_224", class_token=True), outputs=3)
    with pytest.raises(ConfigError, match=r"closest 'vit_base_patch16_224'"):
        build_classifier(ModelConfig(name="vit_base_patch16_244"), outputs=3)
