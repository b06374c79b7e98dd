"""Laws of where images come from: a zip is its folder, workers change nothing, and every fault is named."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.base import TaskData
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.data import load_image_data
from spectral_conditioning.tasks.imagenet.sources import fingerprint, open_images
from spectral_conditioning.tasks.streams import Batch, StreamDataModule

Settings = Callable[..., DataConfig]
Pack = Callable[[Path], Path]


def batches(data: TaskData, *, workers: int, steps: int = 3) -> list[Batch]:
    """Return the first training batches and all evaluation batches."""
    served = StreamDataModule(
        train=data.train,
        val=data.val,
        test=None,
        batch_size=4,
        eval_batch_size=4,
        seed=7,
        workers=workers,
        repeats=data.repeats,
    )
    training = iter(served.train_dataloader())
    return [*(next(training) for _ in range(steps)), *served.val_dataloader()]


def assert_same_batches(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.samples[0], other.samples[0])
        assert torch.equal(one.samples[1], other.samples[1])
        assert torch.equal(one.index, other.index)


def test_zip_serves_the_same_samples_as_its_folder(
    folder: Path, zipped: Pack, small_vit: ModelConfig, images: Settings
) -> None:
    unpacked, packed = (load_image_data(small_vit, images(path)) for path in (folder, zipped(folder)))
    assert len(unpacked.train) == 12  # type: ignore[arg-type]
    assert len(unpacked.val) == 9  # type: ignore[arg-type]
    for one, other in ((unpacked.train, packed.train), (unpacked.val, packed.val)):
        for index in range(len(one)):  # type: ignore[arg-type]
            assert torch.equal(one[index][0], other[index][0])
            assert one[index][1] == other[index][1]
    assert unpacked.fingerprint == packed.fingerprint
    assert unpacked.chance == packed.chance == pytest.approx({"accuracy": 1 / 3, "loss": np.log(3)})


def test_labels_follow_the_sorted_class_folders(folder: Path) -> None:
    source = open_images(str(folder), split="val", part="val")
    assert source.classes == ("ant", "bee", "cat")
    for index in range(len(source)):
        assert source.name(index).split("/")[1] == source.classes[source.labels[index]]
        assert source.read(index) == (folder / source.name(index)).read_bytes()


@pytest.mark.parametrize("packed", [False, True])
def test_workers_change_nothing(
    packed: bool, folder: Path, zipped: Pack, small_vit: ModelConfig, images: Settings, full_recipe: dict[str, object]
) -> None:
    path = zipped(folder) if packed else folder
    data = load_image_data(small_vit, images(path, **full_recipe))
    alone = batches(data, workers=0)
    assert_same_batches(alone, batches(data, workers=2))
    # The augmentation is at work: another seed would make this comparison empty if it were not.
    assert not torch.equal(alone[0].samples[0][0], data.val[0][0])


def test_parent_and_workers_read_a_zip_at_once(
    folder: Path, zipped: Pack, small_vit: ModelConfig, images: Settings
) -> None:
    data = load_image_data(small_vit, images(zipped(folder)))
    expected = [data.val[index][0] for index in range(9)]
    served = StreamDataModule(
        train=data.train, val=data.val, test=None, batch_size=4, eval_batch_size=2, seed=0, workers=2
    )
    seen = []
    for number, batch in enumerate(served.val_dataloader()):
        assert torch.equal(data.val[number][0], expected[number])
        seen += list(batch.samples[0])
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


def test_an_opened_zip_travels_to_a_spawned_process(folder: Path, zipped: Pack) -> None:
    source = open_images(str(zipped(folder)), split="val", part="val")
    content = source.read(0)
    assert pickle.loads(pickle.dumps(source)).read(0) == content


def test_repeats_serve_an_image_several_times_with_draws_of_its_own(
    folder: Path, small_vit: ModelConfig, images: Settings, full_recipe: dict[str, object]
) -> None:
    data = load_image_data(small_vit, images(folder, **full_recipe, repeats=2))
    first = batches(data, workers=0, steps=1)[0]
    one, same, other, twin = first.index.tolist()
    assert one == same
    assert other == twin != one
    assert not torch.equal(first.samples[0][0], first.samples[0][1])


def test_fingerprint_sees_names_sizes_classes_and_splits(
    folder: Path, tmp_path: Path, picture: Callable[..., bytes]
) -> None:
    def of(root: Path) -> str:
        return fingerprint([open_images(str(root), split=split, part=split) for split in ("train", "val")])

    def changed(name: str, change: Callable[[Path], object]) -> str:
        root = tmp_path / name
        shutil.copytree(folder, root)
        change(root)
        return of(root)

    first = "train/ant/ant_0.jpg"
    found = [
        of(folder),
        changed("renamed", lambda root: (root / first).rename(root / "train/ant/x.jpg")),
        changed("resized", lambda root: (root / first).write_bytes(picture(0, size=(9, 9)))),
        changed("relabelled", lambda root: (root / first).rename(root / "train/bee/ant_0.jpg")),
        changed("moved", lambda root: (root / first).rename(root / "val/ant/new.jpg")),
        changed("removed", lambda root: (root / first).unlink()),
    ]
    assert len(set(found)) == len(found)
    assert changed("elsewhere", lambda root: None) == found[0]


def test_files_that_are_no_images_are_left_alone(folder: Path) -> None:
    (folder / "train/ant/notes.txt").write_text("seen in June")
    (folder / "train/ant/._ant_0.jpg").write_bytes(b"\0")
    (folder / "train/.cache").mkdir()
    assert len(open_images(str(folder), split="train", part="train")) == 12


def _remove_validation(root: Path) -> None:
    shutil.rmtree(root / "val")


def _rename_validation_class(root: Path) -> None:
    (root / "val/bee").rename(root / "val/wasp")


def _empty_class(root: Path) -> None:
    for path in (root / "train/bee").iterdir():
        path.unlink()


def _keep_one_class(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("bee", "cat"):
            shutil.rmtree(root / split / name)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_remove_validation, ["holds no 'val' folder", "found ('train')", "<split>/<class>/<image>", "data.val_split"]),
        (_rename_validation_class, ["classes of 'val' differ", "missing ['bee']", "only there ['wasp']"]),
        (_empty_class, ["class folder train/bee holds no image"]),
        (_keep_one_class, ["holds 1 class folders ('ant')", "at least 2"]),
    ],
)
def test_faults_of_the_layout_are_named(
    packed: bool,
    change: Callable[[Path], None],
    said: list[str],
    folder: Path,
    zipped: Pack,
    small_vit: ModelConfig,
    images: Settings,
) -> None:
    change(folder)
    path = zipped(folder) if packed else folder
    with pytest.raises(DataError) as caught:
        load_image_data(small_vit, images(path))
    assert str(path) in str(caught.value)
    assert all(text in str(caught.value) for text in said), caught.value


def test_missing_path_and_wrong_kind_of_file(tmp_path: Path, small_vit: ModelConfig, images: Settings) -> None:
    with pytest.raises(
        DataError, match=r"nowhere does not exist; expected a folder or a zip with <split>/<class>/<image>"
    ):
        load_image_data(small_vit, images(tmp_path / "nowhere"))
    (tmp_path / "notes.txt").write_text("no zip")
    with pytest.raises(DataError, match=r"notes\.txt is neither a folder nor a zip"):
        load_image_data(small_vit, images(tmp_path / "notes.txt"))


def test_class_count_must_fit_the_model(folder: Path, small_vit: ModelConfig, images: Settings) -> None:
    small_vit.num_classes = 1000
    with pytest.raises(DataError, match=r"num_classes is 1000 but .* has 3 classes; set it to 3"):
        load_image_data(small_vit, images(folder))
    small_vit.num_classes = None
    assert load_image_data(small_vit, images(folder)).outputs == 3


@pytest.mark.parametrize(("damage", "workers"), [("cut short", 0), ("cut short", 1), ("no image", 0), ("empty", 0)])
def test_damaged_image_is_named_with_its_class(
    damage: str, workers: int, folder: Path, small_vit: ModelConfig, images: Settings
) -> None:
    victim = folder / "val/bee/bee_1.jpg"
    whole = victim.read_bytes()
    victim.write_bytes({"cut short": whole[:-40], "no image": b"<html>", "empty": b""}[damage])
    data = load_image_data(small_vit, images(folder))
    served = StreamDataModule(
        train=data.train, val=data.val, test=None, batch_size=4, eval_batch_size=4, seed=0, workers=workers
    )
    with pytest.raises(DataError, match=r"val/bee/bee_1\.jpg.*`spectral prepare imagenet .*pictures` lists") as caught:
        list(served.val_dataloader())
    assert len(str(caught.value).splitlines()) == 1  # No traceback, also from a loader's process.


def test_damaged_zip_is_named(folder: Path, zipped: Pack, small_vit: ModelConfig, images: Settings) -> None:
    path = zipped(folder)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("val/bee/bee_1.jpg").header_offset
    content = bytearray(path.read_bytes())
    content[place + 80 : place + 120] = bytes(40)
    path.write_bytes(bytes(content))
    data = load_image_data(small_vit, images(path))
    with pytest.raises(DataError, match=r"val/bee/bee_1\.jpg in .*pictures\.zip cannot be read"):
        [data.val[index] for index in range(9)]
