"""Studies on a real Slurm: nothing is lost, nothing is done twice, and an interrupted run ends as an unbroken one.

The slow scenarios are submitted together and run side by side; each test waits for its own.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from .conftest import TINY, Lab, assert_same_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CHAIN = """\
stages:
  pretrain:
    experiments: [imagenet/small]
    arms:
      - [conditioning=none]
      - [conditioning=identity, conditioning.lam=1, data=images, data.path=/no/such/file.zip, task.model.in_chans=3]
    overrides: ["budget={steps: 4, epochs: null, tokens: null}", task.model.depth=1, optim.warmup_epochs=0]
  glue:
    after: pretrain
    experiments: [imagenet/small]
    overrides:
      ["budget={steps: 5, epochs: null, tokens: null}", "logger.tags=[{pretrain}]", task.model.depth=1, optim.warmup_epochs=0]
"""


@pytest.fixture(scope="module")
def jobs(lab: Lab) -> dict[str, list[str]]:
    """Submit everything that needs no look at another scenario first."""
    (lab.folder / "chain").mkdir()
    (lab.folder / "chain" / "study.yaml").write_text(CHAIN)
    return {
        "limit": lab.submit("limit", "site.time=2", "site.warn_seconds=30"),
        "low": lab.submit("low", "site.partition=low"),
        "warned": lab.submit("warned", "trainer.devices=2"),
        "sweep": lab.submit("sweep", "seed=0,1,2", "--max-parallel=2"),
        "one": lab.submit("one"),
        "wide": lab.submit("wide", "trainer.devices=2"),
        "nodes": lab.submit("nodes", "trainer.nodes=2"),
        "chain": lab.submit("chained", study="chain"),
        "held": lab.submit("held", 'site.options=["--begin=now+1hour"]'),
    }


@pytest.fixture(scope="module")
def halted(lab: Lab, jobs: dict[str, list[str]]) -> dict[str, int]:
    """Halt the runs that are to be interrupted in the middle of their training."""
    pids = lab.halt_in_training("limit", "low", "warned", "sweep")
    os.kill(pids["sweep"], signal.SIGKILL)
    return pids


def test_a_run_ahead_of_its_time_limit_saves_and_goes_on(lab: Lab, jobs: dict[str, list[str]], halted: dict[str, int]):
    """Comes last in time: the others are prepared meanwhile."""
    urgent = lab.cluster.call("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--wrap", "sleep 1").strip()
    lab.cluster.call("scancel", "--signal=USR2", jobs["warned"][0])
    lab.go_on_after(halted["warned"], signal.SIGUSR2)
    lab.go_on_after(halted["low"], signal.SIGUSR2, signal.SIGTERM)
    lab.wait_until_ended(urgent)
    lab.go_on_after(halted["limit"], signal.SIGUSR2)
    lab.wait_until_finished("limit")
    lab.wait_until_finished("one")
    assert "requeued (restart 1 of at most 50)" in lab.job_log(jobs["limit"][0])
    assert_same_run(*lab.records("limit"), *lab.records("one"))


def test_a_preempted_run_ends_as_an_unbroken_one(lab: Lab, jobs: dict[str, list[str]]):
    lab.wait_until_finished("low")
    assert int(lab.cluster.field(jobs["low"][0], "Restarts")) == 1
    assert "going on at step" in lab.job_log(jobs["low"][0])
    assert_same_run(*lab.records("low"), *lab.records("one"))


def test_ranks_on_one_node_and_on_two_compute_the_same(lab: Lab, jobs: dict[str, list[str]]):
    lab.wait_until_finished("wide")
    lab.wait_until_finished("nodes")
    assert lab.cluster.field(jobs["nodes"][0], "NodeList") == "n[1-2]"
    one, other = lab.records("wide") + lab.records("nodes")
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()


def test_two_ranks_that_are_warned_save_together_and_end_as_unbroken_ones(lab: Lab, jobs: dict[str, list[str]]):
    lab.wait_until_finished("warned")
    log = lab.job_log(jobs["warned"][0])
    assert log.count("requeued (restart 1 of at most 50)") == 1
    assert "going on at step" in log
    assert_same_run(*lab.records("warned"), *lab.records("wide"))


def test_a_throttled_array_never_runs_more_than_it_may(lab: Lab, jobs: dict[str, list[str]]):
    (array,) = jobs["sweep"]
    lab.wait_until_ended(array)
    ends = [lab.cluster.field(f"{array}_{index}", "EndTime") for index in (0, 1)]
    assert min(ends) <= lab.cluster.field(f"{array}_2", "StartTime")


def test_a_killed_run_is_reported_and_only_it_is_submitted_again(lab: Lab, jobs: dict[str, list[str]]):
    (array,) = jobs["sweep"]
    lab.wait_until_ended(array)
    shown = lab.status("sweep")
    assert f"failed       job {array}_0 failed: srun: error: n" in shown
    assert "task 0: Killed" in shown
    assert "2 done, 1 failed" in shown
    (again,) = lab.submit("sweep", "seed=0,1,2", "--max-parallel=2")
    assert lab.submit("sweep", "seed=0,1,2") == []
    lab.wait_until_ended(again)
    assert "3 done" in lab.status("sweep")
    assert_same_run(lab.records("sweep")[0], *lab.records("one"))


def test_a_chain_whose_first_part_fails_does_not_start_its_second(lab: Lab, jobs: dict[str, list[str]]):
    _, second = jobs["chain"]
    lab.wait_until_ended(second)
    shown = lab.status("chained")
    assert shown.count("done") == 3, shown
    assert "file.zip" in shown
    assert f"{second}_1 cancelled" in shown
    assert lab.cluster.field(f"{second}_0", "JobState") == "COMPLETED"


def test_a_cancelled_job_is_reported(lab: Lab, jobs: dict[str, list[str]]):
    (job,) = jobs["held"]
    assert "BeginTime" in lab.status("held")
    lab.cluster.call("scancel", job)
    lab.wait_until_ended(job)
    assert f"job {job} cancelled" in lab.status("held")


@pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None
    if importlib.util.find_spec("hydra_plugins")
    else True,
    reason="hydra-submitit-launcher is not installed (pip install hydra-submitit-launcher)",
)
def test_hydras_submitit_launcher_trains_a_sweep(lab: Lab):
    words = [*TINY, "seed=0,1", "paths.runs=submitit", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=main"]
    words += ["hydra.launcher.mem_gb=null", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=9"]
    done = subprocess.run(
        [sys.executable, "-m", "spectral_conditioning.cli", "train", "-m", *words],
        cwd=lab.folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [folder.name[:5] for folder in lab.records("submitit")] == ["seed0", "seed1"]
    assert_same_run(lab.records("submitit")[0], *lab.records("one"))
