"""`spectral prepare coco`: counts, files, pictures and checksums, everything wrong in one message."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.coco import prepare
from spectral_conditioning.tasks.coco.config import DataConfig


def arguments(folder: DataConfig, *extra: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser)
    paths = [f"--{name.replace('_', '-')}={getattr(folder, name)}" for name in prepare.PATHS]
    return parser.parse_args([str(folder.path), *paths, *extra])


def test_a_sound_folder_is_described(folder: DataConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.run(arguments(folder, "--any-size")) == 0
    said = capsys.readouterr().out
    assert "train: 5 images (1 without annotations), 5 annotations, 3 categories" in said
    assert "1 × crowd region (e.g. annotation 3)" in said
    assert "1 × mask of less than 3 points (e.g. annotation 4)" in said


def test_another_data_set_is_not_taken_for_coco(folder: DataConfig) -> None:
    with pytest.raises(DataError, match="5 train images, COCO 2017 has 118,287") as error:
        prepare.run(arguments(folder, "--counts-only"))
    assert "3 categories, COCO 2017 has 80" in str(error.value)
    assert "5 val annotations, COCO 2017 has 36,781" in str(error.value)


def test_damaged_pictures_and_archives_are_named(folder: DataConfig) -> None:
    root = Path(str(folder.path))
    (root / "images" / "12.png").write_bytes(b"no picture")
    with zipfile.ZipFile(root / "val2017.zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(DataError, match=r"12\.png cannot be decoded") as error:
        prepare.run(arguments(folder, "--any-size"))
    assert "val2017.zip has MD5" in str(error.value)
    (root / "images" / "12.png").unlink()
    with pytest.raises(DataError, match="lacks 1 of 5 images"):
        prepare.run(arguments(folder, "--any-size", "--counts-only"))
