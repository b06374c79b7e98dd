"""Local studies: workers end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
from spectral_conditioning.launch import local
from spectral_conditioning.training.compose import compose_run

sys.executable = str(Path("worker").absolute())
local.train_locally([compose_run([])] * 2, folder=Path("configs"), workers=2)
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
