"""A comparison's folder holds one comparison: stale files of its own go, files of anybody else stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.output_folder import MANIFEST, OutputFolder, make_folder


def fill(path: Path, **files: str) -> OutputFolder:
    with OutputFolder(path, "the comparison") as folder:
        for name, text in files.items():
            folder.write(name, text)
    return folder


def contents(path: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in path.iterdir() if each.name != MANIFEST}


def test_files_of_the_earlier_comparison_go_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    fill(tmp_path, index="1", old="1", edited="1")
    (tmp_path / "edited").write_text("by hand")
    folder = fill(tmp_path, index="2", new="2")
    assert contents(tmp_path) == {"notes.md": "mine", "index": "2", "new": "2", "edited": "by hand"}
    assert (folder.removed, folder.kept) == (["old"], ["edited"])
    assert sorted(json.loads((tmp_path / MANIFEST).read_text())["files"]) == ["index", "new"]


def test_a_comparison_that_fails_removes_nothing_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    fill(tmp_path, old="1")
    with pytest.raises(FileNotFoundError), OutputFolder(tmp_path, "the comparison") as folder:
        folder.write("half", "2").with_name("gone").read_text()
    assert contents(tmp_path) == {"old": "1", "half": "2"}
    assert fill(tmp_path, new="3").removed == ["half", "old"]
    assert contents(tmp_path) == {"new": "3"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": ["kept"]}', '{"files": null}', '{"other": 1}'])
def test_a_list_that_cannot_be_read_claims_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "kept").write_text("mine")
    (tmp_path / MANIFEST).write_text(text)
    assert fill(tmp_path, new="1").removed == []
    assert contents(tmp_path) == {"kept": "mine", "new": "1"}


def test_a_list_cannot_reach_outside_its_folder(tmp_path: Path) -> None:
    fill(tmp_path / "out", old="1")
    listed = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "outside").write_text("1")
    listed["files"]["../outside"] = listed["files"]["old"]
    listed["files"][str(tmp_path / "outside")] = listed["files"]["old"]
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(listed))
    assert fill(tmp_path / "out", new="1").removed == ["old"]
    assert (tmp_path / "outside").read_text() == "1"


def test_a_link_in_place_of_a_file_is_somebody_elses(tmp_path: Path) -> None:
    fill(tmp_path / "out", old="1")
    (tmp_path / "out" / "old").rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "old").symlink_to(tmp_path / "elsewhere")
    assert fill(tmp_path / "out", new="1").removed == []
    assert (tmp_path / "out" / "old").read_text() == "1"


def test_a_folder_is_proved_writable_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    make_folder(tmp_path / "a" / "b", "the probe")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(RecordError, match=r"cannot write the probe to .*: .*No space left.*Choose another .*--out"):
        make_folder(tmp_path, "the probe")
