"""Chunks of documents to token ids on all cores, in order, with a bounded number of chunks under way."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np
from tokenizers import Tokenizer

from spectral_conditioning.tasks.cramming.documents import Chunk
from spectral_conditioning.tasks.cramming.token_store import TOKEN
from spectral_conditioning.tasks.cramming.wordpiece import SEP, FastEncoder, special_id

AHEAD = 3


@dataclasses.dataclass(frozen=True)
class Rules:
    """filter: documents with so many tokens per character, or more, are dropped; 0 keeps all. holdout: every so-many-th document
    is kept for validation; 0 for none."""

    filter: float
    holdout: int


@dataclasses.dataclass
class Encoded:
    """The tokens of a chunk's documents, `<sep>` after each, and what became of the documents."""

    train: np.ndarray
    val: np.ndarray
    documents: int
    kept: int
    held_out: int
    characters: int
    read: int
    last: int


class ChunkEncoder:
    """Filter and encode one chunk."""

    def __init__(self, tokenizer_json: str, rules: Rules) -> None:
        tokenizer = Tokenizer.from_str(tokenizer_json)
        self.encoder, self.rules = FastEncoder(tokenizer), rules
        self.separator = np.array([special_id(tokenizer, SEP)], dtype=TOKEN)

    def __call__(self, chunk: Chunk) -> Encoded:
        parts: dict[bool, list[np.ndarray]] = {False: [], True: []}
        kept = held_out = characters = 0
        texts = chunk.texts()
        for number, text in enumerate(texts, start=chunk.first):
            characters += len(text)
            ids_T = self.encoder.encode(text)
            if not len(ids_T) or (self.rules.filter and len(ids_T) >= self.rules.filter * len(text)):
                continue
            aside = bool(self.rules.holdout) and number % self.rules.holdout == self.rules.holdout - 1
            parts[aside] += [ids_T, self.separator]
            kept += 1
            held_out += aside
        empty = np.array([], dtype=TOKEN)
        return Encoded(
            train=np.concatenate([empty, *parts[False]]),
            val=np.concatenate([empty, *parts[True]]),
            documents=len(texts),
            kept=kept,
            held_out=held_out,
            characters=characters,
            read=chunk.read,
            last=chunk.first + len(texts),
        )


_encoder: ChunkEncoder | None = None


def _start(tokenizer_json: str, rules: Rules) -> None:
    global _encoder
    _encoder = ChunkEncoder(tokenizer_json, rules)


def _encode(chunk: Chunk) -> Encoded:
    assert _encoder is not None
    return _encoder(chunk)


def encode_chunks(chunks: Iterable[Chunk], tokenizer_json: str, rules: Rules, *, workers: int) -> Iterator[Encoded]:
    """Yield the chunks encoded, in their order; at most AHEAD per worker are in memory."""
    if workers == 1:
        yield from map(ChunkEncoder(tokenizer_json, rules), chunks)
        return
    # A forked child of a process with threads may hang; a spawned one starts clean.
    context = multiprocessing.get_context("spawn")
    waiting: collections.deque[Future[Encoded]] = collections.deque()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(tokenizer_json, rules)) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_encode, chunk))
                if len(waiting) >= AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
