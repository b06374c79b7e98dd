"""The command from outside: exit status, one message, nothing left behind."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spectral_conditioning.cli import COMMANDS, dispatch

ROOT = Path(__file__).parents[1]


def spectral(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spectral_conditioning.cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["unknown command 'trian'", "closest 'train'"]),
        (["train", "optim.lrr=1"], ["unknown key 'optim.lrr'", "closest 'optim.lr'"]),
        (["train", "conditioning=identity", "conditioning.lam=nan"], ["lam", "nan"]),
        (["train", "seed=0,1"], ["seed=0,1"]),
        (["compare", "nowhere"], ["nowhere"]),
    ],
)
def test_a_mistake_is_one_message_and_status_one(words: list[str], parts: list[str], tmp_path: Path):
    ended = spectral(*words, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr
    for part in parts:
        assert part in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_command_and_every_group(tmp_path: Path):
    text = spectral("--help", cwd=tmp_path).stdout
    assert all(name in text for name in ("train", *COMMANDS))
    text = spectral("train", "--help", cwd=tmp_path).stdout
    assert all(f"\n{group.name}" in text for group in (ROOT / "conf").iterdir() if group.is_dir())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        dispatch([name, "--help"])
    assert ended.value.code == 0
    assert f"spectral {name}" in capsys.readouterr().out


def test_the_package_alone_imports_nothing_and_still_has_every_name(tmp_path: Path):
    script = (
        "import sys; before = set(sys.modules);"
        "import spectral_conditioning as package;"
        "new = {n.split('.')[0] for n in set(sys.modules) - before if n.split('.')[0] not in sys.stdlib_module_names};"
        "print(sorted(new), all(name in dir(package) for name in package.__all__),"
        "all(hasattr(package, name) for name in package.__all__), hasattr(package, 'nothing'),"
        "package.conditioning.condition is package.condition)"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['spectral_conditioning'] True True False True"


def test_an_installed_wheel_finds_its_configuration(tmp_path: Path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", ".", str(ROOT)]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import spectral_conditioning, pathlib;"
        "from spectral_conditioning.training.compose import compose_run, config_directory;"
        "print(pathlib.Path(spectral_conditioning.__file__).parent);"
        "print(config_directory()); print(compose_run(['conditioning=polar']).name)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    package, conf, name = ended.stdout.split()
    assert package == str(tmp_path / "site" / "spectral_conditioning")
    assert conf == f"{package}/conf"
    assert name == "imagenet/small"


def test_flags_may_stand_between_overrides_and_a_folder_of_ones_own_is_searched(tmp_path: Path):
    (tmp_path / "own" / "optim").mkdir(parents=True)
    recipe = (ROOT / "conf" / "optim" / "adamw_cosine.yaml").read_text()
    (tmp_path / "own" / "optim" / "mine.yaml").write_text(re.sub(r"(?m)^lr:.*$", "lr: 0.0625", recipe))
    words = ["optim=mine", "--config-dir", "own", "-m", "seed=0,1", "budget={steps: 1, epochs: null, tokens: null}"]
    small = ["task.model.depth=1", "task.model.embed_dim=16", "task.model.num_heads=1", "trainer.progress=none"]
    # imagenet/small sets its own rate, so the one of the recipe is given again.
    ended = spectral("train", *words, *small, "optim.lr=0.0625", "experiment=imagenet/small", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    configs = sorted((tmp_path / "runs").rglob("config.yaml"))
    assert len(configs) == 2
    assert all("lr: 0.0625" in path.read_text() for path in configs)
