"""`spectral compare` as a process of its own: what it imports, and readers that leave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Write = Callable[..., Path]


def test_command_line_loads_no_heavy_package_before_it_runs() -> None:
    heavy = {"torch", "matplotlib", "pandas", "scipy", "rich", "wandb", "lightning"}
    code = (
        "import sys, spectral_conditioning.results.compare as c, argparse; c.add_arguments(argparse.ArgumentParser());"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_comparison_without_torch(runs: Path, write: Write, tmp_path: Path) -> None:
    """Importing torch takes longer than the comparison of hundreds of runs."""
    for lam in (0.0, 10.0):
        for seed in range(3):
            write(0.9 + 0.01 * seed * (1 + lam), seed=seed, lam=lam)
    code = (
        "import sys; from spectral_conditioning.cli import dispatch;"
        f"dispatch(['compare', {str(runs)!r}, '--out', {str(tmp_path / 'out')!r}]);"
        "sys.exit(' '.join({'torch', 'scipy.stats', 'pandas', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"  # sys.exit prints its message: no module
    assert done.stdout.count("ended at") == 1


def test_reader_that_leaves_gets_its_files_all_the_same(runs: Path, write: Write, tmp_path: Path) -> None:
    for lam in (0.0, 10.0):
        write(0.9, lam=lam)
    code = "from spectral_conditioning.cli import main; main()"
    words = [sys.executable, "-c", code, "compare", str(runs), "--out", str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert {"index.html", "compare.csv", "compare_arms.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}
