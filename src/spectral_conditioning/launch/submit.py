"""`spectral submit`: a study becomes arrays of jobs in the queue, without the runs that are finished or already there.

With --local the runs are trained on this machine instead, and the call returns when they have ended.

Everything is composed, checked and shown to Slurm (sbatch --test-only) before the first job is submitted.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import ConfigError, SpectralError
from spectral_conditioning.files import write_atomically
from spectral_conditioning.launch import slurm
from spectral_conditioning.launch.local import train_locally
from spectral_conditioning.launch.plan import Part, plan
from spectral_conditioning.launch.scripts import array_script, train_script
from spectral_conditioning.launch.site import Site, read_site, value_from_text
from spectral_conditioning.launch.status import State, all_states, failures, summary
from spectral_conditioning.launch.study import Element, config_name, expand
from spectral_conditioning.launch.study_file import read_study, split_words
from spectral_conditioning.launch.submission import Job, StudyFolder
from spectral_conditioning.training.record import source_digest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral submit`."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="STUDY [KEY=VALUE…] site=NAME",
        help="a folder with study.yaml, or none and a sweep as in spectral train -m; overrides for every run; the site, "
        "and site.KEY=VALUE for single values of it",
    )
    parser.add_argument(
        "--local", type=int, metavar="N", help="train here, in N processes of one thread, without SLURM or a site"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the scripts; write and submit nothing")
    parser.add_argument("--max-parallel", type=int, metavar="N", help="train at most N elements at a time")
    parser.add_argument(
        "--changed-code",
        choices=("refuse", "warn"),
        default="refuse",
        help="what a job does when the code was edited after the submission",
    )


@dataclasses.dataclass(frozen=True)
class Writer:
    """Turns parts into scripts and lists in the study's folder."""

    folder: StudyFolder
    sites: Mapping[str, Site]
    code: Sequence[str]
    max_parallel: int | None

    def script_path(self, part: Part) -> Path:
        """Return where the script of a part goes."""
        return self.folder.path / f"{part.name}.sbatch"

    def list_path(self, part: Part) -> Path:
        """Return where the list of an array goes."""
        return self.folder.path / f"{part.name}.list"

    def logs(self, part: Part) -> Path:
        """Return the folder of a part's logs."""
        chosen = self.sites[part.stage.name].log_folder
        return Path(chosen).absolute() if chosen else self.folder.path / "logs"

    def configs(self, names: Sequence[str]) -> list[Path]:
        """Return the saved configurations of runs."""
        return [self.folder.configs / name for name in names]

    def script(self, part: Part) -> str:
        """Return the text of a part's script."""
        site, name = self.sites[part.stage.name], f"{self.folder.path.name}-{part.stage.name}"
        if part.is_array:
            return array_script(
                site, part.shape, name=name, logs=self.logs(part), code=self.code, listed=self.list_path(part),
                indices=part.indices(self.max_parallel),
            )  # fmt: skip
        return train_script(
            site,
            part.shape,
            name=name,
            logs=self.logs(part),
            code=self.code,
            configs=self.configs(names_of(part)[None]),
        )

    def list(self, part: Part) -> str:
        """Return the list of an array: on each line an index and its configurations."""
        names = names_of(part)
        return "".join(f"{index} {' '.join(map(str, self.configs(names[index])))}\n" for index in names)


def run(args: argparse.Namespace) -> int:
    """Submit what is missing of a study and return at once."""
    if args.max_parallel is not None and args.max_parallel < 1:
        raise ConfigError(f"--max-parallel is {args.max_parallel}; it must be at least 1")
    if args.local is not None:
        return run_locally(args)
    source, words = split_words(args.words)
    overrides, site_name, site_values = split_site(words)
    study = read_study(source, overrides)
    if not site_name:
        raise ConfigError(
            "no site given; add site=NAME (slurm/sites/example.yaml explains what a site is), or train here with --local N"
        )
    sites = {
        stage.name: read_site(
            site_name, {f"resources of {stage.where}": stage.resources, "from the command line": site_values}
        )
        for stage in study.stages
    }
    elements = expand(study, overrides)
    if not elements:
        raise ConfigError(f"study {study.name!r} has no runs")
    folder, asked = StudyFolder.of(study.name, elements), asked_for(elements)
    code = ["--sources", source_digest(), f"--changed-code={args.changed_code}"]
    writer = Writer(folder, sites, code, args.max_parallel)
    limit = slurm.max_array() if slurm.available() else slurm.DEFAULT_MAX_ARRAY - 1
    if args.dry_run:
        states = all_states(folder, only=asked)
        parts = plan(elements, states, limit=limit, first_number=len(folder.jobs) + 1)
        print("\n".join(describe(writer, parts, states)))
        return 0
    if not slurm.available():
        raise SpectralError(
            "sbatch is not installed here; submit from a login node, or look at the scripts with --dry-run"
        )
    with folder.owned():
        parts = plan(elements, all_states(folder, only=asked), limit=limit, first_number=len(folder.jobs) + 1)
        if not parts:
            print("nothing to submit: every run is finished or in the queue")
        folder.save_configs([element for part in parts for element in part.elements.values()])
        for part, job in submitted(writer, parts):
            print(
                f"job {job}: {len(part.elements)} {'elements' if part.is_array else 'run'} ({writer.script_path(part)})"
            )
        print(summary(all_states(folder, only=asked)))
    print(f"follow them with: spectral status {_relative(folder.path)}")
    return 0


