"""The few questions and requests that go to Slurm, each through its own command."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

from spectral_conditioning.errors import SpectralError

SECONDS = 60
DEFAULT_MAX_ARRAY = 1001


@dataclasses.dataclass(frozen=True)
class Queued:
    """A job in the queue: Slurm's state and, where it waits, why."""

    state: str
    reason: str


def available() -> bool:
    """Whether this machine can talk to Slurm."""
    return shutil.which("sbatch") is not None


def call(*words: str) -> str:
    """Run a Slurm command and return its output; raises SpectralError with what Slurm said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except FileNotFoundError as error:
        raise SpectralError(f"{words[0]} is not installed here; submit from a login node, or use --dry-run") from error
    except subprocess.TimeoutExpired as error:
        raise SpectralError(f"{' '.join(words)} gave no answer within {SECONDS} s") from error
    if done.returncode != 0:
        raise SpectralError(f"{' '.join(words)}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout


def test(script: Path) -> None:
    """Let Slurm check a script (partition, account, limits) without submitting it."""
    call("sbatch", "--test-only", str(script))


def submit(script: Path, *, dependency: str | None) -> str:
    """Submit a script and return its job id."""
    words = [f"--dependency={dependency}"] if dependency else []
    return call("sbatch", "--parsable", *words, str(script)).strip().split(";")[0]


def queue() -> dict[tuple[str, int | None], Queued]:
    """Return this user's jobs that wait or run, by (job id, array index or None)."""
    found: dict[tuple[str, int | None], Queued] = {}
    for line in call("squeue", "--me", "--noheader", "--array", "--format=%A|%F|%K|%T|%r").splitlines():
        job, array, index, state, reason = line.strip().split("|", 4)
        key = (array, int(index)) if index.isdigit() else (job, None)
        found[key] = Queued(state, reason)
    return found


def max_array() -> int:
    """Return the number of elements that an array may have here (MaxArraySize is one more than the highest index)."""
    try:
        match = re.search(r"MaxArraySize\s*=\s*(\d+)", call("scontrol", "show", "config"))
    except SpectralError:
        match = None
    return int(match[1]) - 1 if match else DEFAULT_MAX_ARRAY - 1


def ending(job: str, index: int | None) -> str | None:
    """Return how a job that left the queue ended (FAILED, CANCELLED, TIMEOUT…), None when Slurm has forgotten it."""
    name = job if index is None else f"{job}_{index}"
    for words, pattern in (
        (("sacct", "-X", "-n", "-P", "-j", name, "-o", "State"), r"^(\w+)"),
        (("scontrol", "show", "job", name, "--oneliner"), r"\bJobState=(\w+)"),
    ):
        try:
            match = re.search(pattern, call(*words).strip())
        except SpectralError:
            continue
        if match:
            return match[1]
    return None
