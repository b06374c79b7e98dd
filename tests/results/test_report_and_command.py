"""The files of a comparison, and `spectral compare` as a command: output, exit status, messages."""

from __future__ import annotations

import argparse
import base64
import csv
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results import compare as command

Write = Callable[..., Path]


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def pair(write: Write) -> None:
    log = [{"step": step, "split": "val", "accuracy": step / 500} for step in (200, 400)]
    for seed in (0, 1):
        write(0.90 + seed / 100, seed=seed, log=log)
        write(0.92 + seed / 100, seed=seed, lam=10.0, log=log)


class Page(HTMLParser):
    """Collects a page's images, links and text, and checks that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        for name, value in attrs:
            if tag == "img" and name == "src":
                self.images.append(value or "")
            elif name in ("src", "href", "srcset", "data"):
                self.addresses.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.usefixtures("pair")
def test_report_needs_no_network_and_holds_everything(runs: Path, tmp_path: Path) -> None:
    assert run(runs, "--out", tmp_path / "out") == 0
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    page = Page(html)
    assert page.addresses == []
    assert not re.search(r"@import|url\(|<script|https?://", html)
    figures = sorted((tmp_path / "out").glob("*.png"))
    assert [path.name for path in figures] == ["imagenet-small-lambda.png", "imagenet-small-training.png"]
    embedded = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in page.images]
    assert sorted(embedded) == sorted(path.read_bytes() for path in figures)
    for words in (
        "baseline",
        "identity λ=10 (full, qkv)",
        "+2.00",
        "leads, not results",
        "Not a reproduction",
        "ViT-B",
    ):
        assert words in page.text


@pytest.mark.usefixtures("pair")
def test_left_out_runs_are_in_terminal_report_and_status(
    runs: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(0.5, seed=5, lam=10.0)
    write(0.6, seed=0, lam=1.0, hashes__order="x")
    (write(0.7, seed=6) / "result.json").write_text("{")
    (write(0.8, seed=7) / "result.json").unlink()
    assert run(runs, "--out", tmp_path / "out") == 1
    printed = " ".join(capsys.readouterr().out.split())
    page = " ".join(Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8")).text.split())
    for text in (printed, page):
        for heading in ("Refused pairs (1)", "Unpaired runs (1)", "Broken records (1)", "Unfinished runs (1)"):
            assert heading in text
        assert "order differ (o0 | x) [order]" in text


@pytest.mark.usefixtures("pair")
def test_what_was_left_out_is_in_every_file_with_its_reason(runs: Path, write: Write, tmp_path: Path) -> None:
    """Folders stand as seen from the working folder, here `tmp_path`: a table says nothing about its machine."""
    write(0.5, seed=5, lam=10.0)
    write(0.6, seed=0, lam=1.0, hashes__order="x")
    (write(0.7, seed=6) / "result.json").write_text("{")
    write(0.7, seed=8, status="gone", lam=10.0, chance="low")
    write(0.7, seed=9, status="gone", primary__mode="up")
    (write(0.8, seed=7) / "result.json").unlink()
    run(runs, "--out", tmp_path / "out")
    texts = {kind: (tmp_path / "out" / f"compare.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex", "csv")}
    for kind, text in texts.items():
        assert str(tmp_path) not in text, kind
    markdown, latex = texts["md"].splitlines(), texts["tex"].splitlines()
    start = markdown.index("**Refused pairs (1)**")
    assert markdown[start + 2] == (
        "- imagenet/small, identity λ=1 (full, qkv), seed 0 (runs/imagenet/small/identity-1/seed0): order differ (o0 | x) [order]"
    )
    for heading in ("Refused pairs (1)", "Unpaired runs (1)", "Broken records (3)", "Unfinished runs (1)"):
        assert f"**{heading}**" in markdown
        assert rf"\paragraph{{{heading}}}" in latex
    folder = "runs/imagenet/small/baseline"
    assert (
        f"- {folder}/seed7: no result.json (nothing logged yet): still running, or stopped before its end" in markdown
    )
    (twice,) = [line for line in markdown if line.startswith(f"- {folder}/seed9: ")]
    assert "2 problems: status 'gone'; allowed: finished, diverged; primary.mode 'up'; allowed: max, min" in twice
    assert any(line.startswith(rf"  \item {folder}/seed6: is not complete JSON") for line in latex)
    lines = list(csv.DictReader((tmp_path / "out" / "compare.csv").open(encoding="utf-8")))
    found = {line["source"].removeprefix("runs/imagenet/small/"): line for line in lines}
    assert {source: line["status"] for source, line in found.items() if line["comparison"] != "paired"} == {
        "identity-10/seed5": "finished", "identity-1/seed0": "finished", "baseline/seed6": "broken",
        "identity-10/seed8": "broken", "baseline/seed9": "broken", "baseline/seed7": "unfinished",
    }  # fmt: skip
    assert found["baseline/seed6"]["reason"].startswith("is not complete JSON")
    assert "\n" not in found["baseline/seed9"]["reason"]
    assert (found["baseline/seed6"]["experiment"], found["baseline/seed6"]["value"]) == ("", "")


@pytest.mark.usefixtures("pair")
def test_damaged_log_is_named_in_every_file(
    runs: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(0.91, seed=3, lam=10.0) / "metrics.jsonl"
    write(0.9, seed=3)
    log.write_text('[1]\n{"step": 1, "split": "val", "accuracy": 0.5}\n}\n{"step": 2, "spl')
    assert run(runs, "--out", tmp_path / "out") == 0
    expected = f"{log.parent.relative_to(tmp_path)}: 2 lines of metrics.jsonl cannot be read and are in no curve"
    page = Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8")).text
    for text in (capsys.readouterr().out, page, (tmp_path / "out" / "compare.md").read_text(encoding="utf-8")):
        assert "Damaged logs (1)" in text
        assert expected in " ".join(text.split())


@pytest.mark.usefixtures("pair")
def test_another_comparison_in_one_folder_leaves_no_picture_of_the_first(
    runs: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lam in (0.0, 10.0):
        write(0.4, lam=lam, experiment="lra/listops", primary__name="test/accuracy")
    out = tmp_path / "out"
    run(runs / "imagenet", "--out", out)
    (out / "imagenet-small-mine.png").write_text("mine")
    capsys.readouterr()
    run(runs / "lra", "--out", out)
    assert sorted(path.name for path in out.glob("*.png")) == ["imagenet-small-mine.png", "lra-listops-lambda.png"]
    removed = "imagenet-small-lambda.png, imagenet-small-training.png"
    assert f"Removed, of an earlier comparison in that folder: {removed}" in capsys.readouterr().out


def test_names_from_records_cannot_break_the_page(runs: Path, write: Write, tmp_path: Path) -> None:
    write(0.9)
    write(0.91, lam=10.0, arm="<script>alert(1)</script> & [red]x[/red]")
    run(runs, "--out", tmp_path)
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert "<script>alert(1)</script> & [red]x[/red]" in page.text


@pytest.mark.usefixtures("pair")
def test_nothing_comparable_is_an_error_with_the_reasons(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"(?s)no pair of baseline and conditioned run.*no comparable conditioned run"
    ):
        run(runs / "imagenet" / "small" / "baseline", "--out", tmp_path)


@pytest.mark.usefixtures("pair")
def test_override_on_the_command_line(
    runs: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(0.95, seed=0, lam=1.0, versions={"torch": "2.13"})
    words = [runs, "--out", tmp_path, "--allow-unequal", "versions", "code"]
    assert run(*words) == 0
    assert "COMPARED ALTHOUGH UNEQUAL, by request: versions differ" in " ".join(capsys.readouterr().out.split())


def test_unknown_reason_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("runs", "--allow-unequal", "everything")
    assert caught.value.code == 2
    assert "initial_weights" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["runs", "--wandb", "a/b"]])
def test_exactly_one_source(words: list[str]) -> None:
    with pytest.raises(RecordError, match="give either run folders or --wandb ENTITY/PROJECT"):
        run(*words)


@pytest.mark.usefixtures("pair")
def test_folder_that_cannot_be_written_is_one_message(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RecordError, match=r"/file is a file, and the comparison goes into a folder\. .*--out"):
        run(runs, "--out", tmp_path / "file")
    with pytest.raises(RecordError, match=r"cannot write the comparison to .*file/inside.*--out"):
        run(runs, "--out", tmp_path / "file" / "inside")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.usefixtures("pair")
def test_table_only_writes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(runs.rglob("*"))
    assert run(runs, "--table-only") == 0
    assert sorted(runs.rglob("*")) == before
    assert "identity λ=10 (full, qkv)" in capsys.readouterr().out


@pytest.mark.usefixtures("pair")
def test_default_folder_is_in_what_holds_all_runs_and_a_repeat_is_equal(runs: Path) -> None:
    arms = sorted((runs / "imagenet" / "small").iterdir())
    assert run(*arms) == 0
    out = runs / "imagenet" / "small" / "compare"
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run(runs / "imagenet" / "small") == 0  # its own output is not taken for runs
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


@pytest.mark.usefixtures("pair")
def test_two_experiments_have_two_tables_and_files(runs: Path, write: Write, tmp_path: Path) -> None:
    for lam in (0.0, 10.0):
        write(0.4, lam=lam, experiment="lra/listops", primary__name="test/accuracy")
    run(runs, "--out", tmp_path)
    assert {"imagenet-small-lambda.png", "lra-listops-lambda.png"} <= {path.name for path in tmp_path.iterdir()}
    lines = list(csv.DictReader((tmp_path / "compare_arms.csv").open(encoding="utf-8")))
    assert [line["experiment"] for line in lines] == ["imagenet/small"] * 2 + ["lra/listops"] * 2
    assert (tmp_path / "compare.md").read_text(encoding="utf-8").count("###") == 2
    assert (tmp_path / "compare.tex").read_text(encoding="utf-8").count(r"\bottomrule") == 2


def test_learning_rate_sweep_is_in_every_output(
    runs: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate, base in ((0.001, 0.90), (0.003, 0.80)):
        for lam in (0.0, 10.0):
            config = {"optim": {"lr": rate}}
            write(base + lam / 1000, lam=lam, name=f"{rate}", hashes__pair=f"p{rate}", config=config)
    assert run(runs, "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    markdown = (tmp_path / "compare.md").read_text(encoding="utf-8")
    for text in (printed, page.text, markdown):
        assert text.index("imagenet/small over optim.lr") < text.index("imagenet/small · optim.lr=0.001")
        assert "91.00 at 0.001" in text
    assert "imagenet/small over optim.lr" in (tmp_path / "compare.tex").read_text(encoding="utf-8")
    assert '<td class="number best">91.00 (1)</td>' in (tmp_path / "index.html").read_text(encoding="utf-8")
    figure = (tmp_path / "imagenet-small-sweep.png").read_bytes()
    assert "data:image/png;base64," + base64.b64encode(figure).decode() in page.images
    lines = list(csv.DictReader((tmp_path / "compare_sweep.csv").open(encoding="utf-8")))
    assert [(line["value"], line["lam"], line["best"]) for line in lines] == [
        ("0.001", "0", "True"), ("0.003", "0", "False"), ("0.001", "10", "True"), ("0.003", "10", "False"),
    ]  # fmt: skip