def run_locally(args: argparse.Namespace) -> int:
    """Train a study on this machine, one stage after the other; finished runs are left alone, interrupted ones go on."""
    if args.local < 1:
        raise ConfigError(f"--local is {args.local}; it must be at least 1")
    source, overrides = split_words(args.words)
    if sites := [word for word in overrides if word.partition("=")[0].split(".")[0] == "site"]:
        raise ConfigError(f"--local trains on this machine, without a site; leave out {sites[0]!r} or --local")
    study = read_study(source, overrides)
    elements = expand(study, overrides)
    if not elements:
        raise ConfigError(f"study {study.name!r} has no runs")
    folder, asked, failed = StudyFolder.of(study.name, elements), asked_for(elements), 0
    if args.dry_run:
        states = all_states(folder, only=asked)
        print("\n".join(folder.runs[name].label for name in states))
        print(f"# study {folder.path.name} in {_relative(folder.path)}: {summary(states)}")
        return 0
    with folder.owned():
        folder.write()  # so that `spectral status` knows the runs
        for stage in study.stages:
            configs = [config for element in elements if element.stage is stage for config in element.configs]
            failed += train_locally(configs, folder=folder.path / "local" / stage.name, workers=args.local)
            if failed:
                break  # A later stage starts from the runs of this one.
    states = all_states(folder, only=asked)
    print(summary(states))
    for line in failures(folder, states):
        print(f"failed: {line}")
    print(f"look again with: spectral status {_relative(folder.path)}")
    return 1 if failed else 0


def asked_for(elements: Sequence[Element]) -> set[str]:
    """Return the names of the runs that this call is about; the study's folder may know more from earlier calls."""
    return {config_name(config) for element in elements for config in element.configs}


def split_site(words: Sequence[str]) -> tuple[list[str], str, dict[str, Any]]:
    """Split a command's words into overrides of runs, the name of the site ("" without one), and single values of it."""
    overrides, name, values = [], "", {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is no override; the study comes first, then key=value")
        if key == "site":
            name = value
        elif key.startswith("site."):
            values[key.removeprefix("site.")] = value_from_text(key.removeprefix("site."), value)
        else:
            overrides.append(word)
    return overrides, name, values


def names_of(part: Part) -> dict[int | None, list[str]]:
    """Return the names of the configurations of each element."""
    return {index: [config_name(config) for config in element.configs] for index, element in part.elements.items()}


def dependency(part: Part, before: Part | None, ids: Mapping[int, str], max_parallel: int | None) -> str | None:
    """Return what sbatch --dependency takes: the earlier stage's element, and with a limit the script before this one."""
    conditions = []
    if part.waits_for is not None:
        job = part.waits_for if isinstance(part.waits_for, str) else ids[id(part.waits_for)]
        conditions.append(f"{'aftercorr' if part.is_array else 'afterok'}:{job}")
    if max_parallel is not None and before is not None:
        conditions.append(f"afterany:{ids[id(before)]}")
    return ",".join(conditions) or None


def submitted(writer: Writer, parts: list[Part]) -> Iterator[tuple[Part, str]]:
    """Write every script, let Slurm check all of them, then submit one after the other and yield the job ids."""
    for part in parts:
        writer.logs(part).mkdir(parents=True, exist_ok=True)
        write_atomically(writer.script_path(part), writer.script(part).encode())
        if part.is_array:
            write_atomically(writer.list_path(part), writer.list(part).encode())
    for part in parts:
        slurm.test(writer.script_path(part))
    ids: dict[int, str] = {}
    before: Part | None = None
    for part in parts:
        job = slurm.submit(writer.script_path(part), dependency=dependency(part, before, ids, writer.max_parallel))
        ids[id(part)], before = job, part
        writer.folder.jobs.append(Job(job, part.name, str(writer.logs(part)), names_of(part)))
        writer.folder.write()
        yield part, job


def describe(writer: Writer, parts: list[Part], states: Mapping[str, State]) -> Iterator[str]:
    """Yield what a submission would write and do."""
    yield f"# study {writer.folder.path.name} in {_relative(writer.folder.path)}: {summary(dict(states))}"
    ids: dict[int, str] = {}
    before: Part | None = None
    for part in parts:
        yield f"\n# ==== {_relative(writer.script_path(part))}"
        yield writer.script(part).rstrip()
        if part.is_array:
            yield f"\n# ==== {_relative(writer.list_path(part))}"
            yield writer.list(part).rstrip()
        for index, element in part.elements.items():
            for config in element.configs:
                yield f"# {'run' if index is None else f'element {index}'}: {writer.folder.runs[config_name(config)].label}"
        wait = dependency(part, before, ids, writer.max_parallel)
        ids[id(part)], before = f"<job of {part.name}>", part
        yield f"# submitted by: sbatch --parsable {f'--dependency={wait} ' if wait else ''}{_relative(writer.script_path(part))}"


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
