"""Small image data sets, made on the spot."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig

CLASSES = ("ant", "bee", "cat")
PER_CLASS = {"train": 4, "val": 3}


def encode(seed: int, *, size: tuple[int, int] = (20, 16), form: str = "JPEG", mode: str = "RGB") -> bytes:
    """Return an encoded image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, form)
    return buffer.getvalue()


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """Return the function that makes an encoded image of noise from a seed."""
    return encode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of 3 classes: 4 training and 3 validation images each, all different."""
    root = tmp_path / "pictures"
    seed = 0
    for split, count in PER_CLASS.items():
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{name}_{number}.jpg").write_bytes(encode(seed))
                seed += 1
    return root


@pytest.fixture
def zipped(tmp_path: Path) -> Callable[[Path], Path]:
    """Pack a folder into a zip, with entries for folders as some programs write them."""

    def pack(root: Path) -> Path:
        target = tmp_path / f"{root.name}.zip"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*"), reverse=True):
                archive.write(path, path.relative_to(root))
        return target

    return pack


@pytest.fixture
def small_vit() -> ModelConfig:
    """A ViT of 16×16 pixels for 3 classes."""
    return ModelConfig(
        name="vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    )


@pytest.fixture
def images() -> Callable[..., DataConfig]:
    """Return settings that read a path, with changes."""

    def settings(path: Path | str, **changes: object) -> DataConfig:
        return DataConfig(**{"source": "images", "path": str(path), "batch_size": 4, **changes})  # type: ignore[arg-type]

    return settings


@pytest.fixture
def full_recipe() -> dict[str, object]:
    """Every augmentation of the ImageNet recipes at once."""
    return {
        "augment": True, "policy": "rand-m9-mstd0.5-inc1", "erasing": 0.5, "flip": 0.5, "interpolation": "random",
        "mixup": 0.8, "cutmix": 1.0,
    }  # fmt: skip
