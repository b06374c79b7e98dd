"""`spectral prepare pile`: text, or a published set of token ids, to a folder that pretraining reads."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.cramming.config import PYTHON_SOURCES
from spectral_conditioning.tasks.cramming.documents import find_files, open_table, python_sources
from spectral_conditioning.tasks.cramming.preparation import (
    Settings,
    find_finished,
    finish,
    locked,
    prepare_tokens,
)
from spectral_conditioning.tasks.cramming.token_store import (
    FORMAT,
    TOKEN,
    TOKENIZER,
    ShardWriter,
    TokenStore,
    entropy,
    open_store,
)
from spectral_conditioning.tasks.cramming.wordpiece import load_tokenizer

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
BLOCK = 4096


def prepare_text(
    given: str, output: Path, settings: Settings, *, workers: int = 1, memory: int = 1 << 28, quiet: bool = True
) -> TokenStore:
    """Prepare text, or find it prepared, and open it. `given`: a file, a folder, or "python" for Python's own sources."""
    files = python_sources() if given == PYTHON_SOURCES else find_files(given)
    name = given if given == PYTHON_SOURCES else Path(given).resolve().name.split(".")[0]
    folder = prepare_tokens(files, output, settings, name=name, workers=workers, memory=memory, quiet=quiet)
    return open_store(folder)


def id_tables(given: str) -> list[str] | None:
    """Return the parquet files, or the hub name, when `given` holds token ids instead of text; None for text."""
    if given != PYTHON_SOURCES and not Path(given).exists() and HUB_NAME.fullmatch(given):
        sources = [given]
    elif given == PYTHON_SOURCES:
        return None
    else:
        sources = [str(path) for path in find_files(given) if path.name.endswith(".parquet")]
    if not sources or "input_ids" not in open_table(sources[0]).column_names:
        return None
    return sources


def published_tokenizer(given: str, tokenizer: str | None) -> Path:
    """Return the tokenizer.json that belongs to a set of token ids: the one named, or the one beside it."""
    if tokenizer is not None:
        return Path(tokenizer)
    if Path(given).exists():
        folder = Path(given) if Path(given).is_dir() else Path(given).parent
        return folder / TOKENIZER
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(given, TOKENIZER, repo_type="dataset"))


def prepare_ids(given: str, sources: list[str], output: Path, settings: Settings, *, quiet: bool) -> TokenStore:
    """Convert a published set of packed token ids, in its own order; the last 1/holdout of it becomes validation."""
    tokenizer = load_tokenizer(published_tokenizer(given, settings.tokenizer))
    words, digest = tokenizer.get_vocab_size(), hashlib.blake2b(tokenizer.to_str().encode(), digest_size=8).hexdigest()
    sizes = [Path(source).stat().st_size if Path(source).exists() else 0 for source in sources]
    plan = hashlib.blake2b(
        json.dumps([FORMAT, sources, sizes, digest, settings.length, settings.holdout]).encode(), digest_size=8
    )
    finished = find_finished(output, plan.hexdigest())
    if finished is not None:
        return open_store(finished)
    work = output / f".partial-{plan.hexdigest()}"
    with locked(work):
        for old in work.glob("*.bin"):
            old.unlink()
        counts = np.zeros(words, dtype=np.int64)
        splits: dict[str, Any] = {}
        for split in ("train", "val"):
            blocks = _id_blocks(sources, split, settings, counts, quiet=quiet)
            splits[split] = ShardWriter(work, split, length=settings.length).write(blocks)
        tokenizer.save(str(work / TOKENIZER))
        meta = {
            "format": FORMAT,
            "plan": plan.hexdigest(),
            "length": settings.length,
            "vocabulary": words,
            "tokenizer": digest,
            "unigram_entropy": entropy(counts),
            "splits": splits,
        }
        folder = finish(work, output, f"{Path(given).name.split('.')[0]}-ids{words}", meta)
    return open_store(folder)


