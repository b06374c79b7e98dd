"""One cluster for all tests of this folder, and the logs of its daemons and jobs in the report of a test that fails."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from spectral_conditioning.cli import dispatch

from .cluster import SEARCH, Cluster, wait_for, why_not

TINY = [
    "experiment=imagenet/small", "task.model.embed_dim=16", "task.model.num_heads=2", "task.model.depth=1",
    "data.batch_size=32", "budget={steps: 150, epochs: null, tokens: null}", "evaluate={every_steps: 50, every_epochs: null}",
    "trainer.log_every=5", "trainer.checkpoint_every=25", "trainer.progress=none",
]  # fmt: skip
SITE = """\
partition: main
gpus: none
cpus_per_task: 1
time: "9"
master_addr: 127.0.0.1
"""
PATIENCE = 150.0


class Lab:
    """A user in front of the cluster: submits, looks, signals, and reads what came of it."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster

    def spectral(self, *words: str) -> str:
        """Run `spectral …` and return what it printed."""
        printed = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
            dispatch(words)
        return printed.getvalue()

    def submit(self, name: str, *words: str, study: str | None = None) -> list[str]:
        """Submit tiny runs into the folder `name`; return the job ids."""
        what = [study] if study else TINY
        printed = self.spectral("submit", *what, f"paths.runs={name}", "site=local.yaml", "--changed-code=warn", *words)
        return [line.split()[1].rstrip(":") for line in printed.splitlines() if line.startswith("job ")]

    def status(self, name: str) -> str:
        """Return what `spectral status` prints about the study in the folder `name`."""
        (study,) = (self.folder / name / ".studies").glob("*/study.json")
        return self.spectral("status", str(study.parent))

    def records(self, name: str) -> list[Path]:
        """Return the folders of finished runs under `name`."""
        return sorted(path.parent for path in (self.folder / name).rglob("result.json"))

    def wait_until_finished(self, name: str, count: int = 1) -> None:
        """Wait for records; fail at once when a run failed."""

        def finished() -> bool:
            if len(self.records(name)) >= count:
                return True
            shown = self.status(name)
            assert "  failed " not in shown, shown
            return False

        wait_for(f"{count} finished runs in {name}", finished, seconds=PATIENCE, pause=0.5)

    def wait_until_ended(self, job: str) -> None:
        """Wait until no element of a job is in the queue."""
        command = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        wait_for(
            f"the end of job {job}", lambda: not self.cluster.call(*command, check=False).strip(), seconds=PATIENCE
        )

    def heartbeat(self, name: str) -> Path | None:
        """Return progress.json of the run of seed 0 under `name` once it trains."""
        return next(iter((self.folder / name).rglob("seed0-*/progress.json")), None)

    def halt_in_training(self, *names: str) -> dict[str, int]:
        """Halt the first rank of the one run under each name as soon as it trains; return the pids."""
        pids: dict[str, int] = {}

        def all_halted() -> bool:
            for name in names:
                path = self.heartbeat(name) if name not in pids else None
                if path is not None:
                    pids[name] = int((path.parent / ".lock").read_text().split()[1])
                    os.kill(pids[name], signal.SIGSTOP)
                    assert not (path.parent / "result.json").exists(), f"{name} was over before it could be halted"
            return len(pids) == len(names)

        wait_for(f"training in {', '.join(names)}", all_halted, seconds=PATIENCE, pause=0.02)
        return pids

    def pending_signals(self, pid: int) -> int:
        """Return the mask of signals that a halted process has not seen yet; all of them when it has ended since."""
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            return -1  # Slurm itself sends CONT along with some signals.
        masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
        return masks[0] | masks[1]

    def go_on_after(self, pid: int, *numbers: signal.Signals, seconds: float = PATIENCE) -> None:
        """Let a halted process go on once one of the signals has been sent to it."""
        wanted = sum(1 << (number - 1) for number in numbers)
        wait_for(f"{numbers} at process {pid}", lambda: self.pending_signals(pid) & wanted, seconds=seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def job_log(self, job: str) -> str:
        """Return the log of a job, over all its restarts."""
        return "\n".join(path.read_text() for path in sorted(self.folder.rglob(f"logs/{job}*.log")))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    cluster = Cluster(folder / "cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", SEARCH)
        patch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        patch.setenv("PYTHONPATH", str(Path(dispatch.__code__.co_filename).parents[1]), prepend=os.pathsep)
        try:
            cluster.start()
        except (TimeoutError, subprocess.SubprocessError) as error:
            logs = cluster.logs()
            cluster.stop()
            pytest.fail(f"the cluster did not start: {error}\n{logs}")
        (folder / "local.yaml").write_text(SITE)
        made = Lab(folder, cluster)
        request.config.stash[LAB] = made
        yield made
        cluster.stop()


LAB = pytest.StashKey[Lab]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    made = item.config.stash.get(LAB, None)
    if outcome.get_result().failed and made is not None:
        jobs = made.cluster.call("squeue", "--array", check=False)
        logs = [f"---- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(made.folder.rglob("logs/*.log"))]
        daemons = made.cluster.logs()
        outcome.get_result().sections += [("queue", jobs), ("daemons", daemons), ("jobs", "\n".join(logs))]


def record(folder: Path) -> dict[str, Any]:
    """Return the parts of result.json that a repeat of the run gives again."""
    content = json.loads((folder / "result.json").read_text())
    content["config"].pop("paths")
    return {key: value for key, value in content.items() if key not in ("seconds", "machine", "code")}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the reported weights of a run."""
    return dict(torch.load(folder / "checkpoints" / "reported.ckpt", weights_only=True)["model"])


def assert_same_run(one: Path, other: Path) -> None:
    """Two folders hold the same metrics, record and weights, bit for bit."""
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    assert record(one) == record(other)
    assert weights(one).keys() == weights(other).keys()
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name
