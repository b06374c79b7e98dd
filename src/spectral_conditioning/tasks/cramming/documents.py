"""Documents out of files, one after the other in a fixed order, without holding a file in memory.

Read are JSON lines in the format of The Pile ({"text": …, "meta": …}; plain, .gz or .zst), text files, and parquet with a column
`text`, or `input_ids` where the text is tokenised already. A folder stands for all such files below it, in the order of names.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from spectral_conditioning.errors import DataError

LINE_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py")
VALIDATION_STEMS = ("val", "valid", "validation", "dev")
CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Neighbouring documents, about a megabyte, not yet decoded.

    first: number of the first one. line: its line in the file. read: bytes of files so far.
    """

    kind: Literal["lines", "text"]
    origin: str
    first: int
    line: int
    items: tuple[Any, ...]
    read: int

    def texts(self) -> list[str]:
        """Decode the documents. Raises DataError that names the file and line of a bad record."""
        if self.kind == "lines":
            return [_record_text(item, f"{self.origin}, line {self.line + i}") for i, item in enumerate(self.items)]
        return list(self.items)


def _record_text(line: bytes, name: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{name} is not JSON ({error}): {line[:60]!r}") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise DataError(f'{name} has no string under "text", as a record of The Pile has: {line[:60]!r}')
    return text


def _suffix(path: Path) -> str | None:
    for suffix in (*LINE_SUFFIXES, *TEXT_SUFFIXES, ".parquet"):
        if path.name.endswith(suffix):
            return suffix
    return None


def python_sources() -> list[Path]:
    """Return the modules of the running Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    found = [path for path in root.rglob("*.py") if not skipped & set(path.relative_to(root).parts)]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def find_files(given: str | Path) -> list[Path]:
    """Return the files that `given` stands for: itself, or those of a folder. Raises DataError when there is none."""
    root = Path(given)
    if root.is_file():
        found = [root]
    elif root.is_dir():
        found = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    else:
        raise DataError(f"{root} does not exist; give a file or folder of {', '.join(LINE_SUFFIXES)}, text or parquet")
    kinds = {_suffix(path) for path in found}
    if kinds & {*LINE_SUFFIXES, ".parquet"}:  # a folder of records: texts beside them are descriptions
        found = [path for path in found if _suffix(path) in (*LINE_SUFFIXES, ".parquet")]
    found = [path for path in found if _suffix(path)]
    if not found:
        allowed = ", ".join((*LINE_SUFFIXES, *TEXT_SUFFIXES, ".parquet"))
        raise DataError(f"{root} holds no file that can be read; allowed endings: {allowed}")
    return sorted(found, key=lambda path: path.as_posix())


def split_files(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files for training and those named as validation (val.jsonl.zst, validation-0.parquet …); tests are left out."""
    records = [path for path in files if _suffix(path) not in TEXT_SUFFIXES]
    if len(records) < len(files):
        return files, []
    stems = {path: path.name.split(".")[0].split("-")[0].lower() for path in files}
    val = [path for path in files if stems[path] in VALIDATION_STEMS]
    train = [path for path in files if path not in val and stems[path] != "test"]
    return (train, val) if train else (val, [])


def chunks(files: list[Path]) -> Iterator[Chunk]:
    """Yield all documents of all files."""
    number = before = 0
    for path in files:
        kind: Literal["lines", "text"] = "lines" if _suffix(path) in LINE_SUFFIXES else "text"
        for line, items, position in _chunks_of(path):
            yield Chunk(kind, path.name, first=number, line=line, items=tuple(items), read=before + position)
            number += len(items)
        before += path.stat().st_size


def _chunks_of(path: Path) -> Iterator[tuple[int, list[Any], int]]:
    """Yield (line of the first document, documents, bytes of the file read) of one file."""
    suffix = _suffix(path)
    if suffix in TEXT_SUFFIXES:
        yield from _text_pieces(path)
    elif suffix == ".parquet":
        yield from _gathered(((text, len(text)) for text in _parquet_texts(path)), lambda: 0)
    else:
        with open(path, "rb") as raw, _decompressed(raw, path) as lines:
            yield from _gathered(((line, len(line)) for line in _lines(lines, path)), raw.tell)


def _text_pieces(path: Path) -> Iterator[tuple[int, list[Any], int]]:
    """Yield a text file as one document, or, past a megabyte, as several that end with a line."""
    number = 1
    with open(path, "rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            # What is not UTF-8 is not ASCII either, and only ASCII is kept.
            yield number, [b"".join(lines).decode("utf-8", errors="ignore")], file.tell()
            number += 1


def _gathered(items: Iterator[tuple[Any, int]], position: Any) -> Iterator[tuple[int, list[Any], int]]:
    first, held, size = 1, [], 0
    for item, length in items:
        held.append(item)
        size += length
        if size >= CHUNK_BYTES:
            yield first, held, position()
            first, held, size = first + len(held), [], 0
    if held:
        yield first, held, position()


def _lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from stream
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be decompressed to its end: {error}") from error


def _decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if path.name.endswith(".zst"):
        import pyarrow  # type: ignore[import-untyped]

        return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), 1 << 20)
    return raw


def _parquet_texts(path: Path) -> Iterator[str]:
    table = open_table(str(path))
    if "text" not in table.column_names:
        raise DataError(f"{path} has columns {', '.join(table.column_names)}; expected `text` or `input_ids`")
    for row in table:
        yield row["text"]


def open_table(source: str, *, split: str = "train") -> Any:
    """Stream a parquet file, or a split of a Hugging Face data set, through `datasets`."""
    import datasets

    try:
        if source.endswith(".parquet"):
            table = datasets.load_dataset("parquet", data_files={split: source}, split=split, streaming=True)
        else:
            table = datasets.load_dataset(source, split=split, streaming=True)
    except Exception as error:
        raise DataError(f"{source} cannot be read through `datasets`: {str(error).splitlines()[0]}") from error
    return table if table.column_names else table._resolve_features()
