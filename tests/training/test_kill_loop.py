"""Ten SIGKILLs at random moments of one training; its record equals that of the unbroken run.

The processes are forked from this one, so that a start costs no imports and every kill can land in the run itself.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spectral_conditioning.training.run import run
from spectral_conditioning.training.schema import RunConfig

KILLS = 10
STEPS = 60
OVERRIDES = [
    "conditioning=polar", "conditioning.refresh_every=3", "optim.ema_decay=0.9", "optim.report=ema", "data.mixup=0.3",
    f"budget={{steps: {STEPS}, epochs: null, tokens: null}}", "evaluate={every_steps: 7, every_epochs: null}",
    "trainer.checkpoint_every=1", "trainer.log_every=2",
]  # fmt: skip


def start(config: RunConfig) -> Any:
    process = multiprocessing.get_context("fork").Process(target=run, args=(config,))
    process.start()
    return process


def step_reached(folder: Path) -> int:
    """Return the newest step that a checkpoint or its half-written file names."""
    names = [path.name for path in folder.rglob("*step-*")]
    return max((int(name.split("step-")[1].split(".")[0]) for name in names), default=0)


def contents(folder: Path) -> tuple[str, dict[str, Any], dict[str, torch.Tensor], list[str]]:
    (record,) = folder.rglob("result.json")
    values = json.loads(record.read_text())
    for name in ("seconds", "config"):
        del values[name]
    model = torch.load(record.parent / "checkpoints" / "reported.ckpt", weights_only=True)["model"]
    files = sorted(str(path.relative_to(record.parent)) for path in record.parent.rglob("*"))
    return (record.parent / "metrics.jsonl").read_text(), values, model, files


@pytest.mark.slow
def test_ten_random_kills_leave_no_trace(tiny: Callable[..., RunConfig], tmp_path: Path):
    unbroken = start(tiny(*OVERRIDES, runs="unbroken"))
    config = tiny(*OVERRIDES)
    draws = random.Random(8)
    # Two kills come anywhere in start-up; each of the others waits for progress, so that they spread over the whole run.
    targets = [0, 0, *sorted(draws.sample(range(2, STEPS - 4), KILLS - 2))]
    killed = []
    for target in targets:
        process = start(config)
        end = time.monotonic() + 60
        while step_reached(tmp_path / "runs") < target and process.is_alive() and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(draws.uniform(0, 0.5 if target == 0 else 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed.append(process.exitcode)
    assert killed == [-signal.SIGKILL] * KILLS
    assert not list((tmp_path / "runs").rglob("result.json")), "the run was over before the last kill"
    last = start(config)
    last.join(60)
    unbroken.join(60)
    assert (last.exitcode, unbroken.exitcode) == (0, 0)
    metrics, record, model, files = contents(tmp_path / "unbroken")
    again = contents(tmp_path / "runs")
    assert (again[0], again[1], again[3]) == (metrics, record, files)
    assert again[2].keys() == model.keys()
    for name, value in model.items():
        assert torch.equal(again[2][name], value), name
