"""Laws of `spectral prepare pile`: a plain reference; memory, workers and interruptions change nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.cramming import documents, encoding, preparation, prepare
from spectral_conditioning.tasks.cramming.length_order import LengthOrder
from spectral_conditioning.tasks.cramming.preparation import Settings
from spectral_conditioning.tasks.cramming.prepare import prepare_text
from spectral_conditioning.tasks.cramming.token_store import TOKENIZER, ShardWriter, TokenStore, open_store
from spectral_conditioning.tasks.cramming.wordpiece import decoded_lengths, load_tokenizer

from .cramming_text import write_records

SETTINGS = Settings(vocabulary=270, length=32, filter=0.0, holdout=10)


def everything(store: TokenStore, split: str) -> np.ndarray:
    sequences = store.split(split)
    return np.stack([sequences[i] for i in range(len(sequences))])


def reference(store: TokenStore, records: Path, *, held_out: bool, by_length: bool) -> np.ndarray:
    """Tokenise, join, cut and sort with nothing but the tokenizer."""
    tokenizer = load_tokenizer(store.folder / TOKENIZER)
    texts = [json.loads(line)["text"] for line in records.read_text().splitlines()]
    ids: list[int] = []
    for number, text in enumerate(texts):
        if (number % 10 == 9) == held_out:
            ids += [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id("<sep>")]
    rows = [ids[i : i + 32] for i in range(0, len(ids) - 31, 32)]
    if by_length:
        tokenizer.decoder.cleanup = False
        rows.sort(key=lambda row: decoded_lengths(tokenizer)[row].sum())  # stable
        shown = [len(tokenizer.decode(row, skip_special_tokens=False)) for row in rows]
        # A sequence that begins inside a word decodes with its ## or without; the order is the same but for that.
        assert np.all(np.diff(shown) >= -3)
    return np.array(rows)


@pytest.mark.parametrize("by_length", [True, False])
def test_result_equals_the_reference(records: Path, tmp_path: Path, by_length: bool) -> None:
    store = prepare_text(str(records), tmp_path, dataclasses.replace(SETTINGS, by_length=by_length))
    train = everything(store, "train")
    assert np.array_equal(train, reference(store, records, held_out=False, by_length=by_length))
    val = reference(store, records, held_out=True, by_length=False)
    assert np.array_equal(everything(store, "val"), val)
    assert store.meta["documents"] == {"read": 200, "kept": 200, "held_out": 20}


def test_unigram_entropy_is_that_of_the_training_tokens(store: TokenStore, records: Path) -> None:
    tokenizer = load_tokenizer(store.folder / TOKENIZER)
    counts: Counter[int] = Counter()
    for number, line in enumerate(records.read_text().splitlines()):
        if number % 10 != 9:
            counts.update(tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids)
            counts[tokenizer.token_to_id("<sep>")] += 1
    p = np.array(list(counts.values())) / counts.total()
    assert store.unigram_entropy == pytest.approx(float(-(p * np.log(p)).sum()), abs=1e-12)


def small_chunks(monkeypatch: pytest.MonkeyPatch, size: int = 4000) -> None:
    monkeypatch.setattr(documents, "CHUNK_BYTES", size)


def test_memory_and_workers_change_nothing(
    store: TokenStore, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    runs: list[int] = []
    flush = LengthOrder.flush
    monkeypatch.setattr(LengthOrder, "flush", lambda self, run: (runs.append(run), flush(self, run))[1])
    little = prepare_text(str(records), tmp_path / "little", SETTINGS, memory=20_000)
    assert len(runs) > 5
    parallel = prepare_text(str(records), tmp_path / "parallel", SETTINGS, workers=2)
    assert store.fingerprint == little.fingerprint == parallel.fingerprint


def test_input_larger_than_the_memory_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of 1.3 MB with 0.1 MB of memory: the peak of the encoding stays below the whole."""
    small_chunks(monkeypatch, 20_000)
    path = write_records(tmp_path / "large.jsonl", 1600, words=300)
    settings = dataclasses.replace(SETTINGS, tokenizer_megabytes=0.2)
    work = tmp_path / "out"
    # Train first: the trainer's memory is bounded by the text it is given, not by ours.
    prepare_text(str(write_records(tmp_path / "first.jsonl", 100)), work, settings)
    tokenizer = next(work.glob(f"*/{TOKENIZER}"))
    settings = dataclasses.replace(settings, tokenizer=str(tokenizer))

    def peak(memory: int, output: str) -> tuple[int, str]:
        tracemalloc.start()
        store = prepare_text(str(path), tmp_path / output, settings, memory=memory)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most, store.fingerprint

    size = 2 * 32 * len(open_store(prepare_text(str(path), tmp_path / "x", settings).folder).split("train"))
    little, first = peak(100_000, "little")
    much, second = peak(1 << 30, "much")
    assert first == second
    assert size > 1_200_000
    assert little < 0.7 * size < much


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 23, 60])
def test_an_interrupted_preparation_goes_on(
    store: TokenStore, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    small_chunks(monkeypatch, 1500)
    encoded: list[int] = []

    def counting(self: Any, chunk: Any) -> Any:
        encoded.append(chunk.first)
        if stop and len(encoded) > after:
            raise Stopped
        return plain(self, chunk)

    plain, stop = encoding.ChunkEncoder.__call__, True
    monkeypatch.setattr(encoding.ChunkEncoder, "__call__", counting)
    with pytest.raises(Stopped):
        prepare_text(str(records), tmp_path, SETTINGS, memory=20_000)
    assert not list(tmp_path.glob("[!.]*"))  # nothing that looks finished
    stop, first_time = False, len(encoded)
    again = prepare_text(str(records), tmp_path, SETTINGS, memory=20_000)
    assert again.fingerprint == store.fingerprint
    if after > 20:
        assert encoded[first_time] > 0  # it did not begin anew
    count = len(encoded)
    assert prepare_text(str(records), tmp_path, SETTINGS).folder == again.folder
    assert len(encoded) == count  # finished is finished
    assert not list(tmp_path.glob(".*"))


def test_interrupted_while_writing_shards(
    store: TokenStore, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "finish", lambda *_: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            prepare_text(str(records), tmp_path, SETTINGS)
    assert prepare_text(str(records), tmp_path, SETTINGS).fingerprint == store.fingerprint


def test_filter_drops_documents_with_many_tokens_per_character(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    trash = json.dumps({"text": "#&*7@!8^~ " * 40})
    path.write_text(trash + "\n" + records.read_text() + trash + "\n")
    kept = prepare_text(str(path), tmp_path / "out", dataclasses.replace(SETTINGS, filter=0.6))
    assert kept.meta["documents"]["read"] - kept.meta["documents"]["kept"] == 2
    with pytest.raises(DataError, match="no document was kept of 202"):
        prepare_text(str(path), tmp_path / "out", dataclasses.replace(SETTINGS, filter=0.01))


def test_validation_files_replace_the_holdout(records: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pile"
    write_records(folder / "val.jsonl", 20, seed=900)
    (folder / "train.jsonl").write_text(records.read_text())
    store = prepare_text(str(folder), tmp_path / "out", SETTINGS)
    assert store.meta["documents"] == {"read": 200, "kept": 200, "held_out": 0}
    assert store.folder.name.startswith("pile-wordpiece270-")
    tokenizer = load_tokenizer(store.folder / TOKENIZER)
    first = json.loads((folder / "val.jsonl").read_text().splitlines()[0])["text"]
    assert everything(store, "val")[0].tolist() == tokenizer.encode(first, add_special_tokens=False).ids[:32]


def test_text_is_limited_and_the_limit_is_part_of_the_name(records: Path, tmp_path: Path, monkeypatch: Any) -> None:
    small_chunks(monkeypatch)
    some = prepare_text(str(records), tmp_path, dataclasses.replace(SETTINGS, megabytes=0.08))
    every = prepare_text(str(records), tmp_path, SETTINGS)
    assert 0.07e6 < some.meta["characters"] < 0.09e6 < every.meta["characters"]
    assert some.folder != every.folder
    with pytest.raises(DataError, match="holds 2 prepared folders; name one"):
        open_store(tmp_path)


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser)
    return parser.parse_args(words)


def test_command_prepares_and_says_what_came_of_it(
    records: Path, store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--vocabulary", "270", "--length", "32", "--filter", "0", "--holdout", "10", "--workers", "1")
    assert prepare.run(arguments("--input", str(records), "--output", str(tmp_path), *words)) == 0
    said = capsys.readouterr().out
    assert open_store(tmp_path).fingerprint == store.fingerprint
    assert "200 of 200 documents kept" in said
    assert f"unigram entropy {store.unigram_entropy:.3f} nats" in said
    assert f"data.path={open_store(tmp_path).folder}" in said


def test_published_ids_are_converted_as_they_are(store: TokenStore, tmp_path: Path) -> None:
    """The ready-made set: packed ids in parquet, sorted already, with its tokenizer beside it."""
    rows = everything(store, "train").astype(int)
    source = tmp_path / "published"
    source.mkdir()
    for part, block in enumerate(np.array_split(rows, 2)):
        table = pyarrow.table({"input_ids": block.tolist()})
        pyarrow.parquet.write_table(table, source / f"train-{part:05d}.parquet")
    words = ("--input", str(source), "--output", str(tmp_path / "out"), "--holdout", "7", "--length", "32")
    with pytest.raises(DataError, match=r"tokenizer\.json does not exist"):
        prepare.run(arguments(*words))
    (source / TOKENIZER).write_bytes((store.folder / TOKENIZER).read_bytes())
    assert prepare.run(arguments(*words)) == 0
    converted = open_store(tmp_path / "out")
    aside = np.arange(len(rows)) % 7 == 6
    assert np.array_equal(everything(converted, "train"), rows[~aside])
    assert np.array_equal(everything(converted, "val"), rows[aside])
    with pytest.raises(DataError, match=r"sequence 0: 32 ids in .* expected 16"):
        prepare.run(arguments(*words[:-1], "16"))


def test_shards_are_cut_without_a_seam(tmp_path: Path) -> None:
    rows = np.arange(25 * 4, dtype=np.uint16).reshape(25, 4)

    def blocks() -> Iterator[np.ndarray]:
        yield from np.array_split(rows, 4)

    entries = ShardWriter(tmp_path, "train", length=4, shard_bytes=7 * 8).write(blocks())
    assert [entry["sequences"] for entry in entries] == [7, 7, 7, 4]
    joined = b"".join((tmp_path / entry["file"]).read_bytes() for entry in entries)
    assert joined == rows.astype("<u2").tobytes()


def test_damaged_folders_are_refused(store: TokenStore, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(store.folder, tmp_path / "copy"))
    shard = folder / store.meta["splits"]["train"][0]["file"]
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train-00000\.bin has \d+ bytes, expected \d+"):
        open_store(folder)
    shard.unlink()
    with pytest.raises(DataError, match="is missing"):
        open_store(folder)
    (folder / "meta.json").write_text('{"format": "other"}')
    with pytest.raises(DataError, match="has format 'other'"):
        open_store(folder)
    with pytest.raises(DataError, match="is not a prepared folder"):
        open_store(tmp_path / "elsewhere")
