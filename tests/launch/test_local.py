"""Local studies: workers tell what failed, go on, and end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.training import worker
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.identity import run_folder
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.storage import error_file, read_config, save_config

SCRIPT = """
import sys
from pathlib import Path
from spectral_conditioning.launch import local
from spectral_conditioning.training.compose import compose_run

sys.executable = str(Path("worker").absolute())
local.train_locally([compose_run([f"seed={seed}"]) for seed in (0, 1)], folder=Path("configs"), workers=2)
"""


def started(count: int, folder: Path) -> list[int]:
    """Wait for `count` workers and return their process ids."""
    deadline = time.monotonic() + 60
    while len(found := list(folder.glob("pid-*"))) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return [int(path.name.removeprefix("pid-")) for path in found]


def test_sigterm_ends_the_workers_too(tmp_path: Path):
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\ntouch pid-$$\nexec sleep 300\n")
    worker.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=tmp_path) as study:
        pids = started(2, tmp_path)
        assert len(pids) == 2
        study.send_signal(signal.SIGTERM)
        assert study.wait(timeout=60) == 128 + signal.SIGTERM
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        raise AssertionError(f"worker {pid} is still there")


def saved(folder: Path) -> list[Path]:
    """Save one configuration for each seed 0, 1, 2."""
    files = []
    for seed in range(3):
        files.append(folder / f"{seed}.yaml")
        save_config(compose_run([f"seed={seed}", f"paths.runs={folder / 'runs'}"]), files[-1])
    return files


def test_a_worker_tells_which_run_failed_and_why_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    files = saved(tmp_path)
    reasons: dict[int, Exception] = {0: RecordError("the disk is full"), 1: ZeroDivisionError("a fault of ours")}
    trained: list[int] = []

    def run(config: RunConfig, label: str) -> None:
        if config.seed in reasons:
            raise reasons[config.seed]
        trained.append(config.seed)

    monkeypatch.setattr(worker, "run", run)
    assert worker.main([*map(str, files), str(tmp_path / "none.yaml")]) == 1
    assert trained == [2]
    told = capsys.readouterr().err
    names = [run_folder(read_config(path)).name for path in files]
    assert f"error: imagenet/small · baseline · {names[0]}: the disk is full\n" in told
    assert f"error: imagenet/small · baseline · {names[1]}: ZeroDivisionError: a fault of ours\n" in told
    assert f"error: {tmp_path / 'none.yaml'}: {tmp_path / 'none.yaml'} does not exist" in told
    assert told.count("Traceback") == 1, "only for the fault that nobody foresaw"
    assert error_file(files[0]).read_text() == "the disk is full\n"
    reasons.clear()
    assert worker.main([*map(str, files)]) == 0
    assert not any(error_file(path).exists() for path in files), "a new attempt takes the old reason away"
