"""Laws of tar shards: they serve the samples of the folder they were made from, read by position; faults are named."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.data import load_image_data
from spectral_conditioning.tasks.imagenet.sources import split_files
from spectral_conditioning.tasks.streams import StreamDataModule

Settings = Callable[..., DataConfig]


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    """Two tars a split in the WebDataset convention, keys with dots in their folder, labels before and after images."""
    root = tmp_path / "shards"
    root.mkdir()
    for split, word in (("train", "train"), ("val", "validation")):
        paths = [path for name in ("ant", "bee", "cat") for path in sorted((folder / split / name).iterdir())]
        for number in range(2):
            with tarfile.open(root / f"pictures1k-{word}-{number:04d}.tar", "w") as tar:
                for path in paths[number * len(paths) // 2 : (number + 1) * len(paths) // 2]:
                    label = str(["ant", "bee", "cat"].index(path.parent.name)).encode()
                    parts = [(f"v1.0/{path.stem}.jpg", path.read_bytes()), (f"v1.0/{path.stem}.cls", label)]
                    for name, content in parts if number else reversed(parts):
                        add(tar, name, content)
                    add(tar, f"v1.0/{path.stem}.json", b"{}")
    return root


def settings(images: Settings, path: Path) -> DataConfig:
    return images(path, source="shards", val_split="validation")


def test_shards_serve_the_samples_of_their_folder(
    shards: Path, folder: Path, small_vit: ModelConfig, images: Settings
) -> None:
    tars, files = load_image_data(small_vit, settings(images, shards)), load_image_data(small_vit, images(folder))
    assert tars.chance == files.chance
    for one, other in ((tars.train, files.train), (tars.val, files.val)):
        assert len(one) == len(other)  # type: ignore[arg-type]
        for index in range(len(one)):  # type: ignore[arg-type]
            assert torch.equal(one[index][0], other[index][0])
            assert one[index][1] == other[index][1]


def test_workers_read_the_same(shards: Path, small_vit: ModelConfig, images: Settings) -> None:
    data = load_image_data(small_vit, settings(images, shards))
    served = StreamDataModule(
        train=data.train, val=data.val, test=None, batch_size=4, eval_batch_size=4, seed=0, workers=2
    )
    seen = torch.cat([batch.samples[0] for batch in served.val_dataloader()])[:9]
    assert torch.equal(seen, torch.stack([data.val[index][0] for index in range(9)]))


def test_words_of_file_names(tmp_path: Path) -> None:
    names = [
        "a-train-0.tar",
        "train/x.tar",
        "b.train1.tar",
        "validation-0.tar",
        "val.tar",
        "training.tar",
        "retrain-0.tar",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def found(split: str) -> list[str]:
        paths = split_files(str(tmp_path), split=split, part="train", suffix=".tar")
        return sorted(path.relative_to(tmp_path).as_posix() for path in paths)

    assert found("train") == ["a-train-0.tar", "b.train1.tar", "train/x.tar"]
    assert found("val") == ["val.tar"]
    assert found("validation") == ["validation-0.tar"]


def test_cut_shard_is_named(shards: Path, small_vit: ModelConfig, images: Settings) -> None:
    victim = shards / "pictures1k-train-0001.tar"
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 3])
    with pytest.raises(DataError, match=r"pictures1k-train-0001\.tar"):
        load_image_data(small_vit, settings(images, shards))


def test_shard_that_shrank_since_it_was_indexed_is_named(
    shards: Path, small_vit: ModelConfig, images: Settings
) -> None:
    data = load_image_data(small_vit, settings(images, shards))
    victim = shards / "pictures1k-validation-0001.tar"
    victim.write_bytes(victim.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"pictures1k-validation-0001\.tar ends within v1\.0/cat_2\.jpg"):
        data.val[8]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("a.jpg", b"")], r"image a\.jpg has no \.cls file with a class number \(1 such images\)"),
        ([("a.jpg", b""), ("a.cls", b"ant")], r"a\.cls must hold a class number"),
        ([("a.jpg", b""), ("a.cls", b"-1")], r"image a\.jpg has no \.cls file"),
        ([("a.txt", b"")], r"hold no images"),
    ],
)
def test_faults_inside_a_shard_are_named(
    files: list[tuple[str, bytes]], said: str, tmp_path: Path, small_vit: ModelConfig, images: Settings
) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for name, content in files:
            add(tar, name, content)
    with pytest.raises(DataError, match=said):
        load_image_data(small_vit, settings(images, tmp_path))


def test_compressed_shard_is_refused(tmp_path: Path, small_vit: ModelConfig, images: Settings) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w:gz") as tar:
        add(tar, "a.jpg", b"x")
    with pytest.raises(DataError, match=r"train-0\.tar cannot be read as an uncompressed tar"):
        load_image_data(small_vit, settings(images, tmp_path))
