"""The README's code runs and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_library_example_runs_and_prints_what_the_comment_says(tmp_path: Path):
    code = README.split("```python\n")[1].split("```")[0]
    expected = re.search(r"print\(report\)\s+# (.*)", code)
    assert expected
    # Thread count and image are the only changes: the example is meant for a machine of its own.
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == expected[1]


def test_every_command_and_link_in_the_readme_exists():
    from spectral_conditioning.cli import COMMANDS, DATA_SETS
    from spectral_conditioning.training.compose import config_directory

    root = Path(__file__).parents[1]
    for name in set(re.findall(r"spectral ([a-z]+) ", README)) - {"train", "prepare", "spectral"}:
        assert name in COMMANDS, name
    assert DATA_SETS
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (root / target).exists(), target
    for family, names in re.findall(r"`(\w+)/\{([\w,]+)\}`", README):
        for name in names.split(","):
            assert (config_directory() / "experiment" / family / f"{name}.yaml").exists(), f"{family}/{name}"
