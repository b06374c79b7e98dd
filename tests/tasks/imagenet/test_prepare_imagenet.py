"""Laws of `spectral prepare imagenet`: a whole copy passes, each fault is named, nothing is written."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.imagenet import prepare
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.data import load_image_data

COUNTS = ["--classes", "3", "--training", "12", "--validation", "9", "--workers", "0"]


def check(path: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser)
    return prepare.run(parser.parse_args([str(path), *COUNTS, *options]))


def tree(root: Path) -> list[tuple[str, int, float]]:
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime) for path in root.rglob("*"))


def test_whole_copy_passes_and_stays_as_it_is(
    folder: Path, small_vit: ModelConfig, images: Callable[..., DataConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(folder)
    assert check(folder) == 0
    said = capsys.readouterr().out
    assert "3 classes, 12 training and 9 validation images, all decoded" in said
    # The fingerprint is the one that runs record.
    assert load_image_data(small_vit, images(folder)).fingerprint in said
    assert tree(folder) == before


def test_standard_counts_are_imagenets(folder: Path) -> None:
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser)
    args = parser.parse_args([str(folder), "--counts-only"])
    with pytest.raises(DataError) as caught:
        prepare.run(args)
    for said in ("3 classes, expected 1,000", "12 images, expected 1,281,167", "9 images, expected 50,000"):
        assert said in str(caught.value)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_every_damaged_image_is_named(workers: str, folder: Path) -> None:
    for name in ("train/ant/ant_2.jpg", "val/cat/cat_0.jpg"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-40])
    (folder / "train/bee/bee_0.jpg").write_text("not found")
    with pytest.raises(DataError) as caught:
        check(folder, "--workers", workers)
    for name in ("train/ant/ant_2.jpg", "val/cat/cat_0.jpg", "train/bee/bee_0.jpg"):
        assert name in str(caught.value)
    assert "3 problems" in str(caught.value)


def test_counting_alone_does_not_decode(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train/bee/bee_0.jpg").write_text("not found")
    assert check(folder, "--counts-only") == 0
    assert "all counted" in capsys.readouterr().out


def test_missing_and_surplus_images_are_counted(folder: Path) -> None:
    (folder / "train/bee/bee_0.jpg").unlink()
    with pytest.raises(DataError, match=r"split 'train' has 11 images, expected 12"):
        check(folder)
    shutil.move(folder / "val/bee/bee_0.jpg", folder / "val/ant/bee_0.jpg")
    with pytest.raises(DataError, match=r"class 'ant' has 4 validation images, expected 3"):
        check(folder)
