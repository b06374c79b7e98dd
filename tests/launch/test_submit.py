"""`spectral submit` and `spectral status` against commands that only take notes."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spectral_conditioning.cli import dispatch
from spectral_conditioning.errors import ConfigError, RecordError, SpectralError
from spectral_conditioning.launch import element, submit
from spectral_conditioning.launch.status import last_error
from spectral_conditioning.launch.study import config_name
from spectral_conditioning.training.compose import config_directory
from spectral_conditioning.training.identity import run_folder
from spectral_conditioning.training.record import RunFolder, source_digest
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.storage import error_file, read_config

from .conftest import FakeSlurm

SWEEP = ["experiment=imagenet/small", "seed=0,1,2", "site=mine.yaml"]
Spectral = Callable[..., str]


@pytest.fixture
def spectral(capsys: pytest.CaptureFixture[str]) -> Spectral:
    Path("mine.yaml").write_text("gpus: none\n")

    def call(*words: str) -> str:
        dispatch(words)
        return capsys.readouterr().out

    return call


def study() -> Path:
    (path,) = Path("runs/.studies").glob("*")
    return path


def folders() -> list[Path]:
    return [Path(run["folder"]) for run in json.loads((study() / "study.json").read_text())["runs"].values()]


def finish(folder: Path, status: str = "finished") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    primary = {"name": "val/accuracy", "value": 0.875}
    (folder / "result.json").write_text(json.dumps({"status": status, "primary": primary, "diverged_at": 9}))


def test_a_study_becomes_one_array_with_everything_it_needs(spectral: Spectral, slurm: FakeSlurm):
    shown = spectral("submit", *SWEEP, "--max-parallel", "2")
    assert slurm.lines("submitted") == [f"--parsable {(study() / '001-runs.sbatch').absolute()}"]
    assert "job 101: 3 elements" in shown
    assert f"spectral status {study()}" in shown
    script, listed = (study() / "001-runs.sbatch").read_text(), (study() / "001-runs.list").read_text()
    assert "#SBATCH --array=0-2%2\n" in script
    assert f"--sources {source_digest()} --changed-code=refuse" in script
    configs = [read_config(Path(line.split()[1])) for line in listed.splitlines()]
    assert [config.seed for config in configs] == [0, 1, 2]
    assert all(Path(config.paths.runs).is_absolute() for config in configs)


def test_submitting_again_submits_what_is_missing(spectral: Spectral, slurm: FakeSlurm):
    spectral("submit", *SWEEP)
    slurm.set("queue", "101|101|0|RUNNING|None\n102|101|1|PENDING|Resources\n103|101|2|PENDING|Priority\n")
    assert "nothing to submit" in spectral("submit", *SWEEP)
    finish(folders()[0])
    finish(folders()[1], "diverged")
    slurm.set("queue", "")
    assert "job 102: 1 run" in spectral("submit", *SWEEP)
    assert [line.split("/")[-1] for line in slurm.lines("submitted")] == ["001-runs.sbatch", "002-runs.sbatch"]
    assert "seed2" in (study() / "002-runs.sbatch").read_text()


def test_status_says_where_every_run_stands(spectral: Spectral, slurm: FakeSlurm):
    spectral("submit", "seed=0,1,2,3,4", *SWEEP[::2])
    done, diverged, running, *_ = folders()
    finish(done)
    finish(diverged, "diverged")
    running.mkdir(parents=True)
    now = time.time()
    beat = {"step": 60, "steps": 100, "loss": 1.25, "first_step": 20, "started": now - 80, "written": now}
    (running / "progress.json").write_text(json.dumps(beat))
    slurm.set("queue", "103|101|2|RUNNING|None\n104|101|3|PENDING|Resources\n")
    slurm.set("state", "FAILED")
    (study() / "logs" / "101_4.log").write_text(
        "a line\nerror: the disk is full\nsrun: error: n1: task 0: Exited with exit code 1\n"
    )
    lines = spectral("status", str(study())).splitlines()
    assert [line.split("  ")[1].strip() for line in lines[:5]] == ["done", "diverged", "running", "waiting", "failed"]
    assert lines[0].endswith("val/accuracy 0.8750")
    assert lines[1].endswith("at step 9")
    # 40 steps in 80 s, 40 to go.
    assert "step 60/100, loss 1.2500, 80 s left" in lines[2] or "79 s left" in lines[2]
    assert lines[3].endswith("job 101_3: Resources")
    assert lines[4].endswith("job 101_4 failed: error: the disk is full")
    assert lines[5] == "5 runs: 1 running, 1 waiting, 1 done, 1 diverged, 1 failed"


def test_status_of_an_unknown_study_names_the_known_ones(spectral: Spectral, slurm: FakeSlurm):
    spectral("submit", *SWEEP)
    with pytest.raises(RecordError, match=rf"no submitted study 'other' .*{study().name}"):
        spectral("status", "other")
    assert "3 runs" in spectral("status", study().name)


@pytest.mark.parametrize("content", ["[]", '{"runs": 5, "jobs": []}', '{"runs": {}, "jobs": 5}', "{"])
def test_a_broken_study_file_is_named(content: str, spectral: Spectral, slurm: FakeSlurm):
    spectral("submit", *SWEEP)
    (study() / "study.json").write_text(content)
    with pytest.raises(RecordError, match=r"cannot read .*study\.json.*move it away to submit the study anew"):
        spectral("status", str(study()))


def test_a_dry_run_prints_the_scripts_and_leaves_nothing(spectral: Spectral, slurm: FakeSlurm):
    printed = spectral("submit", *SWEEP, "--dry-run")
    assert not Path("runs").exists()
    assert slurm.lines("submitted") == []
    spectral("submit", *SWEEP)
    for name in ("001-runs.sbatch", "001-runs.list"):
        assert (study() / name).read_text().rstrip() in printed


def test_the_papers_imagenet_table_is_one_array_of_fifty(spectral: Spectral, slurm: FakeSlurm):
    study = config_directory().parent / "experiments" / "imagenet"
    printed = spectral("submit", str(study), "site=example", "--dry-run")
    assert printed.count("#SBATCH --array=0-49\n") == 1
    labels = [line.split(": ", 1)[1] for line in printed.splitlines() if line.startswith("# element")]
    networks = ("vit_b", "deit_b", "swin_b", "xcit_m", "davit_b")
    arms = ("baseline", "identity λ=10 (full, qkv)")
    assert labels == [f"imagenet/{n} · {a} · seed {s}" for n in networks for a in arms for s in range(5)]
    assert "#SBATCH --ntasks-per-node=8\n" in printed


def test_slurm_refuses_before_anything_is_submitted(spectral: Spectral, slurm: FakeSlurm):
    slurm.set("refuse", "sbatch: error: invalid partition specified: blue")
    with pytest.raises(SpectralError, match="invalid partition specified: blue"):
        spectral("submit", *SWEEP)
    assert slurm.lines("submitted") == []


def test_without_slurm_only_a_dry_run_works(spectral: Spectral, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SpectralError, match="sbatch is not installed"):
        spectral("submit", *SWEEP)
    assert not Path("runs").exists()
    assert "--array=0-2" in spectral("submit", *SWEEP, "--dry-run")


def test_a_missing_site_and_a_stray_word_are_named(spectral: Spectral):
    with pytest.raises(ConfigError, match="site=NAME"):
        spectral("submit", *SWEEP[:2])
    with pytest.raises(ConfigError, match="'again' is no override"):
        spectral("submit", *SWEEP, "again")


def test_stages_are_chained_and_a_limit_holds_over_all_arrays(spectral: Spectral, slurm: FakeSlurm):
    Path("chain").mkdir()
    Path("chain/study.yaml").write_text(
        "stages:\n  a: {experiments: [imagenet/small], seeds: [0, 1]}\n"
        "  b: {after: a, overrides: ['logger.tags=[{a}]', optim.lr=1]}\n"
    )
    spectral("submit", "chain", "site=mine.yaml", "--max-parallel=2")
    words = [line.split()[1:-1] for line in slurm.lines("submitted")]
    assert words == [[], ["--dependency=aftercorr:101,afterany:101"]]


def test_a_job_refuses_code_that_changed_since_the_submission(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch):  # fmt: skip
    trained: list[list[str]] = []
    monkeypatch.setattr("spectral_conditioning.training.worker.main", lambda configs: trained.append(configs) or 0)
    monkeypatch.setattr(element, "listen", dict)
    listed = tmp_path / "list"
    listed.write_text("0 a.yaml\n10 b.yaml c.yaml\n")
    call = ["--list", str(listed), "--index", "10"]
    assert element.main(["--sources", "0123", *call]) == 1
    assert "the code has changed since the submission (sources 0123" in capsys.readouterr().err
    assert element.main(["--sources", "0123", "--changed-code=warn", *call]) == 0
    assert element.main(["--sources", source_digest(), *call]) == 0
    assert trained == [["b.yaml", "c.yaml"]] * 2
    assert element.main(["--sources", source_digest(), "--list", str(listed), "--index", "1"]) == 1
    assert "no line for element 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("fine\nerror: first\nerror: last\nsrun: error: n: task 0: Exited with exit code 1\n", "error: last"),
        ("Traceback\nValueError: no\n", "ValueError: no"),
        (
            "x\nslurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT now DUE TO TIME LIMIT ***\n",
            "slurmstepd-n1: error: *** JOB 7",
        ),
        ("folder /runs\nsrun: error: n1: task 0: Killed\n", "srun: error: n1: task 0: Killed"),
        ("one\ntwo\n", "two"),
    ],
)
def test_the_last_error_of_a_log_is_found(text: str, line: str, tmp_path: Path):
    (tmp_path / "log").write_text(text)
    assert str(last_error(tmp_path / "log")).startswith(line)
    assert last_error(tmp_path / "none") is None


def test_a_study_is_trained_here_stage_by_stage_without_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    trained: list[list[tuple[str, str, int]]] = []

    def train(configs: list[RunConfig], *, folder: Path, workers: int) -> int:
        trained.append([(config.name, config.conditioning.correction, config.seed) for config in configs])
        assert workers == 2
        for config in configs:
            finish(run_folder(config))
        return 0

    monkeypatch.setattr(submit, "train_locally", train)
    Path("study.yaml").write_text(
        "stages:\n  first: {experiments: [imagenet/small], arms: [[conditioning=none], [conditioning=polar]], seeds: [0]}\n"
        "  second: {after: first, experiments: [imagenet/small], overrides: [budget.epochs=1]}\n"
    )
    assert dispatch(["submit", ".", "--local", "2"]) == 0
    runs = [("imagenet/small", "none", 0), ("imagenet/small", "polar", 0)]
    assert trained == [runs, runs]
    assert "4 done" in capsys.readouterr().out
    assert dispatch(["status", "study.yaml"]) == 0
    monkeypatch.setattr(submit, "train_locally", lambda configs, **_: trained.append(configs) or 1)
    assert dispatch(["submit", ".", "--local", "2", "paths.runs=other"]) == 1
    assert len(trained) == 3  # a failed stage ends the study
    assert "look again with: spectral status other/.studies/" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="without a site; leave out 'site=mine'"):
        dispatch(["submit", ".", "--local", "2", "site=mine"])
    with pytest.raises(ConfigError, match="--local is 0; it must be at least 1"):
        dispatch(["submit", ".", "--local", "0"])


LOCAL = "experiments: [imagenet/small]\nseeds: [0, 1, 2, 3, 4]\noverrides: [paths.runs=elsewhere]\n"


def test_status_of_a_local_study_says_where_every_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # a machine without Slurm
    Path("mine").mkdir()
    Path("mine/study.yaml").write_text(LOCAL)
    owned: list[Path] = []

    def train(configs: list[RunConfig], *, folder: Path, workers: int) -> int:
        done, _, interrupted, running, _ = map(run_folder, configs)
        owned.append(running)
        finish(done)
        folder.mkdir(parents=True)
        error_file(folder / config_name(configs[1])).write_text("the disk is full\n")
        for path in (interrupted, running):
            path.mkdir(parents=True)
            beat = {"step": 30, "steps": 100, "loss": 1.0, "first_step": 30, "started": 0, "written": 0}
            (path / "progress.json").write_text(json.dumps(beat))
        return 1

    monkeypatch.setattr(submit, "train_locally", train)
    assert dispatch(["submit", "mine", "--local", "2", "--dry-run"]) == 0
    assert "# study mine in elsewhere/.studies/mine: 5 runs: 5 missing" in capsys.readouterr().out
    assert not Path("elsewhere").exists()
    assert dispatch(["submit", "mine", "--local", "2"]) == 1
    assert "failed: imagenet/small · baseline · seed 1: the disk is full\n" in capsys.readouterr().out
    assert dispatch(["submit", "mine", "--local", "2", "optim.lr=0.1", "--dry-run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 6, "what this call would train, without the runs of the call before"
    assert listed[-1].endswith(": 5 runs: 5 missing")
    with RunFolder(owned[0]):
        assert dispatch(["status", "mine"]) == 1, "paths.runs is the study's"
    lines = [line.split(" · ")[-1].split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == [
        ["seed", "0", "done", "val/accuracy 0.8750"],
        ["seed", "1", "failed", "the disk is full"],
        ["seed", "2", "interrupted", "had got to step 30/100"],
        ["seed", "3", "running", "step 30/100, loss 1.0000"],
        ["seed", "4", "missing", "not started"],
    ]
    assert " ".join(lines[5]) == "5 runs: 1 running, 1 done, 1 failed, 1 interrupted, 1 missing"
