"""Several ranks: who started them is read from what only their starter sets, and all of them must agree before training."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.ranks import (
    RankCheck,
    cluster_environment,
    disagreement,
    global_rank,
    launched,
    must_start_ranks,
)
from spectral_conditioning.training.schema import RunConfig

from ..conftest import TINY

Make = Callable[..., RunConfig]
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "1",
}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
ALONE = {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {**SRUN, **TORCHRUN}:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "is_rank", "rank", "kind"),
    [
        ({}, False, 0, LightningEnvironment),
        (SRUN, True, 1, SLURMEnvironment),
        # A batch script or an salloc shell without srun: the variables are there, the other tasks are not.
        (BATCH, False, 0, LightningEnvironment),
        (ALONE, False, 0, LightningEnvironment),
        ({**ALONE, **TORCHRUN}, True, 1, TorchElasticEnvironment),
    ],
    ids=["alone", "srun", "batch", "one-task", "torchrun"],
)
def test_ranks_are_recognised_by_what_only_their_starter_sets(
    environment: dict[str, str], is_rank: bool, rank: int, kind: type, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (launched(), global_rank()) == (is_rank, rank)
    found = cluster_environment()
    assert type(found) is kind
    # Lightning must not requeue beside our own callback.
    assert not getattr(found, "auto_requeue", False)


def test_the_number_of_processes_must_be_that_of_the_configuration(tiny: Make, monkeypatch: pytest.MonkeyPatch):
    assert not must_start_ranks(tiny())
    assert must_start_ranks(tiny("trainer.devices=2"))
    with pytest.raises(ConfigError, match=r"trainer\.nodes is 2, but this process was not started by srun or torchrun"):
        must_start_ranks(tiny("trainer.nodes=2"))
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert not must_start_ranks(tiny("trainer.devices=2"))
    assert not must_start_ranks(tiny("trainer.nodes=2"))
    with pytest.raises(ConfigError, match=r"2 processes were started.*1 × 1.*--ntasks-per-node=1"):
        must_start_ranks(tiny())
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    with pytest.raises(ConfigError, match="use --ntasks-per-node=2"):
        must_start_ranks(tiny("trainer.devices=2"))


def test_ranks_that_differ_are_told_where(tiny: Make):
    one = RankCheck(tiny(), first_step=0).mine
    other = RankCheck(tiny("conditioning=identity", "conditioning.lam=3"), first_step=4).mine
    assert disagreement([one, dict(one)]) is None
    message = str(disagreement([one, dict(one), other]))
    for part in ("rank 0 and rank 2", "conditioning.lam: 0.0 and 3.0", "first step: 0 and 4", "same config.yaml"):
        assert part in message
    elsewhere = RankCheck(dataclasses.replace(tiny(), seed=9), first_step=0).mine
    assert "seed: 0 and 9" in str(disagreement([one, elsewhere]))


def command(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "spectral_conditioning.cli", "train", *words], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def wait_for_heartbeat(folder: Path, process: subprocess.Popen[str]) -> int:
    """Wait until a run under `folder` trains on its ranks; return the pid of its first rank."""
    end = time.monotonic() + 150
    while not (found := list(folder.rglob("progress.json"))):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    return int((found[0].parent / ".lock").read_text().split()[1])


@pytest.mark.slow
def test_a_sweep_on_two_ranks_gives_each_job_its_own_ranks_and_survives_a_kill(tmp_path: Path):
    runs = tmp_path / "runs"
    words = ["-m", *TINY, "trainer.devices=2", "conditioning=identity", "conditioning.lam=0,0.5"]
    words += ["budget.steps=100", "trainer.checkpoint_every=20", "trainer.log_every=20", f"paths.runs={runs}"]
    process = command(*words)
    rank = wait_for_heartbeat(runs / "imagenet/small/identity-0.5", process)
    # Neither the ranks nor torchrun between them may outlive the process that started them.
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while Path(f"/proc/{rank}").exists() and "zombie" not in Path(f"/proc/{rank}/status").read_text():
        assert time.monotonic() < end, "a rank lives on after its run was killed"
        time.sleep(0.1)
    assert [record["lam"] for record in records(runs)] == [0]
    again = command(*words)
    output, _ = again.communicate(timeout=150)
    assert again.returncode == 0, output
    assert "already finished" in output
    assert sorted((record["lam"], record["projections"]) for record in records(runs)) == [(0, 0), (0.5, 3)]
    # Both ranks name the run that they train, and it is this job's.
    assert output.count("identity λ=0.5 (full, qkv) · seed 0: ") == 4, output


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.rglob("result.json")]
