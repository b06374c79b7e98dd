"""The README's code runs and prints what it says."""

import csv
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_library_example_runs_and_prints_what_the_comment_says(tmp_path: Path):
    code = README.split("```python\n")[1].split("```")[0]
    expected = re.search(r"print\(report\)\s+# (.*)", code)
    assert expected
    # Thread count and image are the only changes: the example is meant for a machine of its own.
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == expected[1]


def test_every_command_and_link_in_the_readme_exists():
    from spectral_conditioning.cli import COMMANDS, DATA_SETS
    from spectral_conditioning.training.compose import config_directory

    for name in set(re.findall(r"spectral ([a-z]+) ", README)) - {"train", "prepare", "spectral"}:
        assert name in COMMANDS, name
    assert DATA_SETS
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for family, names in re.findall(r"`(\w+)/\{([\w,]+)\}`", README):
        for name in names.split(","):
            assert (config_directory() / "experiment" / family / f"{name}.yaml").exists(), f"{family}/{name}"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("update_readme")


def test_regenerating_the_readme_changes_nothing(script: ModuleType):
    assert script.regenerated(README) == README


def test_recording_a_comparison_copies_rows_tables_and_figures(tmp_path: Path, script: ModuleType):
    source = tmp_path / "compare"
    source.mkdir()
    for name in (
        "compare.csv",
        "compare.md",
        "compare.tex",
        "imagenet-small-spectra-2.png",
        "imagenet-small-training.png",
    ):
        (source / name).write_text(name)
    script.record(source, tmp_path / "kept")
    kept = {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert kept == {
        "results.csv": "compare.csv",
        "table.md": "compare.md",
        "spectra-2.png": "imagenet-small-spectra-2.png",
        "training.png": "imagenet-small-training.png",
    }


def test_recording_a_sweep_keeps_the_value_in_the_names_and_tells_of_older_pictures(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
):
    source, kept = tmp_path / "compare", tmp_path / "kept"
    source.mkdir()
    kept.mkdir()
    (kept / "2-training.png").write_text("")
    for name in ("sweep", "lr0.001-training", "lr0.003-training"):
        (source / f"imagenet-small-{name}.png").write_text("")
    script.record(source, kept)
    names = ["2-training.png", "lr0.001-training.png", "lr0.003-training.png", "sweep.png"]
    assert sorted(path.name for path in kept.iterdir()) == names
    assert capsys.readouterr().out == f"{kept} also holds pictures that are not of this comparison: 2-training.png\n"


def test_the_evidence_counts_failed_runs_and_pairs_by_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    evidence = importlib.import_module("evidence")

    def row(arm: str, seed: int, value: float, **more: str) -> dict[str, str]:
        return {"arm_id": arm, "seed": str(seed), "value": str(value), "mode": "max", "status": "finished",
                "at_chance": "False", **more}  # fmt: skip

    baseline = [row("none", seed, value) for seed, value in enumerate([0.90, 0.92, 0.94])]
    arm = [row("polar-1", 0, 0.93), row("polar-1", 1, 0.91), row("polar-1", 2, 0.10, at_chance="True")]
    assert evidence.median(arm, 100, 1) == "91.0 (1 failed)"
    assert evidence.difference(arm, baseline, 100, 1) == "−1.0, 1 of 3 (1 failed)"
    lower = [{**each, "mode": "min"} for each in arm]
    assert evidence.difference(lower, baseline, 100, 1) == "−1.0, 2 of 3 (1 failed)"


def test_every_accuracy_in_the_readme_is_in_its_results_file():
    rows: dict[str, dict[str, float]] = {}
    with open(ROOT / "experiments" / "imagenet" / "demo" / "results.csv", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["arm"], {})[row["seed"]] = 100 * float(row["value"])
    block = README.split("<!-- demo:start -->")[1].split("<!-- demo:end -->")[0]
    shown = {cells[1].strip(): cells for line in block.splitlines() if len(cells := line.split("|")) > 5}
    assert set(rows) <= set(shown)
    header = [cell.strip() for cell in shown["arm"]]
    for arm, values in rows.items():
        each = re.findall(r"[\d.]+", shown[arm][header.index("each seed")])
        assert [float(value) for value in each] == pytest.approx(list(values.values()), abs=0.005)
