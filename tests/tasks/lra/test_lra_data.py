"""Batches from token folders: nothing lost, nothing cut unsaid, the same for every loader."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra import stand_ins
from spectral_conditioning.tasks.lra.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.lra.data import PadBatch, SequenceDataset, constant_prediction, load_sequences
from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions
from spectral_conditioning.tasks.lra.preparation import Recipe
from spectral_conditioning.tasks.streams import StreamDataModule

Write = Callable[..., Path]


def settings(folder: Path, dataset: str, **changes: object) -> DataConfig:
    pictures = dataset in ("image", "pathfinder")
    given = {"length": 1024 if pictures else 4000, "padded_length": 1024 if pictures else 4096}
    return DataConfig(dataset=dataset, source=str(folder), **{**given, **changes})  # type: ignore[arg-type]


def stored(folder: Path, split: str) -> list[np.ndarray]:
    tokens, offsets = np.load(folder / f"{split}.tokens.npy"), np.load(folder / f"{split}.offsets.npy")
    return [tokens[a:b] for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("dataset", ["listops", "text", "image", "pathfinder"])
def test_a_batch_holds_every_token_and_zeros_behind(write_folder: Write, dataset: str) -> None:
    folder = write_folder(dataset)
    data = load_sequences(ModelConfig(), settings(folder, dataset))
    batch = data.collate([data.train[i] for i in range(5)])
    shift = 0 if dataset in ("image", "pathfinder") else 1
    assert batch["ids"].shape == (5, 1024 if shift == 0 else 4096)
    for row, tokens in zip(batch["ids"], stored(folder, "train"), strict=False):
        assert (row[: len(tokens)].numpy() == tokens.astype(int) + shift).all()
        assert not row[len(tokens) :].any()
    assert batch["labels"].tolist() == [0, 1, 2, 3, 4] if dataset in ("listops", "image") else True
    # Pixels have no padding, and black ones are data: no lengths are given, so that nothing is masked in the exact mode.
    assert ("lengths" in batch) == (shift == 1)
    if shift:
        assert batch["lengths"].tolist() == [len(t) for t in stored(folder, "train")[:5]]


def test_text_is_cut_where_the_configuration_says_and_nothing_else_is(write_folder: Write) -> None:
    folder = write_folder("text")
    data = load_sequences(ModelConfig(), settings(folder, "text", length=100, padded_length=128))
    assert [len(data.train[i][0][0]) for i in range(12)] == [min(100, len(t)) for t in stored(folder, "train")]
    listops = write_folder("listops", name="l")
    with pytest.raises(DataError, match=r"cutting listops changes its answers; set data\.length="):
        load_sequences(ModelConfig(), settings(listops, "listops", length=1500, padded_length=2048))


def test_full_length_listops_is_never_cut(write_folder: Write) -> None:
    folder = write_folder("listops", lengths=(1999, 1999))
    data = load_sequences(ModelConfig(vocabulary=32), settings(folder, "listops", length=2000, padded_length=2048))
    assert all(len(data.train[i][0][0]) == 1999 for i in range(12))


def test_pairs_give_both_documents(write_folder: Write) -> None:
    folder = write_folder("retrieval", lengths=(3, 30))
    data = load_sequences(ModelConfig(), settings(folder, "retrieval", length=20, padded_length=32))
    batch = data.collate([data.train[i] for i in range(4)])
    assert batch["ids"].shape == (4, 2, 32)
    texts = stored(folder, "train")
    for i in range(4):
        for j in range(2):
            cut = texts[2 * i + j][:20].astype(int) + 1
            assert batch["ids"][i, j, : len(cut)].tolist() == cut.tolist()
            assert batch["lengths"][i, j] == len(cut)
    assert data.tokens_per_sample == 64


def test_longest_padding_follows_the_batch() -> None:
    samples = [((np.array([3, 4], dtype=np.uint8),), 1), ((np.array([5], dtype=np.uint8),), 0)]
    batch = PadBatch(positions=None, shift=1, padded=True)(samples)
    assert batch["ids"].tolist() == [[4, 5], [6, 0]]
    assert batch["ids"].dtype == torch.int64


def test_every_id_of_a_byte_fits_and_stays_distinct() -> None:
    samples = [((np.arange(256, dtype=np.uint8),), 0)]
    assert PadBatch(positions=256, shift=1, padded=True)(samples)["ids"][0].tolist() == list(range(1, 257))


def test_selecting_on_test_is_an_option_that_says_so(write_folder: Write) -> None:
    folder = write_folder("text", lengths=(5, 9))
    plain = load_sequences(ModelConfig(), settings(folder, "text"))
    chosen = load_sequences(ModelConfig(), settings(folder, "text", select_on_test=True))
    assert (len(plain.train), len(plain.val), len(plain.test)) == (12, 6, 5)
    assert (len(chosen.train), len(chosen.val), len(chosen.test)) == (18, 5, 5)
    assert "selected on test" in chosen.description
    assert "selected on test" not in plain.description
    assert plain.fingerprint != chosen.fingerprint
    assert getattr(chosen.train, "deterministic", False)


def test_validation_and_test_never_meet_and_depend_on_no_seed(write_folder: Write) -> None:
    folder = write_folder("text", lengths=(30, 60))
    first, second = (load_sequences(ModelConfig(), settings(folder, "text")) for _ in range(2))
    texts = [
        {sample[0][0].tobytes() for sample in map(part.__getitem__, range(len(part)))}
        for part in (first.val, first.test)
    ]
    assert not texts[0] & texts[1]
    orders = []
    for data, seed in ((first, 0), (second, 1)):
        module = StreamDataModule(
            train=data.train,
            val=data.val,
            test=data.test,
            batch_size=4,
            eval_batch_size=4,
            seed=seed,
            collate=data.collate,
        )
        orders.append([batch.index.tolist() for batch in module.val_dataloader()])
    assert orders[0] == orders[1]


def test_loader_processes_serve_the_same_batches(write_folder: Write) -> None:
    folder = write_folder("text", lengths=(5, 50))
    data = load_sequences(ModelConfig(), settings(folder, "text"))
    batches = []
    for workers in (0, 1):
        module = StreamDataModule(
            train=data.train,
            val=data.val,
            test=data.test,
            batch_size=4,
            eval_batch_size=4,
            seed=0,
            workers=workers,
            collate=data.collate,
        )
        batches.append(next(iter(module.train_dataloader())))
    assert batches[0].index.tolist() == batches[1].index.tolist()
    assert torch.equal(batches[0].samples["ids"], batches[1].samples["ids"])


def test_a_pickled_data_set_maps_its_files_again_instead_of_carrying_them(write_folder: Write) -> None:
    folder = write_folder("text")
    dataset = SequenceDataset(folder, "train", length=4000, paired=False)
    raw = pickle.dumps(dataset)
    assert len(raw) < 1000
    again = pickle.loads(raw)
    assert isinstance(again.tokens, np.memmap)
    assert (again[3][0][0] == dataset[3][0][0]).all()


def test_what_does_not_fit_is_named(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder("text")
    with pytest.raises(DataError, match=r"257 token ids, task\.model\.vocabulary is 200; set it to 257"):
        load_sequences(ModelConfig(vocabulary=200), settings(folder, "text"))
    with pytest.raises(DataError, match=r"holds text, data\.dataset asks for retrieval"):
        load_sequences(ModelConfig(), settings(folder, "retrieval"))
    with pytest.raises(DataError, match="spectral prepare text --output"):
        load_sequences(ModelConfig(), settings(tmp_path / "nothing", "text"))
    (folder / "val.labels.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"damaged: val\.labels\.npy has 0 bytes"):
        load_sequences(ModelConfig(), settings(folder, "text"))


def test_a_stand_in_is_written_on_first_use_and_then_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def tiny() -> Recipe:
        calls.append(1)
        options = ListopsOptions(train=20, val=10, test=10, min_length=3, max_length=20, max_depth=3, max_args=3)
        return stand_ins.listops.generated(options)

    monkeypatch.setitem(stand_ins.RECIPES, "listops", tiny)
    data = settings(tmp_path / "d", "listops", stand_in="listops", length=20, padded_length=32)
    first = load_sequences(ModelConfig(), data)
    stamp = (tmp_path / "d" / "train.tokens.npy").stat().st_mtime_ns
    second = load_sequences(ModelConfig(), data)
    assert first.fingerprint == second.fingerprint
    assert (tmp_path / "d" / "train.tokens.npy").stat().st_mtime_ns == stamp


def test_constant_prediction_is_the_best_constant() -> None:
    labels, seen = np.array([0, 0, 0, 1, 2], dtype=np.uint8), np.array([0, 1, 2, 0], dtype=np.uint8)
    level = constant_prediction(labels, seen, 3)
    assert level["accuracy"] == 0.6
    frequencies = np.array([3, 2, 2]) / 7
    assert level["loss"] == pytest.approx(-np.log(frequencies[labels]).mean())
