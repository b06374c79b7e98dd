"""`spectral status`: what became of every run of a study, from its record, the queue, its folder and its log."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from spectral_conditioning.errors import RecordError
from spectral_conditioning.launch import slurm
from spectral_conditioning.launch.study_file import FILE, read_study, split_words
from spectral_conditioning.launch.submission import STUDIES, Job, Run, StudyFolder
from spectral_conditioning.training.record import RunFolder
from spectral_conditioning.training.storage import error_file

Kind = Literal["missing", "waiting", "running", "done", "diverged", "failed", "interrupted"]
KINDS: tuple[Kind, ...] = ("running", "waiting", "done", "diverged", "failed", "interrupted", "missing")
IN_QUEUE = ("running", "waiting")
RECORDED = ("done", "diverged")
# What our own command, Python and Slurm write when something goes wrong; srun only repeats the exit status of a task.
ERROR_LINE = re.compile(
    r"^(\[?rank\d+\]?:? ?)?(error: |[\w.]*(Error|Exception|Interrupt)\b)"
    r"|^slurmstepd.*: error: \*\*\*|^srun: error: .*: tasks? [\d,-]+: (?!Exited)"
)
NOISE = re.compile(r"^(srun|slurmstepd)\b.*: ")
TAIL_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True)
class State:
    """Where a run stands, the detail that matters there, and its job while it is in the queue.

    failed: it ended with an error, or its job left the queue without a record. interrupted: it was stopped; it goes on at
    the next submission. missing: nothing of it is there.
    """

    kind: Kind
    detail: str = ""
    job: tuple[str, int | None] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral status`."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="STUDY [KEY=VALUE]",
        help="the study that was submitted (folder, file, or its folder under paths.runs), and paths.runs=… if it was given",
    )


def run(args: argparse.Namespace) -> int:
    """Print one line per run and a summary; exit status 1 when a run failed."""
    study = study_folder(args.words)
    states = all_states(study)
    width = max(len(run.label) for run in study.runs.values())
    for name, state in states.items():
        print(f"{study.runs[name].label:{width}}  {state.kind:11}  {state.detail}".rstrip())
    print(summary(states))
    return 1 if any(state.kind == "failed" for state in states.values()) else 0


def failures(study: StudyFolder, states: dict[str, State]) -> list[str]:
    """Return a line for each run that failed: its name and why."""
    return [f"{study.runs[name].label}: {state.detail}" for name, state in states.items() if state.kind == "failed"]


def study_folder(words: list[str]) -> StudyFolder:
    """Find the folder of a submitted study from what the user calls it."""
    source, overrides = split_words(words)
    study = None
    if source is not None and (source.is_file() or (source / FILE).is_file()):
        study = read_study(source, [])
        # As at the submission, the command line wins over the study.
        overrides = [*study.stages[0].overrides, *overrides]
    given = [item.split("=", 1)[1] for item in overrides if item.startswith("paths.runs=")]
    studies = Path(given[-1] if given else os.environ.get("SPECTRAL_RUNS", "runs")) / STUDIES
    candidates = []
    if source is not None:
        candidates = [source, studies / source.name] + ([studies / study.name] if study is not None else [])
    for folder in candidates:
        if (folder / "study.json").is_file():
            return StudyFolder(folder)
    known = sorted(str(path.parent) for path in studies.glob("*/study.json"))
    raise RecordError(
        f"no submitted study {str(source) if source else '(none given)'!r} under {studies}; "
        f"known: {', '.join(known) or 'none'} (another folder: paths.runs=…)"
    )


def summary(states: dict[str, State]) -> str:
    """Count the runs in each state: `2 running, 3 done`."""
    counted = collections.Counter(state.kind for state in states.values())
    return f"{len(states)} run{'s' if len(states) != 1 else ''}: " + ", ".join(
        f"{counted[kind]} {kind}" for kind in KINDS if counted[kind]
    )


def all_states(study: StudyFolder, *, only: Collection[str] | None = None) -> dict[str, State]:
    """Return the state of every run, or of those named; the queue is asked once, and only where there is a Slurm."""
    queue = slurm.queue() if study.jobs and slurm.available() else {}
    return {name: state_of(study, name, run, queue) for name, run in study.runs.items() if only is None or name in only}


def state_of(study: StudyFolder, name: str, run: Run, queue: dict[tuple[str, int | None], slurm.Queued]) -> State:
    """Return where one run stands."""
    record = RunFolder(run.folder).read_result()
    if record is not None and record["status"] == "diverged":
        return State("diverged", f"at step {record['diverged_at']}")
    if record is not None:
        primary = record["primary"]
        return State("done", f"{primary['name']} {primary['value']:.4f}" if primary["value"] is not None else "")
    last: tuple[Job, int | None] | None = None
    for job, index in study.jobs_of(name):
        last = last or (job, index)
        queued = queue.get((job.id, index))
        if queued is not None and queued.state == "PENDING":
            return State("waiting", f"job {_name(job, index)}: {queued.reason}{_saved(run)}", (job.id, index))
        if queued is not None:
            return State("running", f"job {_name(job, index)}: {_progress(run)}", (job.id, index))
    if RunFolder(run.folder).in_use():
        return State("running", f"{'outside the queue: ' if study.jobs else ''}{_progress(run)}")
    if last is None:
        return _without_job(study, name, run)
    job, index = last
    ended = slurm.ending(job.id, index) if slurm.available() else None
    how = f"job {_name(job, index)} {(ended or 'left the queue').lower()}"
    line = last_error(job.log(index))
    return State("failed", f"{how}: {line}" if line else f"{how} without a log")


def _without_job(study: StudyFolder, name: str, run: Run) -> State:
    """Return where a run stands that no job was to train and that has no record."""
    try:
        return State("failed", error_file(study.local_config(name)).read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        saved = _saved(run).strip(" ()")
        return State("interrupted", saved) if saved else State("missing", "not started")


def _name(job: Job, index: int | None) -> str:
    return job.id if index is None else f"{job.id}_{index}"


def _heartbeat(run: Run) -> dict[str, Any] | None:
    try:
        return dict(json.loads(RunFolder(run.folder).heartbeat.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _saved(run: Run) -> str:
    beat = _heartbeat(run)
    return f" (had got to step {beat['step']}/{beat['steps']})" if beat else ""


def _progress(run: Run) -> str:
    beat = _heartbeat(run)
    if beat is None:
        return "starting"
    loss = "" if beat["loss"] is None else f", loss {beat['loss']:.4f}"
    done, seconds = beat["step"] - beat["first_step"], beat["written"] - beat["started"]
    left = (beat["steps"] - beat["step"]) * seconds / done - (time.time() - beat["written"]) if done > 0 else None
    eta = "" if left is None else f", {_duration(max(0.0, left))} left"
    return f"step {beat['step']}/{beat['steps']}{loss}{eta}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def last_error(log: Path) -> str | None:
    """Return the last line of a log that reads like an error, else its last line; None without a log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    for line in reversed(lines):
        if ERROR_LINE.match(line):
            return line
    quiet = [line for line in lines if not NOISE.match(line)]
    return (quiet or lines)[-1] if lines else None
