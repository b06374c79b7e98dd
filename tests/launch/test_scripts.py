"""Batch scripts: the policy is in every one, the site in none of the templates, and the shell can read them."""

import re
import subprocess
from pathlib import Path

import pytest

from spectral_conditioning.launch.scripts import Shape, array_script, index_ranges, train_script
from spectral_conditioning.launch.site import Site, templates_directory

SITE = Site(
    partition="blue", account="mine", qos="long", constraint="a100", reservation="r1", gpu_type="a100", cpus_per_task=3,
    memory="77G", time="3:21:00", options=["--exclude=n7"], warn_seconds=123, max_restarts=9, modules=["cuda/12"],
    environment={"HF_HOME": "/my folder"}, setup=["source env/bin/activate"], python="python3.11",
    container="apptainer exec --nv my.sif", master_addr="10.0.0.1", master_port=4321, nccl={"NCCL_SOCKET_IFNAME": "ib0"},
)  # fmt: skip
TEMPLATES = sorted([*templates_directory().glob("*.sbatch"), templates_directory() / "environment.sh"])
CODE = ["--sources", "abc"]
WIDE = Shape(2, 4, True)


def scripts(site: Site = SITE, shape: Shape = WIDE) -> list[str]:
    logs = Path("/runs/logs")
    return [
        array_script(site, shape, name="s", logs=logs, code=CODE, listed=Path("/runs/a list"), indices="0-3%2"),
        train_script(site, shape, name="s", logs=logs, code=CODE, configs=[Path("/runs/a b.yaml")]),
    ]


@pytest.mark.parametrize("number", [0, 1], ids=["array", "train"])
def test_every_script_carries_the_policy_and_the_site(number: int):
    text = scripts()[number]
    for line in (
        "--requeue", "--signal=USR2@123", "--open-mode=append", "--kill-on-invalid-dep=yes", "--partition=blue",
        "--account=mine", "--qos=long", "--constraint=a100", "--reservation=r1", "--gres=gpu:a100:4", "--cpus-per-task=3",
        "--mem=77G", "--time=3:21:00", "--exclude=n7", "--nodes=2", "--ntasks-per-node=4",
    ):  # fmt: skip
        assert f"\n#SBATCH {line}\n" in text, line
    for line in (
        "module load cuda/12", "export HF_HOME='/my folder'", "export NCCL_SOCKET_IFNAME=ib0", "source env/bin/activate",
        "export MASTER_ADDR=10.0.0.1", "export MASTER_PORT=4321", "export SPECTRAL_MAX_RESTARTS=9",
    ):  # fmt: skip
        assert f"\n{line}\n" in text, line
    # srun starts every task, and nothing else starts Python.
    commands = text.replace("\\\n", " ").splitlines()
    (start,) = [line for line in commands if "python" in line]
    assert re.match(r"srun --kill-on-bad-exit=1 .* run +apptainer exec --nv my.sif python3.11 -m spectral_cond", start)
    assert "{{" not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_only_the_array_has_indices():
    array, single = scripts()
    assert "#SBATCH --array=0-3%2\n" in array
    assert "'/runs/a list' --index \"$SLURM_ARRAY_TASK_ID\"" in array
    assert "--array" not in single
    assert "'/runs/a b.yaml'" in single


@pytest.mark.parametrize(
    ("gpus", "line"), [("gres", "--gres=gpu:4"), ("gpus-per-node", "--gpus-per-node=4"), ("none", None)]
)
def test_gpus_are_asked_for_as_the_site_says(gpus: str, line: str | None):
    found = re.findall(r"#SBATCH (--g.*)", scripts(Site(gpus=gpus))[0])
    assert found == ([line] if line else [])
    assert "--g" not in "".join(re.findall(r"#SBATCH .*", scripts(Site(gpus=gpus), Shape(1, 1, False))[0]))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_holds_a_value_of_a_site(path: Path):
    text = path.read_text()
    for option in ("partition", "account", "qos", "constraint", "gres", "mem", "time", "nodes", "ntasks", "output"):
        assert f"#SBATCH --{option}" not in text
    assert not re.search(r"(module load|/home/|/scratch|NCCL_|activate)", text)


def test_indices_are_written_as_ranges_and_read_back():
    for indices in ([0], [0, 1, 2], [0, 2, 3, 4, 9], list(range(1000))):
        read = []
        for part in index_ranges(indices).split(","):
            low, _, high = part.partition("-")
            read += range(int(low), int(high or low) + 1)
        assert read == indices
    assert index_ranges([0, 1, 2, 5]) == "0-2,5"


def test_the_chain_command_submits_the_stages_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spectral").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "bin" / "spectral").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("STUDY", "other/study.yaml")
    script = templates_directory() / "pretrain_then_glue.sh"
    done = subprocess.run([script, "site=x", "--dry-run"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["submit", "other/study.yaml", "site=x", "--dry-run"]
