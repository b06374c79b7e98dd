"""Laws of decoding and transforms: timm's own evaluation, conversion to colour, draws that depend on the seed alone."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.data import load_image_data
from spectral_conditioning.tasks.imagenet.images import decode, evaluation_transform, input_config, training_transform
from spectral_conditioning.tasks.streams import SampleKey, SeededDataset


def photograph(width: int = 300, height: int = 200) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    "name", ["deit_small_patch16_224", "swin_tiny_patch4_window7_224", "xcit_small_12_p16_224", "davit_tiny"]
)
def test_evaluation_is_timms_own(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    expected = create_transform(**resolve_model_data_config(model), is_training=False)(photograph())
    inputs = input_config(ModelConfig(name=name), DataConfig(source="images"))
    assert torch.equal(evaluation_transform(inputs)(photograph()), expected)
    # Without augmentation, training sees what evaluation sees.
    assert torch.equal(training_transform(inputs, DataConfig(source="images"))(photograph()), expected)


def test_loaded_images_are_evaluated_so_and_the_description_says_how(
    folder: Path, images: Callable[..., DataConfig], full_recipe: dict[str, object]
) -> None:
    name = "deit_small_patch16_224"
    data = load_image_data(ModelConfig(name=name, num_classes=3), images(folder, **full_recipe))
    with torch.device("meta"):
        model = timm.create_model(name)
    expected = create_transform(**resolve_model_data_config(model), is_training=False)
    assert torch.equal(data.val[0][0], expected(Image.open(folder / "val" / "ant" / "ant_0.jpg")))
    assert data.description.endswith(
        "evaluated at 224×224 (crop_pct 0.9, crop_mode center, interpolation bicubic, mean (0.485, 0.456, 0.406), "
        "std (0.229, 0.224, 0.225))"
    )


def test_evaluation_differs_where_crops_do() -> None:
    sizes = {}
    for name in ("deit_small_patch16_224", "xcit_small_12_p16_224", "davit_tiny"):
        inputs = input_config(ModelConfig(name=name), DataConfig(source="images"))
        sizes[name] = evaluation_transform(inputs)(photograph())
    found = list(sizes.values())
    assert not any(torch.equal(found[i], found[j]) for i in range(3) for j in range(i))


def test_stated_values_replace_timms() -> None:
    data = DataConfig(source="images", crop_pct=0.5, eval_interpolation="bilinear")
    inputs = input_config(ModelConfig(name="deit_small_patch16_224", img_size=64), data)
    expected = create_transform((3, 64, 64), crop_pct=0.5, interpolation="bilinear")(photograph())
    assert torch.equal(evaluation_transform(inputs)(photograph()), expected)


def test_unknown_model_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"'swin_bas_patch4_window7_224', which timm .* closest 'swin_base_patch4_window7_224'"
    ):
        input_config(ModelConfig(name="swin_bas_patch4_window7_224"), DataConfig())


@pytest.mark.parametrize(
    ("mode", "form"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("RGB", "JPEG")],
)
def test_every_kind_of_image_becomes_colour(mode: str, form: str, picture: Callable[..., bytes]) -> None:
    encoded = picture(3, form=form, mode=mode)
    image = decode(encoded, name="x", origin="y")
    assert (image.mode, image.size) == ("RGB", (20, 16))
    original = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    assert np.array_equal(np.asarray(image), original)
    assert original.std() > 20


def test_sixteen_bit_grey_keeps_its_range() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "PNG")
    found = np.asarray(decode(buffer.getvalue(), name="x", origin="y"), dtype=float)
    assert np.abs(found[..., 0].ravel() - np.arange(256)).max() <= 1


@pytest.fixture
def augmented(
    folder: Path, small_vit: ModelConfig, images: Callable[..., DataConfig], full_recipe: dict[str, object]
) -> SeededDataset:
    data = load_image_data(small_vit, images(folder, **full_recipe))
    return SeededDataset(data.train, seed=5, stream="augment")


def test_draws_depend_on_seed_and_visit_alone(augmented: SeededDataset) -> None:
    """Whatever an arm computed before, the sample of a visit is the same; other visits differ."""
    keys = [SampleKey(index, draw) for draw, index in enumerate((0, 5, 0, 11))]
    first = [augmented[key][0][0] for key in keys]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    torch.randn(1000)
    again = {key: augmented[key][0][0] for key in reversed(keys)}
    assert all(torch.equal(image, again[key]) for image, key in zip(first, keys, strict=True))
    assert not torch.equal(first[0], first[2])


def test_every_training_setting_reaches_timm() -> None:
    data = DataConfig(
        source="images", augment=True, crop_scale=(0.2, 0.9), crop_ratio=(0.5, 2.0), interpolation="lanczos", flip=0.3,
        policy="rand-m3-n4-p0.8-inc1", erasing=0.2, erasing_mode="rand", erasing_count=3,
    )  # fmt: skip
    inputs = {**input_config(ModelConfig(name="vit_tiny_patch16_224", img_size=64), data), "mean": (0.1, 0.2, 0.3)}
    crop, flip, policy, _, normalize, erasing = training_transform(inputs, data).transforms  # type: ignore[attr-defined]
    assert (tuple(crop.size), crop.scale, crop.ratio) == ((64, 64), (0.2, 0.9), (0.5, 2.0))
    assert str(crop.interpolation).endswith("LANCZOS") or "lanczos" in str(crop)
    assert flip.p == 0.3
    assert (policy.num_layers, policy.ops[0].magnitude, policy.ops[0].prob) == (4, 3, 0.8)
    assert normalize.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert normalize.std.tolist() == [0.5, 0.5, 0.5]
    assert (erasing.probability, erasing.mode, erasing.max_count) == (0.2, "rand", 3)


def test_jitter_is_applied_without_a_policy() -> None:
    data = DataConfig(source="images", augment=True, jitter=0.4, flip=0.0)
    steps = training_transform(input_config(ModelConfig(), data), data).transforms  # type: ignore[attr-defined]
    assert [type(step).__name__ for step in steps][1] == "ColorJitter"
    assert steps[1].brightness == pytest.approx((0.6, 1.4))


def test_policy_that_timm_cannot_read_is_named() -> None:
    data = DataConfig(source="images", augment=True, policy="rand-x9")
    with pytest.raises(ConfigError, match=r"timm cannot read data\.policy 'rand-x9'"):
        training_transform(input_config(ModelConfig(), data), data)


def test_training_follows_the_recipe(augmented: SeededDataset) -> None:
    """Crops, flips and erasing all occur: a visit in this many leaves the whole image unchanged by luck only."""
    plain = augmented.dataset.source  # type: ignore[attr-defined]
    visits = torch.stack([augmented[SampleKey(0, draw)][0][0] for draw in range(40)])
    assert visits.shape == (40, 3, 16, 16)
    assert len({visit.numpy().tobytes() for visit in visits}) == 40
    assert plain.labels[0] == 0
    # timm's erasing fills with unit normal noise, which leaves the range of pixels under mean .5, std .5.
    erased = (visits.abs() > 1.001).flatten(1).any(dim=1).float().mean()
    assert 0.2 < erased < 0.8


def test_unaugmented_sets_say_that_they_draw_nothing(
    folder: Path, small_vit: ModelConfig, images: Callable[..., DataConfig]
) -> None:
    data = load_image_data(small_vit, images(folder))
    state = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[union-attr]
    for part in (data.train, data.val):
        assert part.deterministic  # type: ignore[attr-defined]
        part[0]
    assert random.getstate() == state[0]
    assert np.array_equal(np.random.get_state()[1], state[1])  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state[2])
