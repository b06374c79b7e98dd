"""Public failures of suites built on Lightning, Hydra and SLURM, each as a law that this one keeps.

Beside these: ranks and multirun in test_ranks.py, signals and requeueing in test_preemption.py, kills in test_kill_loop.py,
code edited after a submission in tests/launch/test_submit.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from lightning.pytorch import Trainer

from spectral_conditioning.errors import ConfigError, RecordError
from spectral_conditioning.tasks.streams import SampleStream, TrainBatches
from spectral_conditioning.training import compose, hydra_entry
from spectral_conditioning.training import run as run_module
from spectral_conditioning.training.callbacks import Record
from spectral_conditioning.training.compose import check_launcher, compose_run, config_directory
from spectral_conditioning.training.identity import run_folder
from spectral_conditioning.training.run import Outcome
from spectral_conditioning.training.schema import RunConfig

from ..conftest import TINY

Train = Callable[..., Outcome]
Make = Callable[..., RunConfig]
TEN = ["budget.steps=10", "trainer.checkpoint_every=4", "evaluate.every_steps=4"]


class Killed(BaseException):
    """Stands for a process that ends here."""


def killed_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Record.on_train_batch_end

    def dies(self: Record, trainer: Trainer, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == step:
            raise Killed

    monkeypatch.setattr(Record, "on_train_batch_end", dies)


def lines(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]


def test_a_resume_in_mid_epoch_neither_skips_nor_repeats_data(
    train: Train, sample_ids: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    straight = train(*TEN, runs="straight")
    expected = list(sample_ids)
    assert len(expected) == 10 < 1297 // 32, "the whole run lies within one epoch"
    sample_ids.clear()
    with monkeypatch.context() as patch:
        killed_after(6, patch)
        with pytest.raises(Killed):
            train(*TEN)
    assert sample_ids == expected[:6]
    sample_ids.clear()
    resumed = train(*TEN)
    assert sample_ids == expected[4:]
    rates = [[line["lr"] for line in lines(run) if line["split"] == "train"] for run in (straight, resumed)]
    assert rates[0] == rates[1]
    models = [
        torch.load(run.folder / "checkpoints" / "reported.ckpt", weights_only=True)["model"]
        for run in (straight, resumed)
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_resume_keeps_every_earlier_line_once(train: Train, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        killed_after(7, patch)
        with pytest.raises(Killed):
            train(*TEN)
    outcome = train(*TEN)
    written = [(line["split"], line["step"]) for line in lines(outcome)]
    assert sorted(written) == sorted([("train", step) for step in range(1, 11)] + [("val", 4), ("val", 8), ("val", 10)])


def test_an_ordered_sampler_keeps_its_order_over_ranks():
    stream = SampleStream(64, batch_size=8, seed=3)
    ranks = [iter(TrainBatches(stream, start=5, rank=rank, world_size=2)) for rank in (0, 1)]
    for step in range(5, 20):
        whole: list[Any] = [None] * 8
        for rank, batches in enumerate(ranks):
            whole[rank::2] = next(batches)
        assert whole == list(stream.batch(step))


def test_with_accumulation_the_schedule_ends_with_the_last_optimizer_step(train: Train):
    # 1,297 samples in micro-batches of 32 are 40 batches an epoch, 10 optimizer steps of 4.
    outcome = train(
        "data.batch_size=128", "trainer.accumulate=4", "optim.warmup_epochs=0", "optim.min_lr=1e-6",
        "budget={steps: null, epochs: 3, tokens: null}", "evaluate.every_steps=30",
    )  # fmt: skip
    trained = [line for line in lines(outcome) if line["split"] == "train"]
    assert outcome.record["steps"] == len(trained) == 30
    assert trained[-1]["lr"] == pytest.approx(1e-6, rel=1e-9)
    assert trained[-2]["lr"] > 2e-6


def test_a_damaged_checkpoint_that_torch_would_read_is_passed_over(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    straight = train(*TEN, runs="straight")
    with monkeypatch.context() as patch:
        killed_after(9, patch)
        with pytest.raises(Killed):
            train(*TEN)
    (newest,) = tmp_path.glob("runs/**/step-8.ckpt")
    content = bytearray(newest.read_bytes())
    tensor = torch.load(newest, weights_only=True)["state_dict"]["model.blocks.0.mlp.fc1.weight"]
    place = content.find(tensor.numpy().tobytes())
    content[place + 40] ^= 0xFF
    newest.write_bytes(content)
    damaged = torch.load(newest, weights_only=True)["state_dict"]["model.blocks.0.mlp.fc1.weight"]
    assert not torch.equal(damaged, tensor)
    assert lines(train(*TEN)) == lines(straight)


def test_a_killed_writer_leaves_no_partial_files(train: Train, tiny: Make):
    folder = run_folder(tiny())
    (folder / "checkpoints").mkdir(parents=True)
    left = [folder / ".result.json.99.partial", folder / "checkpoints" / ".step-2.ckpt.partial"]
    for path in left:
        path.write_text("half")
    train()
    assert not any(path.exists() for path in left)


@pytest.fixture
def bad_experiments(tmp_path: Path) -> Path:
    """A copy of conf/ with experiments that choose a launcher or a sweeper."""
    folder = tmp_path / "conf"
    shutil.copytree(config_directory(), folder)
    (folder / "hydra" / "launcher").mkdir(parents=True)
    (folder / "hydra" / "sweeper").mkdir(parents=True)
    for group in ("launcher", "sweeper"):
        (folder / "hydra" / group / "other.yaml").write_text("_target_: nothing.Here\n")
        text = f"# @package _global_\ndefaults:\n  - override /hydra/{group}: other\nname: bad\nbudget: {{steps: 2}}\n"
        (folder / "experiment" / f"bad_{group}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("group", ["launcher", "sweeper"])
def test_a_launcher_inside_an_experiment_is_refused_before_any_job(
    group: str, bad_experiments: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for module in (compose, hydra_entry):
        monkeypatch.setattr(module, "config_directory", lambda: bad_experiments)
    with pytest.raises(ConfigError, match=rf"bad_{group} chooses hydra/{group}=other.*on the command line"):
        hydra_entry.train(["-m", f"experiment=bad_{group}", "seed=0,1", f"paths.runs={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()
    check_launcher([[f"experiment=bad_{group}", f"hydra/{group}=other"], ["experiment=imagenet/small"]])


def test_a_launcher_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="hydra/launcher=submitit_slurmm: not installed"):
        compose_run(["hydra/launcher=submitit_slurmm"])


def sweep(tmp_path: Path, *words: str) -> int:
    return hydra_entry.train(["-m", *TINY, f"paths.runs={tmp_path / 'runs'}", *words])


def test_a_sweep_run_again_runs_only_what_failed_and_every_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    started: list[int] = []

    def fails_for(seeds: set[int]) -> Callable[[RunConfig], Outcome]:
        def runs(config: RunConfig) -> Outcome:
            if config.seed in seeds:
                raise RecordError(f"no luck with seed {config.seed}")
            outcome = run_module.run(config)
            started.extend([config.seed] if outcome.status != "already" else [])
            return outcome

        return runs

    monkeypatch.setattr(hydra_entry, "run", fails_for({0, 2}))
    assert sweep(tmp_path, "seed=0,1,2") == 1
    assert started == [1]
    told = capsys.readouterr().err
    assert [f"no luck with seed {seed}" in told for seed in (0, 1, 2)] == [True, False, True]
    assert "2 jobs failed; the same command runs only what is missing" in told
    monkeypatch.setattr(hydra_entry, "run", fails_for({0}))
    started.clear()
    assert sweep(tmp_path, "seed=0,1,2") == 1
    assert started == [2]
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 2


def test_a_fault_nobody_foresaw_ends_its_run_and_not_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails(config: RunConfig) -> Outcome:
        if config.seed == 0:
            raise ZeroDivisionError("a fault of ours")
        return run_module.run(config)

    monkeypatch.setattr(hydra_entry, "run", fails)
    assert sweep(tmp_path, "seed=0,1") == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "error: ZeroDivisionError: a fault of ours" in told
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 1


def test_runs_that_start_in_the_same_second_have_folders_of_their_own(tiny: Make):
    variants = [
        (),
        ("seed=1",),
        ("conditioning=identity",),
        ("conditioning=identity", "conditioning.lam=2"),
        ("optim.lr=1",),
    ]
    assert len({run_folder(tiny(*overrides)) for overrides in variants}) == len(variants)
    assert run_folder(tiny()) == run_folder(tiny())


@pytest.fixture
def wandb_ids(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for W&B and collect the sample_ids under which runs report."""
    found: list[str] = []

    def sink(*, run_id: str, **_: Any) -> MagicMock:
        found.append(run_id)
        return MagicMock()

    monkeypatch.setattr(run_module, "WandbSink", sink)
    return found


def test_a_requeued_run_goes_on_in_its_folder_under_its_wandb_id(
    train: Train,
    wandb_ids: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    online = [*TEN, "logger.wandb=offline"]
    with monkeypatch.context() as patch:
        killed_after(5, patch)
        with pytest.raises(Killed):
            train(*online)
    (before,) = tmp_path.glob("runs/**/config.yaml")
    with caplog.at_level("INFO"):
        outcome = train(*online)
    assert "going on at step 4" in caplog.text
    assert outcome.folder == before.parent
    assert len(wandb_ids) == 2
    assert len(set(wandb_ids)) == 1
    train(*online, "seed=1")
    train(*online, "conditioning=identity")
    train(*online, runs="again")
    assert len(set(wandb_ids)) == 4


@pytest.mark.parametrize(
    "words",
    [
        ["experiment=imagenet/small", "conditioning=identity", "conditioning.lam=3"],
        ["conditioning.lam=3", "conditioning=identity", "experiment=imagenet/small"],
    ],
)
def test_the_command_line_wins_in_any_order(words: list[str]):
    config = compose_run(words)
    assert (config.name, config.conditioning.correction, config.conditioning.lam) == ("imagenet/small", "identity", 3)
