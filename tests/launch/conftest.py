"""A stand-in for Slurm's commands: they note what they are asked and answer from files, without a scheduler behind them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

COMMANDS = {
    "sbatch": """
        if [ "$1" = --test-only ]; then [ ! -e refuse ] || { cat refuse >&2; exit 1; }; exit 0; fi
        echo "$*" >> submitted
        echo "$((100 + $(wc -l < submitted)))"
    """,
    "squeue": "cat queue 2>/dev/null; true",
    "scontrol": """
        case "$1 $2" in
          "show config") echo "MaxArraySize            = 1001";;
          "show job") [ -e state ] || exit 1; echo "JobId=1 JobState=$(cat state) BatchFlag=$(cat batch 2>/dev/null || echo 1)";;
          *) [ ! -e broken ] || exit 1; echo "$*" >> requeued;;
        esac
    """,
    "sacct": "exit 1",
}


class FakeSlurm:
    """What the commands were asked, and the files they answer from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, name: str, text: str) -> None:
        """Let a command answer with `text` from now on."""
        (self.folder / name).write_text(text)

    def lines(self, name: str) -> list[str]:
        """Return what a command noted."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    folder = tmp_path / "fake-slurm"
    (folder / "bin").mkdir(parents=True)
    for name, text in COMMANDS.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\ncd {folder}\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return FakeSlurm(folder)
