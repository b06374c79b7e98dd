"""A run that is asked to stop saves at the next step's end, says so with status 75, and ends as an unbroken one later."""

import json
import multiprocessing
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from spectral_conditioning.training import preemption
from spectral_conditioning.training.callbacks import Record
from spectral_conditioning.training.preemption import requeue, slurm_job
from spectral_conditioning.training.run import Outcome
from spectral_conditioning.training.signals import STOP_SIGNALS, Stopped, listening, received

Train = Callable[..., Outcome]
SLURM = {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2"}


def metrics(outcome: Outcome) -> str:
    return (outcome.folder / "metrics.jsonl").read_text()


def signal_at(step: int, number: int, patch: pytest.MonkeyPatch) -> None:
    """Send this process a signal in the middle of the batch that completes `step`."""
    original = Record.on_train_batch_end

    def sends(self: Record, trainer: Trainer, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == step:
            os.kill(os.getpid(), number)

    patch.setattr(Record, "on_train_batch_end", sends)


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize(
    "overrides", [(), ("trainer.accumulate=2", "trainer.log_every=4")], ids=["plain", "accumulate"]
)
def test_a_stopped_run_saves_where_it_is_and_goes_on_exactly(
    number: signal.Signals, overrides: tuple[str, ...], train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    unbroken = train(*overrides, runs="unbroken")
    handlers = [signal.getsignal(item) for item in STOP_SIGNALS]
    with monkeypatch.context() as patch:
        signal_at(3, number, patch)
        with pytest.raises(Stopped) as stopped:
            train(*overrides, "trainer.checkpoint_every=null")
    assert stopped.value.code == 75
    assert "stopped at step 3" in stopped.value.message
    assert [path.name for path in tmp_path.glob("runs/**/step-*.ckpt")] == ["step-3.ckpt"]
    (beat,) = tmp_path.glob("runs/**/progress.json")
    assert json.loads(beat.read_text())["step"] == 3  # where it stopped, not where it was seconds before
    assert [signal.getsignal(item) for item in STOP_SIGNALS] == handlers
    assert received() is None
    assert metrics(train(*overrides)) == metrics(unbroken)


def test_a_signal_to_every_process_of_a_job_leaves_the_loaders_workers_alone(
    train: Train, monkeypatch: pytest.MonkeyPatch
):
    unbroken = train(runs="unbroken")
    asked: list[str] = []
    original = Record.on_train_batch_end

    def signals_workers(self: Record, *rest: Any) -> None:
        original(self, *rest)
        pids = [str(child.pid) for child in multiprocessing.active_children()]
        if not asked:
            for name in ("USR1", "USR2", "TERM"):
                subprocess.run(["kill", f"-{name}", *pids], check=True)
        asked.extend(pids)

    monkeypatch.setattr(Record, "on_train_batch_end", signals_workers)
    assert metrics(train("data.workers=1")) == metrics(unbroken)
    assert asked[0] in asked[-2:], "the worker ended"


def test_listening_ends_with_its_block():
    before = signal.getsignal(signal.SIGUSR1)
    with listening():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert received() == signal.SIGUSR1
        with listening():
            assert received() == signal.SIGUSR1
        assert received() == signal.SIGUSR1
    assert received() is None
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Install an scontrol that answers `show job` with a line and notes what is requeued; returns a reader of the notes."""
    path = tmp_path / "bin" / "scontrol"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(preemption.time, "sleep", lambda seconds: None)

    def install(shown: str, *, status: int = 0) -> None:
        answer = f'if [ "$1" = show ]; then echo "{shown}"; else exit {status}; fi'
        text = f'#!/bin/bash\necho "$*" >> {tmp_path}/notes\n{answer}\n'
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def notes(shown: str | None = None, **options: Any) -> list[str]:
        if shown is not None:
            install(shown, **options)
        found = (tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else []
        return [line for line in found if line.startswith("requeue")]

    return notes


def test_a_running_job_is_requeued_once_by_its_own_name(scontrol: Callable[..., list[str]]):
    scontrol("JobId=12 JobState=RUNNING BatchFlag=1")
    assert requeue(SLURM) == "job 12 requeued (restart 3 of at most 50)"
    array = {**SLURM, "SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "4"}
    assert "job 12_4 requeued" in requeue(array)
    # An element of an array, never the array.
    assert scontrol() == ["requeue 12", "requeue 12_4"]
    assert slurm_job({}) is None


@pytest.mark.parametrize(
    ("shown", "environment", "said"),
    [
        ("JobState=CANCELLED BatchFlag=1", {}, "not requeued: Slurm says that job 12 is CANCELLED"),
        ("JobState=TIMEOUT BatchFlag=1", {}, "is TIMEOUT"),
        ("JobState=PREEMPTED BatchFlag=1", {}, "is PREEMPTED"),
        ("JobState=RUNNING BatchFlag=0", {}, "interactive"),
        ("JobState=RUNNING BatchFlag=1", {"SPECTRAL_MAX_RESTARTS": "2"}, "restarted 2 times, the most"),
    ],
)
def test_a_job_that_must_not_come_back_is_left_alone(
    shown: str, environment: dict[str, str], said: str, scontrol: Callable[..., list[str]]
):
    scontrol(shown)
    assert said in requeue({**SLURM, **environment})
    assert scontrol() == []


def test_a_requeue_that_fails_is_tried_again_and_told(scontrol: Callable[..., list[str]]):
    scontrol("JobState=RUNNING BatchFlag=1", status=1)
    assert "could not be requeued" in requeue(SLURM)
    assert len(scontrol()) == 3


def test_outside_slurm_the_same_command_goes_on():
    assert requeue({}) == "the same command goes on from here"
