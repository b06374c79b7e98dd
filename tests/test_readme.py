"""The README's code runs and prints what it says."""

import csv
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

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


def test_regenerating_the_readme_changes_nothing():
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "scripts" / "update_readme.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.regenerated(README) == README


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
