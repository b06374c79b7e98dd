"""A real Slurm on this machine for the tests: one controller and three node daemons on loopback, in a folder of their own.

No systemd, no cgroups, no munge, nothing outside the folder. Every process is a child of the tests and ended by its pid.
Nodes n1 and n2 form the partition `main`; n3 is shared by `low` and by `urgent`, which preempts it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("n1", "n2", "n3")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
# A requeued job waits as long as a credential lives; 120 s by default.
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldDebug=info
SlurmdDebug=info
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,sched_interval=1
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
MinJobAge=3600
ReturnToService=2
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10 State=UP PreemptMode=OFF
PartitionName=low Nodes=n3 MaxTime=INFINITE DefaultTime=10 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes=n3 MaxTime=INFINITE DefaultTime=10 State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Return why no Slurm can be started here, None when it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    packages = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins"
    return (
        f"no Slurm on this machine, {', '.join(absent)} missing (Debian: apt-get install {packages})"
        if absent
        else None
    )


def wait_for(what: str, condition: Callable[[], object], *, seconds: float, pause: float = 0.1) -> None:
    """Wait until `condition()` is true; TimeoutError that names `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(pause)


class Cluster:
    """The running cluster; `environment` makes Slurm's commands talk to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": SEARCH}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Write the configuration and start the daemons; returns when all nodes are idle."""
        for name in ("state", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Boards=1 SocketsPerBoard=1 "
            f"CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        text = CONFIG.format(host=host, port=ports[0], user=getpass.getuser(), folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        self._daemon("slurmctld", "-D", "-i")
        wait_for("slurmctld", lambda: self.call("scontrol", "ping", check=False).find("UP") >= 0, seconds=30)
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        idle = ("sinfo", "--noheader", "--Node", "--partition=main,low", "--format=%t")
        wait_for("idle nodes", lambda: self.call(*idle).split() == ["idle"] * len(NODES), seconds=30)

    def _daemon(self, program: str, *words: str) -> None:
        path = shutil.which(program, path=SEARCH)
        assert path is not None
        log = open(self.folder / f"{program}{words[-1]}.log", "wb")  # noqa: SIM115  (the daemon's, for its lifetime)
        self._daemons.append(
            subprocess.Popen([path, *words], env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def call(self, *words: str, check: bool = True) -> str:
        """Run a command against the cluster and return its output."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def field(self, job: str, name: str) -> str:
        """Return one field of `scontrol show job`."""
        shown = self.call("scontrol", "show", "job", job, "--oneliner")
        return dict(item.partition("=")[::2] for item in shown.split() if "=" in item)[name]

    def stop(self) -> None:
        """Cancel what is left and end the daemons that were started."""
        for words in (["--state=PENDING"], ["--full", "--signal=KILL"], []):
            self.call("scancel", "--user", getpass.getuser(), *words, check=False)
        active = ("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--format=%A")
        with_patience = time.monotonic() + 15
        while self.call(*active, check=False).strip() and time.monotonic() < with_patience:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Return the processes that the daemons left behind, known by this cluster's configuration in their environment."""
        mark = f"SLURM_CONF={self.folder / 'slurm.conf'}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes() and int(path.parent.name) != os.getpid():
                    found.append(int(path.parent.name))
        return found

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "\n".join(
            f"---- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in sorted(self.folder.glob("*.log"))
        )


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for item in held:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in held]
    finally:
        for item in held:
            item.close()
