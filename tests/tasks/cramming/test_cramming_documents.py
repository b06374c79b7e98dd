"""Laws of reading: the same documents from every kind of file, in the order of names, and bad records named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.cramming import documents
from spectral_conditioning.tasks.cramming.documents import chunks, find_files, python_sources, split_files

from .cramming_text import sentences, write_records


def texts(path: Path) -> list[str]:
    return [text for chunk in chunks(find_files(path)) for text in chunk.texts()]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_records(tmp_path / "plain" / "a.jsonl", 30)


def zstd(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)  # type: ignore[no-any-return]


def test_every_container_gives_the_same_documents(lines: Path, tmp_path: Path) -> None:
    content = lines.read_bytes()
    wanted = [json.loads(line)["text"] for line in content.splitlines()]
    half = content.index(b"\n", len(content) // 2) + 1
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(content[:half]) + zstd(content[half:]))
    pyarrow.parquet.write_table(pyarrow.table({"text": wanted}), tmp_path / "a.parquet")
    assert texts(lines) == wanted
    for name in ("a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        assert texts(tmp_path / name) == wanted, name


def test_folders_are_read_by_name_and_descriptions_left_out(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_records(tmp_path / f"{name}.jsonl", 2, seed=ord(name))
    (tmp_path / "README.md").write_text("about the data")
    assert texts(tmp_path) == [sentences(ord(name) + i, 120 + i) for name in "abc" for i in range(2)]


def test_text_files_are_documents_and_large_ones_are_cut_at_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.txt").write_text("small\n")
    (tmp_path / "a.py").write_text("".join(f"line {i}\n" for i in range(100)))
    monkeypatch.setattr(documents, "CHUNK_BYTES", 200)
    found = texts(tmp_path)
    assert found[-1] == "small\n"
    assert "".join(found[:-1]) == (tmp_path / "a.py").read_text()
    assert len(found) > 3
    assert all(text.endswith("\n") for text in found)


def test_chunks_number_the_documents(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "CHUNK_BYTES", 2000)
    found = list(chunks([lines, lines]))
    assert len(found) > 4
    assert [chunk.first for chunk in found] == [sum(len(c.items) for c in found[:i]) for i in range(len(found))]
    assert found[-1].read == 2 * lines.stat().st_size


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"a\.jsonl, line 31 is not JSON"),
        ('{"txt": "x"}', r'a\.jsonl, line 31 has no string under "text"'),
        ("[1]", r'a\.jsonl, line 31 has no string under "text"'),
    ],
)
def test_a_bad_record_is_named(lines: Path, line: str, message: str) -> None:
    with open(lines, "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        texts(lines)


def test_a_file_cut_short_is_named(lines: Path, tmp_path: Path) -> None:
    content = lines.read_bytes()
    for name, packed in (("a.jsonl.gz", gzip.compress(content)), ("b.jsonl.zst", zstd(content))):
        (tmp_path / name).write_bytes(packed[: len(packed) // 2])
        with pytest.raises(DataError, match=f"{name} cannot be decompressed"):
            texts(tmp_path / name)


def test_missing_and_empty_inputs_say_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; give a file or folder"):
        find_files(tmp_path / "nothing")
    (tmp_path / "picture.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"no file that can be read; allowed endings: \.jsonl"):
        find_files(tmp_path)


def test_validation_files_are_told_by_name() -> None:
    names = ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst", "test.jsonl.zst", "validation-00.parquet"]
    train, val = split_files([Path(name) for name in names])
    assert [str(path) for path in train] == names[:2]
    assert [str(path) for path in val] == [names[2], names[4]]
    # Text files are named for their content.
    assert split_files([Path("val.py"), Path("test.py")]) == ([Path("val.py"), Path("test.py")], [])


def test_python_sources_need_no_download() -> None:
    found = python_sources()
    assert len(found) > 100
    assert "argparse.py" in {path.name for path in found}
    assert not any({"test", "site-packages"} & set(path.parts[-3:]) for path in found)
