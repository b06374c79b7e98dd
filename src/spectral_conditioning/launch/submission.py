"""The folder of a submitted study, <runs>/.studies/<name>: configurations, lists, scripts, logs, and who trains what.

study.json is written after every job that Slurm accepted, so an interrupted submission forgets none.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import RecordError
from spectral_conditioning.launch.study import Element, config_name, labels
from spectral_conditioning.training.identity import run_folder
from spectral_conditioning.training.record import write_json
from spectral_conditioning.training.storage import save_config

STUDIES = ".studies"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study: its name for people, its folder and the stage it belongs to."""

    label: str
    folder: Path
    stage: str


@dataclasses.dataclass(frozen=True)
class Job:
    """A job that Slurm accepted. `elements` maps array indices (None for a single job) to names of configurations."""

    id: str
    script: str
    logs: str
    elements: dict[int | None, list[str]]

    def log(self, index: int | None) -> Path:
        """Return the log of one element."""
        return Path(self.logs) / (f"{self.id}.log" if index is None else f"{self.id}_{index}.log")


class StudyFolder:
    """Reads and writes what is known about a submitted study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.configs = path / "configs"
        self.file = path / "study.json"
        self.runs: dict[str, Run] = {}
        self.jobs: list[Job] = []
        if self.file.is_file():
            self._read()

    @classmethod
    def of(cls, name: str, elements: list[Element]) -> StudyFolder:
        """Return the folder of the study `name`, beside its runs, with all runs of `elements` known to it."""
        folder = cls(Path(elements[0].configs[0].paths.runs) / STUDIES / name)
        placed = [(config, element.stage.name) for element in elements for config in element.configs]
        for (config, stage), label in zip(placed, labels([config for config, _ in placed]), strict=True):
            folder.runs[config_name(config)] = Run(label, run_folder(config), stage)
        return folder

    def _read(self) -> None:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
            self.runs = {
                name: Run(run["label"], Path(run["folder"]), run["stage"]) for name, run in content["runs"].items()
            }
            self.jobs = [
                Job(
                    job["id"],
                    job["script"],
                    job["logs"],
                    {None if index == "" else int(index): names for index, names in job["elements"].items()},
                )
                for job in content["jobs"]
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"cannot read {self.file}: {error}; move it away to submit the study anew") from error

    def write(self) -> None:
        """Write study.json, whole or not at all."""
        jobs = [
            {
                "id": job.id,
                "script": job.script,
                "logs": job.logs,
                "elements": {"" if index is None else index: names for index, names in job.elements.items()},
            }
            for job in self.jobs
        ]
        runs: dict[str, Any] = {
            name: {"label": run.label, "folder": str(run.folder), "stage": run.stage} for name, run in self.runs.items()
        }
        write_json(self.file, {"study": self.path.name, "runs": runs, "jobs": jobs})

    def jobs_of(self, name: str) -> Iterator[tuple[Job, int | None]]:
        """Yield the jobs and indices that were to train a run, newest first."""
        for job in reversed(self.jobs):
            for index, names in job.elements.items():
                if name in names:
                    yield job, index

    def local_config(self, name: str) -> Path:
        """Return where the configuration of a run goes that is trained without Slurm."""
        return self.path / "local" / self.runs[name].stage / name

    def save_configs(self, elements: list[Element]) -> None:
        """Write the resolved configuration of every run."""
        self.configs.mkdir(parents=True, exist_ok=True)
        for element in elements:
            for config in element.configs:
                save_config(config, self.configs / config_name(config))

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Keep other submissions of the same study out; raises RecordError when there is one or nothing can be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "a")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; choose another with paths.runs=…"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RecordError(f"{self.path} is being submitted by another process; wait for it") from error
            if self.file.is_file():
                known, self.jobs = dict(self.runs), []
                self._read()
                self.runs |= known
            yield
