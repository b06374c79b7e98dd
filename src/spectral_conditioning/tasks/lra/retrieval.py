"""Retrieval: do two documents stand in a citation link? Bytes of both, the first 4,000 of each.

The benchmark's files are `new_aan_pairs.{train,eval,test}.tsv` of the ACL Anthology Network: label as float text, two ids, two
texts, separated by tabs, without quoting or header. A document is stored once however many pairs name it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra.preparation import Recipe
from spectral_conditioning.tasks.lra.token_store import SPLITS, Ragged, sha256

LENGTH = 4000
BLOCK = 64 << 20
AAN_FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}


class Documents:
    """Collects documents and pairs of them, each different document once."""

    def __init__(self) -> None:
        self.number: dict[bytes, int] = {}
        self.pairs: list[tuple[int, int]] = []
        self.labels: list[int] = []

    def add(self, first: bytes, second: bytes, label: int) -> None:
        numbers = [self.number.setdefault(text, len(self.number)) for text in (first, second)]
        self.pairs.append((numbers[0], numbers[1]))
        self.labels.append(label)

    def add_all(self, part: Ragged) -> None:
        assert part.pairs is not None
        offsets, data = part.offsets, part.tokens.tobytes()
        texts = [data[a:b] for a, b in itertools.pairwise(offsets)]
        for (first, second), label in zip(part.pairs.tolist(), part.labels.tolist(), strict=True):
            self.add(texts[first], texts[second], label)

    def ragged(self) -> Ragged:
        documents = Ragged.of(list(self.number), [])
        documents.labels = np.array(self.labels, dtype=np.uint8)
        documents.pairs = np.array(self.pairs, dtype=np.int32).reshape(-1, 2)
        return documents


def parse_line(line: bytes, length: int) -> tuple[bytes, bytes, int]:
    """Return both texts, cut, and the label of one AAN line; ValueError says what is wrong."""
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != 5:
        raise ValueError(f"{len(fields)} columns, not label, id1, id2, text1, text2")
    label = float(fields[0])
    if label not in (0.0, 1.0):
        raise ValueError(f"label {fields[0]!r}, not 0.0 or 1.0")
    return fields[3][:length], fields[4][:length], int(label)


def _read_block(job: tuple[Path, int, int]) -> Ragged:
    """Read the lines that start inside one block of a file."""
    path, start, length = job
    documents = Documents()
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        while (position := file.tell()) < start + BLOCK:
            line = file.readline()
            if not line:
                break
            try:
                documents.add(*parse_line(line, length))
            except ValueError as error:
                raise DataError(f"{path}, line at byte {position}: {error}") from error
    return documents.ragged()


def aan(folder: Path, *, length: int = LENGTH) -> Recipe:
    """Return how to convert the three files of the benchmark's `tsv_data` folder."""
    paths = {split: folder / name for split, name in AAN_FILES.items()}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)} (folder tsv_data of the benchmark's release)")
    jobs = [
        (split, (path, start, length))
        for split, path in paths.items()
        for start in range(0, path.stat().st_size, BLOCK)
    ]

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        collected = {split: Documents() for split in SPLITS}
        for (split, _), part in zip(jobs, parts, strict=True):
            collected[split].add_all(part)
        empty = [paths[split].name for split in SPLITS if not collected[split].labels]
        if empty:
            raise DataError(f"{', '.join(empty)} in {folder} hold no pairs")
        return {split: documents.ragged() for split, documents in collected.items()}

    return Recipe(
        dataset="retrieval",
        options={"origin": "aan", "length": length, "tsv": {split: sha256(path) for split, path in paths.items()}},
        jobs=[job for _, job in jobs],
        make=_read_block,
        assemble=assemble,
        classes=2,
        symbols=256,
    )


def _read_linked(job: tuple[Path, str, int]) -> Ragged:
    """Read one split of a collection of documents with a pair list; numbers are masked, since documents link by number."""
    folder, split, length = job
    texts: dict[str, bytes] = {}
    with gzip.open(folder / "docs.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            texts[str(entry["id"])] = re.sub(r"\d+", "#", entry["text"]).encode()[:length]
    documents = Documents()
    for number, line in enumerate((folder / f"{split}.tsv").read_text().splitlines(), start=1):
        fields = re.split(r"\s+", line.strip())
        if number == 1 and fields[0] == "label":
            continue
        if len(fields) != 3 or fields[0] not in ("0", "1") or fields[1] not in texts or fields[2] not in texts:
            raise DataError(
                f"{folder / split}.tsv, line {number}: {line[:60]!r} is not a label 0 or 1 and two ids of docs.jsonl.gz"
            )
        documents.add(texts[fields[1]], texts[fields[2]], int(fields[0]))
    return documents.ragged()


def linked_documents(folder: Path, *, length: int = LENGTH) -> Recipe:
    """Return how to convert `docs.jsonl.gz` ({"id", "text"}) and `{train,val,test}.tsv` (label id1 id2), a stand-in.

    Every run of digits becomes "#": documents that cite each other by number would otherwise give the answer away.
    """
    names = ["docs.jsonl.gz", *(f"{split}.tsv" for split in SPLITS)]
    return Recipe(
        dataset="retrieval",
        options={
            "origin": "linked documents",
            "length": length,
            "files": {name: sha256(folder / name) for name in names},
        },
        jobs=[(folder, split, length) for split in SPLITS],
        make=_read_linked,
        assemble=lambda parts: dict(zip(SPLITS, parts, strict=True)),
        classes=2,
        symbols=256,
    )


def recipe(source: Path | None, *, length: int = LENGTH) -> Recipe:
    """Choose by what lies in the folder `source`: the AAN files, or documents with a pair list."""
    if source is None:
        raise DataError(
            "retrieval needs --input: the folder tsv_data of the benchmark's release, or one with docs.jsonl.gz and pairs"
        )
    if (source / "docs.jsonl.gz").is_file() and all((source / f"{split}.tsv").is_file() for split in SPLITS):
        return linked_documents(source, length=length)
    return aan(source, length=length)
