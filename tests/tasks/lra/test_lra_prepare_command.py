"""`spectral prepare NAME` for the five data sets: what it writes, says and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spectral_conditioning.cli import dispatch
from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra.config import STAND_INS
from spectral_conditioning.tasks.lra.prepare import NAMES
from spectral_conditioning.tasks.lra.stand_ins import RECIPES

TINY = [
    "--samples",
    "30",
    "5",
    "5",
    "--min-length",
    "5",
    "--max-length",
    "30",
    "--max-depth",
    "4",
    "--workers",
    "1",
    "--quiet",
]


def test_listops_goes_to_the_data_folder_and_is_verified_the_second_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["prepare", "listops", *TINY]) == 0
    first = capsys.readouterr().out
    assert "listops in data/lra/listops: written" in first
    assert dispatch(["prepare", "listops", *TINY]) == 0
    second = capsys.readouterr().out
    assert "verified, nothing to do" in second
    assert first.splitlines()[-1] == second.splitlines()[-1]
    manifest = json.loads(Path("data/lra/listops/manifest.json").read_text())
    assert {name: entry["samples"] for name, entry in manifest["splits"].items()} == {"train": 30, "val": 5, "test": 5}
    assert manifest["options"]["seed"] == 0


def test_another_seed_into_the_same_folder_is_refused() -> None:
    dispatch(["prepare", "listops", *TINY])
    with pytest.raises(DataError, match=r"holds other data \(seed 0 there, 1 wanted\)"):
        dispatch(["prepare", "listops", *TINY, "--seed", "1"])


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECTRAL_DATA", str(tmp_path / "elsewhere"))
    assert dispatch(["prepare", "pathfinder", "--samples", "20", "--workers", "1", "--quiet"]) == 0
    assert (tmp_path / "elsewhere" / "lra" / "pathfinder" / "manifest.json").is_file()


def test_small_writes_what_the_small_experiment_reads() -> None:
    assert dispatch(["prepare", "image", "--small", "--quiet", "--workers", "1"]) == 0
    assert json.loads(Path("data/lra/small_image/manifest.json").read_text())["options"] == {"origin": "digits"}
    assert set(RECIPES) == set(STAND_INS) < set(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["listops", "--length", "100"], "--length mean nothing for listops"),
        (["image", "--seed", "1"], "--seed mean nothing for image"),
        (["listops", "--samples", "3"], "takes three numbers"),
        (["pathfinder", "--samples", "3", "4"], "takes one number"),
        (["listops", "--samples", "0", "1", "1"], "at least 1 sample"),
        (["pathfinder", "--samples", "5"], "at least 10"),
        (["retrieval"], "retrieval needs --input"),
        (["retrieval", "--small"], "there is one for: listops, text, image, pathfinder"),
        (["text", "--input", "nowhere"], "--input nowhere does not exist"),
        (["text", "--input", "."], "is neither the folder aclImdb"),
        (["image", "--input", "."], "holds neither data_batch_1"),
        (["retrieval", "--input", "."], "lacks new_aan_pairs.train.tsv"),
        (["listops", "--input", "."], r"one file \*_train.tsv"),
        (["pathfinder", "--input", "."], "holds no curv_contour_length_14"),
        (["listops", "--workers", "0"], "--workers is 0"),
    ],
)
def test_what_cannot_be_done_is_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dispatch(["prepare", *arguments, "--quiet"])
    assert not Path("data").exists()
