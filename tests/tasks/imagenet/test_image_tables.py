"""Laws of parquet files: they serve the samples of the folder they were made from, offline, and faults are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
import torch

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.data import load_image_data
from spectral_conditioning.tasks.streams import StreamDataModule

CLASSES = ["ant", "bee", "cat"]
Settings = Callable[..., DataConfig]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def rows_of(folder: Path, split: str) -> list[tuple[bytes, int]]:
    return [
        (path.read_bytes(), label)
        for label, name in enumerate(CLASSES)
        for path in sorted((folder / split / name).iterdir())
    ]


def write(target: Path, rows: list[tuple[bytes, int]], *, files: int = 2, typed: bool = True) -> None:
    """Write rows to parquet files as the hub has them, or with plain columns."""
    label = datasets.ClassLabel(names=CLASSES) if typed else datasets.Value("int64")
    image = datasets.Image() if typed else datasets.Value("binary")
    target.parent.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        chosen = rows[number * len(rows) // files : (number + 1) * len(rows) // files]
        cells = [{"bytes": content, "path": None} if typed else content for content, _ in chosen]
        table = datasets.Dataset.from_dict(
            {"image": cells, "label": [label for _, label in chosen]},
            features=datasets.Features({"image": image, "label": label}),
        )
        table.to_parquet(f"{target}-{number:05d}-of-{files:05d}.parquet")


@pytest.fixture
def parquet(folder: Path, tmp_path: Path) -> Path:
    for split, name in (("train", "train"), ("val", "validation")):
        write(tmp_path / "tables/data" / name, rows_of(folder, split))
    return tmp_path / "tables"


def test_parquet_serves_the_samples_of_its_folder(
    parquet: Path, folder: Path, small_vit: ModelConfig, images: Settings
) -> None:
    tables = load_image_data(small_vit, images(parquet, source="parquet", val_split="validation"))
    files = load_image_data(small_vit, images(folder))
    assert tables.chance == files.chance
    for one, other in ((tables.train, files.train), (tables.val, files.val)):
        assert len(one) == len(other)  # type: ignore[arg-type]
        for index in range(len(one)):  # type: ignore[arg-type]
            assert torch.equal(one[index][0], other[index][0])
            assert one[index][1] == other[index][1]
    assert tables.train.source.classes == ("ant", "bee", "cat")  # type: ignore[attr-defined]


def test_plain_columns_serve_the_same(
    parquet: Path, folder: Path, tmp_path: Path, small_vit: ModelConfig, images: Settings
) -> None:
    for split in ("train", "val"):
        write(tmp_path / "plain" / split, rows_of(folder, split), files=1, typed=False)
    plain = load_image_data(small_vit, images(tmp_path / "plain", source="parquet"))
    typed = load_image_data(small_vit, images(parquet, source="parquet", val_split="validation"))
    assert all(torch.equal(plain.val[i][0], typed.val[i][0]) and plain.val[i][1] == typed.val[i][1] for i in range(9))
    assert plain.train.source.classes == ("0", "1", "2")  # type: ignore[attr-defined]


def test_workers_read_the_same(parquet: Path, small_vit: ModelConfig, images: Settings) -> None:
    data = load_image_data(small_vit, images(parquet, source="parquet", val_split="validation"))
    served = StreamDataModule(
        train=data.train, val=data.val, test=None, batch_size=4, eval_batch_size=4, seed=0, workers=2
    )
    seen = torch.cat([batch.samples[0] for batch in served.val_dataloader()])[:9]
    assert torch.equal(seen, torch.stack([data.val[index][0] for index in range(9)]))


def test_fingerprint_sees_labels_and_images(
    parquet: Path, folder: Path, tmp_path: Path, small_vit: ModelConfig, images: Settings, picture: Callable[..., bytes]
) -> None:
    rows = rows_of(folder, "train")
    relabelled = [(rows[0][0], 1), *rows[1:]]
    replaced = [(picture(0, size=(9, 9)), 0), *rows[1:]]
    found = []
    for name, changed in (("same", rows), ("relabelled", relabelled), ("replaced", replaced)):
        write(tmp_path / name / "train", changed, files=1)
        write(tmp_path / name / "validation", rows_of(folder, "val"), files=1)
        found.append(
            load_image_data(small_vit, images(tmp_path / name, source="parquet", val_split="validation")).fingerprint
        )
    assert found[0] == load_image_data(small_vit, images(parquet, source="parquet", val_split="validation")).fingerprint
    assert len(set(found)) == 3


def test_damaged_image_is_named_by_its_row(
    parquet: Path, folder: Path, small_vit: ModelConfig, images: Settings
) -> None:
    rows = rows_of(folder, "val")
    rows[4] = (rows[4][0][:60], rows[4][1])
    write(parquet / "data/validation", rows)
    data = load_image_data(small_vit, images(parquet, source="parquet", val_split="validation"))
    with pytest.raises(
        DataError, match=r"image in row 4 of split 'validation' \(class 'bee'\) in .*tables cannot be decoded"
    ):
        data.val[4]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_column": "img"}, r"has no column 'img'; its columns are image, label"),
        ({"image_column": "label"}, r"columns 'label' \(ClassLabel.*are no images and class numbers"),
        ({"val_split": "val"}, r"holds no \.parquet file named after 'val'; found data/train-00000.*data\.val_split"),
        ({"path": "nowhere"}, r"data\.path nowhere is not a folder"),
    ],
)
def test_faults_are_named(
    changes: dict[str, str], said: str, parquet: Path, small_vit: ModelConfig, images: Settings
) -> None:
    settings = {"path": parquet, "source": "parquet", "val_split": "validation", **changes}
    with pytest.raises(DataError, match=said):
        load_image_data(small_vit, images(**settings))  # type: ignore[arg-type]


def test_labels_of_a_hidden_test_set_are_refused(
    folder: Path, tmp_path: Path, small_vit: ModelConfig, images: Settings
) -> None:
    write(tmp_path / "hidden/train", rows_of(folder, "train"), files=1)
    write(tmp_path / "hidden/test", [(content, -1) for content, _ in rows_of(folder, "val")], files=1, typed=False)
    with pytest.raises(DataError, match=r"must hold class numbers from 0 in every row; found negative ones"):
        load_image_data(small_vit, images(tmp_path / "hidden", source="parquet", val_split="test"))


def test_labels_must_be_numbers_of_known_classes(
    folder: Path, tmp_path: Path, small_vit: ModelConfig, images: Settings
) -> None:
    rows = rows_of(folder, "train")
    write(tmp_path / "beyond/train", rows, files=1, typed=False)
    table = datasets.Dataset.from_parquet(str(tmp_path / "beyond/train-00000-of-00001.parquet"))
    text = table.remove_columns("label").add_column("label", ["ant"] * len(rows))
    text.to_parquet(str(tmp_path / "text/train.parquet"))
    table.info.features["label"] = datasets.ClassLabel(names=["ant", "bee"])
    table.to_parquet(str(tmp_path / "beyond/train-00000-of-00001.parquet"))
    with pytest.raises(DataError, match=r"column 'label' of split 'train' must hold class numbers.*; found object"):
        load_image_data(small_vit, images(tmp_path / "text", source="parquet"))
    with pytest.raises(DataError, match=r"'label' \(ClassLabel.*Class label 2 greater than configured"):
        load_image_data(small_vit, images(tmp_path / "beyond", source="parquet"))


def test_broken_parquet_is_named(parquet: Path, small_vit: ModelConfig, images: Settings) -> None:
    (parquet / "data/train-00000-of-00002.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(DataError, match=r"parquet files of 'train' .*cannot be read"):
        load_image_data(small_vit, images(parquet, source="parquet", val_split="validation"))


def test_hub_without_network_says_what_to_do(small_vit: ModelConfig, images: Settings) -> None:
    with pytest.raises(DataError, match=r"data set 'nobody/nothing', split 'train'.*data\.source=parquet"):
        load_image_data(small_vit, images("nobody/nothing", source="hub"))
