"""From a site, a shape and the templates in slurm/ to the text of a batch script."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spectral_conditioning.launch.site import Site, templates_directory
from spectral_conditioning.training.schema import RunConfig


@dataclasses.dataclass(frozen=True)
class Shape:
    """What runs that share an array must have in common: nodes, tasks on each, and whether a task holds a GPU."""

    nodes: int
    tasks_per_node: int
    gpu: bool

    @classmethod
    def of(cls, config: RunConfig) -> Shape:
        """Return what a run's trainer section asks for: one task per device."""
        machine = config.trainer
        return cls(machine.nodes, machine.devices, machine.accelerator != "cpu")


def render(template: str, values: Mapping[str, str]) -> str:
    """Fill {{name}} in a file of slurm/; a name without a value is a KeyError."""
    text = (templates_directory() / template).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)


def options(site: Site, shape: Shape, *, name: str, log: Path) -> str:
    """Return the #SBATCH lines that depend on the site and on the runs."""
    asked: list[tuple[str, object]] = [
        ("job-name", name),
        ("partition", site.partition),
        ("account", site.account),
        ("qos", site.qos),
        ("constraint", site.constraint),
        ("reservation", site.reservation),
        ("nodes", shape.nodes),
        ("ntasks-per-node", shape.tasks_per_node),
        ("cpus-per-task", site.cpus_per_task),
    ]
    kind = f"{site.gpu_type}:" if site.gpu_type else ""
    if shape.gpu and site.gpus == "gres":
        asked.append(("gres", f"gpu:{kind}{shape.tasks_per_node}"))
    elif shape.gpu and site.gpus == "gpus-per-node":
        asked.append(("gpus-per-node", f"{kind}{shape.tasks_per_node}"))
    asked += [("mem", site.memory), ("time", site.time), ("chdir", Path.cwd()), ("output", log)]
    lines = [f"#SBATCH --{key}={value}" for key, value in asked if value is not None]
    return "\n".join([*lines, *(f"#SBATCH {option}" for option in site.options)])


def environment(site: Site) -> str:
    """Return the lines that bring a node's shell to the site's environment."""
    lines = [f"module load {shlex.quote(module)}" for module in site.modules]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**site.environment, **site.nccl}.items()]
    return render(
        "environment.sh",
        {
            "site": "\n".join([*lines, *site.setup]),
            "master_addr": site.master_addr or '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            "master_port": str(site.master_port) if site.master_port else "$((20000 + SLURM_JOB_ID % 20000))",
            "max_restarts": str(site.max_restarts),
        },
    )


def _common(site: Site, shape: Shape, *, name: str, log: Path, code: Sequence[str]) -> dict[str, str]:
    python = site.python or sys.executable
    return {
        "options": options(site, shape, name=name, log=log),
        "environment": environment(site),
        "warn_seconds": str(site.warn_seconds),
        "python": f"{site.container} {python}" if site.container else shlex.quote(python),
        "code": shlex.join(code),
    }


def array_script(
    site: Site, shape: Shape, *, name: str, logs: Path, code: Sequence[str], listed: Path, indices: str
) -> str:
    """Return the script of an array over a list file; `indices` as sbatch --array takes them, e.g. 0-49%8."""
    values = _common(site, shape, name=name, log=logs / "%A_%a.log", code=code)
    return render("array.sbatch", {**values, "array": indices, "list": shlex.quote(str(listed))})


def train_script(
    site: Site, shape: Shape, *, name: str, logs: Path, code: Sequence[str], configs: Sequence[Path]
) -> str:
    """Return the script of a single job that trains `configs` one after the other."""
    values = _common(site, shape, name=name, log=logs / "%j.log", code=code)
    return render("train.sbatch", {**values, "configs": shlex.join(map(str, configs))})


def index_ranges(indices: Sequence[int]) -> str:
    """Write sorted indices as sbatch takes them: [0, 1, 2, 5] becomes 0-2,5."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
