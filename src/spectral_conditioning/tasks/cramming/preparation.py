"""Text to a prepared folder: tokenizer, packed sequences, length order, shards. Interrupted, it goes on where it stopped.

Work happens in `.partial-<plan>` beside the result, named by a hash over settings, file names and sizes, and is renamed when
complete; so a folder with a meta.json is always whole. The result does not depend on workers, memory or interruptions.
"""

# S sequences, N tokens.

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.cramming.documents import Chunk, chunks, split_files
from spectral_conditioning.tasks.cramming.encoding import Encoded, Rules, encode_chunks
from spectral_conditioning.tasks.cramming.length_order import LengthOrder
from spectral_conditioning.tasks.cramming.packing import Packer
from spectral_conditioning.tasks.cramming.token_store import (
    FORMAT,
    META,
    TOKEN,
    TOKENIZER,
    ShardWriter,
    entropy,
    write_json,
)
from spectral_conditioning.tasks.cramming.wordpiece import decoded_lengths, load_tokenizer, train_wordpiece

STATE, VAL_TOKENS = "state.json", "val.tokens"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the result depends on.

    vocabulary: words of the tokenizer trained here; at most 65,536. length: tokens per sequence. filter: documents with so many
    tokens per character or more are dropped (0: none). by_length: order sequences by the length of their text. holdout: without
    files named as validation, every so-many-th document is one. megabytes: text read at most (None: all);
    tokenizer_megabytes: text that the tokenizer is trained on. tokenizer: a tokenizer.json to use instead of training one.
    """

    vocabulary: int = 32768
    length: int = 128
    filter: float = 0.25
    by_length: bool = True
    holdout: int = 200
    megabytes: float | None = None
    tokenizer_megabytes: float = 400.0
    tokenizer: str | None = None


@dataclasses.dataclass
class Progress:
    """How far the encoding has come: everything that going on needs, saved with each sorted run."""

    documents: int = 0
    runs: int = 0
    kept: int = 0
    held_out: int = 0
    characters: int = 0
    val_tokens: int = 0
    rest: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    complete: bool = False


def prepare_tokens(
    files: list[Path], output: Path, settings: Settings, *, name: str, workers: int, memory: int, quiet: bool
) -> Path:
    """Prepare text files and return the finished folder `<output>/<name>-wordpiece<V>-<hash>`.

    memory: bytes of sequences held for sorting. Raises DataError for input that cannot be read or is too little.
    """
    plan = plan_of(files, settings)
    finished = find_finished(output, plan)
    if finished is not None:
        return finished
    work = output / f".partial-{plan}"
    with locked(work):
        finished = find_finished(output, plan)
        if finished is not None:
            return finished
        train, val = split_files(files)
        tokenizer = _tokenizer(work, train, settings)
        rules = Rules(settings.filter, 0 if val else settings.holdout)
        job = _Job(work, tokenizer, settings, rules, workers=workers, memory=memory, quiet=quiet)
        progress = job.encode(train)
        splits = job.write_shards(progress, val)
        meta = _meta(plan, settings, tokenizer, progress, splits)
        return finish(work, output, f"{name}-wordpiece{tokenizer.get_vocab_size()}", meta)


def plan_of(files: list[Path], settings: Settings) -> str:
    """Return a hash over the settings and the names and sizes of the files."""
    listed = [[path.name, path.stat().st_size] for path in files]
    text = json.dumps([FORMAT, dataclasses.asdict(settings), listed])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def find_finished(output: Path, plan: str) -> Path | None:
    """Return the folder in which a plan was carried out already."""
    for meta in sorted(output.glob(f"[!.]*/{META}")):
        with contextlib.suppress(ValueError):
            if json.loads(meta.read_text()).get("plan") == plan:
                return meta.parent
    return None


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Own a work folder; a second process waits, then finds the result."""
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        lock = open(work.with_name(f"{work.name}.lock"), "w")  # noqa: SIM115  (held until the end)
    except OSError as error:
        raise DataError(f"cannot write {work.parent}: {error.strerror}; choose another folder") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        work.mkdir(exist_ok=True)
        yield
        Path(lock.name).unlink(missing_ok=True)


def _limited(source: Iterator[Chunk], megabytes: float | None) -> Iterator[Chunk]:
    """Yield chunks until so much text has come."""
    left = float("inf") if megabytes is None else megabytes * 1e6
    for chunk in source:
        if left <= 0:
            return
        left -= sum(map(len, chunk.items))
        yield chunk


def _tokenizer(work: Path, files: list[Path], settings: Settings) -> Tokenizer:
    path = work / TOKENIZER
    if path.is_file():
        return load_tokenizer(path)
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(Path(settings.tokenizer))
    else:
        limit = min(settings.tokenizer_megabytes, settings.megabytes or settings.tokenizer_megabytes)
        texts = itertools.chain.from_iterable(chunk.texts() for chunk in _limited(chunks(files), limit))
        tokenizer = train_wordpiece(texts, vocabulary=settings.vocabulary)
    if tokenizer.get_vocab_size() > np.iinfo(TOKEN).max + 1:
        raise DataError(f"the tokenizer has {tokenizer.get_vocab_size()} words; at most 65536 fit the shards")
    partial = path.with_suffix(".partial")
    tokenizer.save(str(partial))
    os.replace(partial, path)
    return tokenizer


