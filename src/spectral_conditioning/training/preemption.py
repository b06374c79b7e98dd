"""Preemption has one owner, this callback: at a step's end all ranks agree to stop, save together, and rank 0 requeues the job.

Lightning's own handling is off: it saves inside the signal handler, wherever the run happens to be, and it exits on TERM
without agreement between the ranks.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from spectral_conditioning.training.resume import Checkpoints
from spectral_conditioning.training.signals import Stopped, listening, received

log = logging.getLogger(__name__)
MAX_RESTARTS = "SPECTRAL_MAX_RESTARTS"
DEFAULT_MAX_RESTARTS = 50
ATTEMPTS = 3


class Preemption(Callback):
    """Stop at the start of a training batch once any rank was asked to; comes right after `Checkpoints` in the callbacks."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._listening: Any = None
        self._group: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier: Lightning installs its handler of TERM after on_fit_start.
        self._listening = listening()
        self._listening.__enter__()
        if trainer.world_size > 1:
            # Flags travel between CPUs, so that asking never waits for a GPU.
            self._group = torch.distributed.new_group(backend="gloo")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx % trainer.accumulate_grad_batches or not self._agreed():
            return
        self.checkpoints.save(trainer)
        outcome = [requeue() if trainer.is_global_zero else ""]
        if self._group is not None:
            # A rank that ended before rank 0 has requeued would look like the end of the job.
            torch.distributed.broadcast_object_list(outcome, src=0, group=self._group)
        message = f"stopped at step {trainer.global_step}, saved; {outcome[0]}"
        if trainer.is_global_zero:
            log.warning("%s", message)
        raise Stopped(message)

    def _agreed(self) -> bool:
        flag = received() is not None
        if self._group is None:
            return flag
        anyone = torch.tensor([int(flag)])
        torch.distributed.all_reduce(anyone, op=torch.distributed.ReduceOp.MAX, group=self._group)
        return bool(anyone.item())

    def _leave(self) -> None:
        if self._listening is not None:
            self._listening.__exit__(None, None, None)
            self._listening = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._leave()


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what scontrol calls this job: the id, or array_task for an element of an array; None outside Slurm."""
    array, element = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and element:
        return f"{array}_{element}"
    return environment.get("SLURM_JOB_ID") or None


def requeue(environment: Mapping[str, str] = os.environ) -> str:
    """Put this Slurm job back into the queue where that is right; return what was done, for the log.

    A job that Slurm is ending itself (cancelled, out of time, preempted with requeue) is left to it.
    """
    job = slurm_job(environment)
    if job is None:
        return "the same command goes on from here"
    restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
    allowed = int(environment.get(MAX_RESTARTS) or DEFAULT_MAX_RESTARTS)
    if restarts >= allowed:
        return f"not requeued: job {job} was restarted {restarts} times, the most that {MAX_RESTARTS}={allowed} allows"
    shown = _scontrol("show", "job", job, "--oneliner")
    state = re.search(r"\bJobState=(\w+)", shown or "")
    if shown is not None and (state is None or state[1] != "RUNNING"):
        return f"not requeued: Slurm says that job {job} is {state[1] if state else 'unknown'}"
    if shown is not None and "BatchFlag=0" in shown:
        return f"not requeued: job {job} is interactive; the same command goes on from here"
    if shown is None or _scontrol("requeue", job) is None:
        return f"job {job} could not be requeued (see above); submit again, only what is missing runs"
    return f"job {job} requeued (restart {restarts + 1} of at most {allowed})"


def _scontrol(*words: str) -> str | None:
    """Run scontrol and return its output, None after repeated failure. The controller may be busy, so ask again."""
    for attempt in range(ATTEMPTS):
        try:
            done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("scontrol %s: %s", " ".join(words), error)
        else:
            if done.returncode == 0:
                return done.stdout
            log.warning("scontrol %s: %s", " ".join(words), done.stderr.strip())
        if attempt + 1 < ATTEMPTS:
            time.sleep(1.0)
    return None
