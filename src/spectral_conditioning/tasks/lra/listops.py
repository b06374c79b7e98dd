"""ListOps: evaluate nested MIN, MAX, MED and SM over digits; generated (`listops_trees.py`), or the benchmark's own files.

A tree is kept when its tokens (operators, digits and "]", parentheses not counted) are more than 500 and fewer than 2,000,
and when it is new.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra.listops_trees import (
    CLASSES,
    GENERATOR,
    OPERATORS,
    SYMBOLS,
    ListopsOptions,
    generate_chunk,
)
from spectral_conditioning.tasks.lra.preparation import Recipe
from spectral_conditioning.tasks.lra.token_store import SPLITS, Ragged, sha256


def distinct(chunks: Iterable[Ragged], needed: int) -> Iterator[Ragged]:
    """Drop trees seen before and stop at `needed`; DataError when several chunks in a row bring (almost) nothing new."""
    seen: set[bytes] = set()
    barren = 0
    for chunk in chunks:
        offsets, data = chunk.offsets, chunk.tokens.tobytes()
        new = []
        for i in range(len(chunk.labels)):
            digest = hashlib.blake2b(data[offsets[i] : offsets[i + 1]], digest_size=16).digest()
            if digest not in seen and len(seen) < needed:
                seen.add(digest)
                new.append(i)
        yield chunk.take(np.array(new, dtype=np.int64))
        if len(seen) == needed:
            return
        barren = 0 if new else barren + 1
        if barren == 20:
            raise DataError(
                f"only {len(seen)} different trees of these lengths turned up where {needed} are wanted; "
                f"ask for fewer samples or a wider range of lengths"
            )


def _make_chunk(job: tuple[ListopsOptions, int]) -> Ragged:
    return generate_chunk(*job)


def generated(options: ListopsOptions) -> Recipe:
    """Return how to generate the data set: chunks of candidates until there are enough different trees."""
    sizes = (options.train, options.val, options.test)

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        everything = Ragged.joined(list(distinct(parts, sum(sizes))))
        edges = np.cumsum([0, *sizes])
        return {split: everything.take(np.arange(edges[i], edges[i + 1])) for i, split in enumerate(SPLITS)}

    return Recipe(
        dataset="listops",
        options={"origin": "generated", "generator": GENERATOR, **dataclasses.asdict(options)},
        jobs=((options, chunk) for chunk in itertools.count()),
        make=_make_chunk,
        assemble=assemble,
        classes=CLASSES,
        symbols=len(SYMBOLS),
        total=sum(sizes),
    )


_CHARACTERS = b"()[] 0123456789ADEIMNSX"
# One byte per symbol: lower-case letters, which an expression cannot hold, stand for the operators on the way.
_LETTERS = {operator.encode(): b"abcd"[i : i + 1] for i, operator in enumerate(OPERATORS)}
_VALUES = bytes((b"0123456789abcd]".find(byte) if byte < 128 else -1) & 0xFF for byte in range(256))


def tokenize(source: bytes) -> bytes:
    """Return the stored values of one expression: "(", ")" and spaces dropped, everything else kept.

    "[MIN 4 3 ]" and "( ( ( [MIN 4 ) 3 ) ] )" are the same. Raises ValueError for anything that is not one of the 15 symbols.
    """
    letters = source
    for operator, letter in _LETTERS.items():
        letters = letters.replace(operator, letter)
    tokens = letters.translate(_VALUES, delete=b" ()")
    words = len(source.split()) - source.count(b"(") - source.count(b")")
    if source.translate(None, delete=_CHARACTERS) or 0xFF in tokens or words != len(tokens):
        bad = next(
            (w for w in source.split() if w not in (b"(", b")") and w.decode("latin1") not in SYMBOLS), source[:20]
        )
        raise ValueError(f"{bad!r} is not one of the symbols {' '.join(SYMBOLS)}")
    return tokens


def read_tsv(path: Path, *, min_length: int, max_length: int) -> Ragged:
    """Read an official file: a header "Source<TAB>Target", then one expression and its value a line.

    Raises DataError with the line number for a wrong header, symbol, value or length.
    """
    sequences, labels = [], []
    with open(path, "rb") as file:
        header = file.readline().rstrip(b"\r\n")
        if header != b"Source\tTarget":
            raise DataError(
                f"{path} starts with {header[:60]!r}; an official ListOps file starts with 'Source<TAB>Target'"
            )
        for number, line in enumerate(file, start=2):
            source, _, target = line.rstrip(b"\r\n").partition(b"\t")
            try:
                tokens, label = tokenize(source), int(target)
                if not 0 <= label < CLASSES:
                    raise ValueError(f"value {label} is not a digit")
                if not min_length < len(tokens) < max_length:
                    raise ValueError(f"{len(tokens)} tokens, not between {min_length} and {max_length}")
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}") from error
            sequences.append(tokens)
            labels.append(label)
    if not sequences:
        raise DataError(f"{path} holds no expression")
    return Ragged.of(sequences, labels)


def _read_job(job: tuple[Path, int, int]) -> Ragged:
    path, min_length, max_length = job
    return read_tsv(path, min_length=min_length, max_length=max_length)


def official(folder: Path, options: ListopsOptions) -> Recipe:
    """Return how to convert the benchmark's `*_train.tsv`, `*_val.tsv` and `*_test.tsv` of one folder."""
    paths = {}
    for split in SPLITS:
        found = sorted(folder.glob(f"*_{split}.tsv"))
        if len(found) != 1:
            names = ", ".join(p.name for p in found) or "none"
            raise DataError(
                f"{folder} must hold one file *_{split}.tsv (basic_{split}.tsv in the release); found: {names}"
            )
        paths[split] = found[0]
    return Recipe(
        dataset="listops",
        options={"origin": "official", "tsv": {split: sha256(path) for split, path in paths.items()}},
        jobs=[(paths[split], options.min_length, options.max_length) for split in SPLITS],
        make=_read_job,
        assemble=lambda parts: dict(zip(SPLITS, parts, strict=True)),
        classes=CLASSES,
        symbols=len(SYMBOLS),
    )