def _id_blocks(
    sources: list[str], split: str, settings: Settings, counts: np.ndarray, *, quiet: bool
) -> Iterator[np.ndarray]:
    """Yield blocks of every sequence of the split: each `holdout`-th one is validation, the others training."""
    rows: list[np.ndarray] = []
    number = 0
    with tqdm(desc=f"converting {split}", unit=" sequences", disable=quiet or None) as bar:
        for source in sources:
            for row in open_table(source):
                ids_N = np.array(row["input_ids"])
                if ids_N.shape != (settings.length,) or ids_N.min() < 0 or ids_N.max() >= len(counts):
                    raise DataError(
                        f"{source}, sequence {number}: {ids_N.shape[0]} ids in [{ids_N.min()}, {ids_N.max()}], expected "
                        f"{settings.length} below {len(counts)}; set --length, or the tokenizer that belongs to it"
                    )
                aside = number % settings.holdout == settings.holdout - 1
                number += 1
                if aside != (split == "val"):
                    continue
                rows.append(ids_N.astype(TOKEN))
                if len(rows) == BLOCK:
                    yield _counted(rows, counts, split)
                    bar.update(len(rows))
                    rows = []
    if rows:
        yield _counted(rows, counts, split)


def _counted(rows: list[np.ndarray], counts: np.ndarray, split: str) -> np.ndarray:
    block_SN = np.stack(rows)
    if split == "train":
        counts += np.bincount(block_SN.ravel(), minlength=len(counts))
    return block_SN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    standard = Settings()
    parser.add_argument(
        "--input",
        required=True,
        help="JSON lines of The Pile (.jsonl, .gz, .zst), text files, parquet, a folder of these, the hub name of a set of token "
        'ids, or "python" for Python\'s own sources',
    )
    parser.add_argument("--output", default="data/pile", help="folder to write into (default: %(default)s)")
    parser.add_argument(
        "--vocabulary", type=int, default=standard.vocabulary, help="words of the tokenizer (default: %(default)s)"
    )
    parser.add_argument(
        "--length", type=int, default=standard.length, help="tokens per sequence (default: %(default)s)"
    )
    parser.add_argument(
        "--filter",
        type=float,
        default=standard.filter,
        help="drop documents with so many tokens per character or more; 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--order", choices=("length", "documents"), default="length", help="order of sequences (default: %(default)s)"
    )
    parser.add_argument(
        "--holdout",
        type=int,
        default=standard.holdout,
        help="every so-many-th document is validation unless a file is named so (default: %(default)s)",
    )
    parser.add_argument("--megabytes", type=float, help="text to read at most (default: all)")
    parser.add_argument(
        "--tokenizer-megabytes",
        type=float,
        default=standard.tokenizer_megabytes,
        help="text to train the tokenizer on (default: %(default)s)",
    )
    parser.add_argument("--tokenizer", help="a tokenizer.json to use instead of training one")
    parser.add_argument(
        "--memory", type=float, default=1024, help="megabytes of sequences held for sorting (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes that encode (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Prepare and say what came of it. Raises DataError for input that cannot be read."""
    if args.holdout < 2 or args.length < 2 or args.workers < 1:
        raise DataError("--holdout and --length must be at least 2, --workers at least 1")
    settings = Settings(
        vocabulary=args.vocabulary,
        length=args.length,
        filter=args.filter,
        by_length=args.order == "length",
        holdout=args.holdout,
        megabytes=args.megabytes,
        tokenizer_megabytes=args.tokenizer_megabytes,
        tokenizer=args.tokenizer,
    )
    started, output = time.perf_counter(), Path(args.output)
    sources = id_tables(args.input)
    if sources is not None:
        store = prepare_ids(args.input, sources, output, settings, quiet=False)
    else:
        memory = int(args.memory * 1e6)
        store = prepare_text(args.input, output, settings, workers=args.workers, memory=memory, quiet=False)
    _say(store, seconds=time.perf_counter() - started)
    return 0


def _say(store: TokenStore, *, seconds: float) -> None:
    train, val = len(store.split("train")), len(store.split("val"))
    documents = store.meta.get("documents")
    kept = f"{documents['kept']:,} of {documents['read']:,} documents kept, " if documents else ""
    print(
        f"{store.folder}: {kept}{train:,} training and {val:,} validation sequences of {store.length} tokens, "
        f"{store.vocabulary:,} words, unigram entropy {store.unigram_entropy:.3f} nats; {seconds:.1f} s"
    )
    experiment = "cramming/pretrain" if store.vocabulary == Settings().vocabulary else "cramming/small_pretrain"
    print(f"train on it with: spectral train experiment={experiment} data.source=prepared data.path={store.folder}")