class _Job:
    """One preparation between its tokenizer and its shards."""

    def __init__(
        self,
        work: Path,
        tokenizer: Tokenizer,
        settings: Settings,
        rules: Rules,
        *,
        workers: int,
        memory: int,
        quiet: bool,
    ) -> None:
        self.work, self.settings, self.rules = work, settings, rules
        self.workers, self.quiet = workers, quiet
        self.json = tokenizer.to_str()
        self.words = tokenizer.get_vocab_size()
        self.piece_lengths = decoded_lengths(tokenizer)
        self.sorter = LengthOrder(work, length=settings.length, memory=memory)

    def encode(self, files: list[Path]) -> Progress:
        """Encode the training files into sorted runs, from where an earlier call was interrupted."""
        path = self.work / STATE
        progress = Progress(**json.loads(path.read_text())) if path.is_file() else Progress(counts=[0] * self.words)
        if progress.complete:
            return progress
        packer = Packer(self.settings.length, progress.rest)
        counts = np.array(progress.counts, dtype=np.int64)
        with open(self.work / VAL_TOKENS, "ab") as held, self._bar(files) as bar:
            held.truncate(progress.val_tokens * TOKEN.itemsize)
            for encoded in self._encoded(files, skip=progress.documents):
                _advance(bar, encoded.read)
                counts += np.bincount(encoded.train, minlength=self.words)
                self._sort(packer.pack(encoded.train))
                held.write(encoded.val.tobytes())
                _count(progress, encoded)
                if self.sorter.full:
                    held.flush()
                    self._save(progress, packer, counts)
            progress.complete = True
            held.flush()
            self._save(progress, packer, counts)
        if not progress.runs:
            raise DataError(
                f"no document was kept of {progress.documents} (filter {self.settings.filter}) or they are shorter than a "
                f"sequence of {self.settings.length} tokens; raise --filter, or 0 to keep all"
            )
        return progress

    def _encoded(self, files: list[Path], *, skip: int) -> Iterator[Encoded]:
        # The limit counts from the first document, so that going on stops where an unbroken run would.
        source = _limited(chunks(files), self.settings.megabytes)
        remaining = (chunk for chunk in source if chunk.first >= skip)
        return encode_chunks(remaining, self.json, self.rules, workers=self.workers)

    def _sort(self, sequences_SN: np.ndarray) -> None:
        if len(sequences_SN):
            keys_S = self.piece_lengths[sequences_SN].sum(1) if self.settings.by_length else np.zeros(len(sequences_SN))
            self.sorter.add(sequences_SN, np.minimum(keys_S, np.iinfo(np.uint16).max))

    def _save(self, progress: Progress, packer: Packer, counts: np.ndarray) -> None:
        if self.sorter.waiting:
            self.sorter.flush(progress.runs)
            progress.runs += 1
        progress.rest, progress.counts = packer.rest_T.tolist(), counts.tolist()
        write_json(self.work / STATE, dataclasses.asdict(progress))

    def write_shards(self, progress: Progress, val_files: list[Path]) -> dict[str, list[dict[str, Any]]]:
        """Merge the runs into shards, and the held-out documents or validation files into theirs."""
        for old in self.work.glob("*.bin"):
            old.unlink()
        length = self.settings.length
        train = ShardWriter(self.work, "train", length=length).write(self.sorter.merged(progress.runs))
        if val_files:
            rules = dataclasses.replace(self.rules, holdout=0)
            encoded = encode_chunks(chunks(val_files), self.json, rules, workers=1)
            packer = Packer(length)
            blocks: Iterator[np.ndarray] = (packer.pack(part.train) for part in encoded)
        else:
            blocks = _packed_file(self.work / VAL_TOKENS, length)
        return {"train": train, "val": ShardWriter(self.work, "val", length=length).write(blocks)}

    def _bar(self, files: list[Path]) -> tqdm[Any]:
        total = sum(path.stat().st_size for path in files)
        return tqdm(total=total, unit="B", unit_scale=True, desc="encoding", disable=self.quiet or None)


def _advance(bar: tqdm[Any], position: int) -> None:
    bar.update(max(0, position - bar.n))


def _count(progress: Progress, encoded: Encoded) -> None:
    progress.documents = encoded.last
    progress.kept += encoded.kept
    progress.held_out += encoded.held_out
    progress.characters += encoded.characters
    progress.val_tokens += len(encoded.val)


def _packed_file(path: Path, length: int) -> Iterator[np.ndarray]:
    sequences = path.stat().st_size // (length * TOKEN.itemsize)
    if sequences:
        yield np.memmap(path, dtype=TOKEN, mode="r", shape=(sequences, length))


def _meta(
    plan: str,
    settings: Settings,
    tokenizer: Tokenizer,
    progress: Progress,
    splits: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "plan": plan,
        "length": settings.length,
        "vocabulary": tokenizer.get_vocab_size(),
        "tokenizer": hashlib.blake2b(tokenizer.to_str().encode(), digest_size=8).hexdigest(),
        "unigram_entropy": entropy(np.array(progress.counts)),
        "documents": {"read": progress.documents, "kept": progress.kept, "held_out": progress.held_out},
        "characters": progress.characters,
        "settings": dataclasses.asdict(settings),
        "splits": splits,
    }


def finish(work: Path, output: Path, name: str, meta: dict[str, Any]) -> Path:
    """Write meta.json, drop what was only needed on the way, and give the folder its name, with the tokenizer's hash in it."""
    for pattern in ("run-*.npy", STATE, VAL_TOKENS):
        for path in work.glob(pattern):
            path.unlink()
    write_json(work / META, meta)
    target = output / f"{name}-{meta['tokenizer']}-{meta['plan'][:4]}"
    if target.exists():
        shutil.rmtree(target)
    os.replace(work, target)
    return target
