"""Public failures around W&B and around fairness between arms, each as a law that this suite keeps.

Beside these: what a table takes and refuses in tests/results/test_pairing.py and test_records_and_collect.py, reading from W&B in
tests/results/test_wandb_source.py, what lands in a file in test_tracking.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from spectral_conditioning.training.callbacks import Record
from spectral_conditioning.training.compose import compose_run, expand_sweep
from spectral_conditioning.training.identity import conditioning, run_folder
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.record import hash_tensors, read_lines
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.tracking import WandbSink

from ..conftest import TINY
from .test_tracking import read_back

Train = Callable[..., Outcome]
Make = Callable[..., RunConfig]
WANDB = Path(__file__).parents[2] / "experiments" / "wandb"


class Killed(BaseException):
    """Stands for a process that ends here."""


def killed_after(step: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = Killed) -> None:
    original = Record.on_train_batch_end

    def dies(self: Record, trainer: Trainer, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == step:
            raise error

    monkeypatch.setattr(Record, "on_train_batch_end", dies)


def test_a_sweep_in_one_process_gives_every_run_its_own_wandb_run(tmp_path: Path) -> None:
    words = [*TINY, f"paths.runs={tmp_path / 'runs'}", "logger=wandb_offline", "conditioning=identity", "seed=0,1"]
    jobs = expand_sweep([*words, "conditioning.lam=0,10"])
    outcomes = [run(compose_run(job)) for job in jobs]
    seen = [read_back(outcome.folder) for outcome in outcomes]
    assert len({outcome.folder for outcome in outcomes}) == len({each["id"] for each in seen}) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", each["id"]) for each in seen)
    for outcome, each in zip(outcomes, seen, strict=True):
        lam, seed = outcome.record["lam"], outcome.record["seed"]
        assert (each["config"]["conditioning"]["lam"], each["config"]["seed"]) == (lam, seed)
        assert {f"lam{lam:g}", f"seed{seed}", "baseline" if lam == 0 else "identity"} <= set(each["tags"])
        assert [line["step"] for line in each["history"] if "train/loss" in line] == [1, 2, 3, 4, 5, 6]
    assert {(outcome.record["lam"], outcome.record["seed"]) for outcome in outcomes} == {
        (0.0, 0), (0.0, 1), (10.0, 0), (10.0, 1),
    }  # fmt: skip


def test_a_run_that_fails_is_closed_and_the_next_one_is_not_merged_into_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_after(3, patch, RuntimeError)
        with pytest.raises(RuntimeError):
            train("logger=wandb_offline", runs="failed")
    outcome = train("logger=wandb_offline", "conditioning=identity")
    (failed,) = {path.parents[2] for path in (tmp_path / "failed").rglob("*.wandb")}
    one, other = read_back(failed), read_back(outcome.folder)
    assert one["id"] != other["id"]
    assert (one["exit"], other["exit"]) == (1, 0)
    assert "record" not in one["config"]
    assert [line["step"] for line in other["history"] if "train/loss" in line] == [1, 2, 3, 4, 5, 6]


def test_an_offline_run_that_goes_on_leaves_one_file_with_every_line(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two offline files under one id overwrite each other when they are synced."""
    with monkeypatch.context() as patch:
        killed_after(5, patch)
        with pytest.raises(Killed):
            train("logger=wandb_offline")
    outcome = train("logger=wandb_offline")
    seen = read_back(outcome.folder)  # fails unless there is exactly one file
    sent = [(line["step"], line["train/loss"]) for line in seen["history"] if "train/loss" in line]
    kept = [line for line in read_lines(outcome.folder / "metrics.jsonl") if line["split"] == "train"]
    assert sent == [(line["step"], line["loss"]) for line in kept]
    assert [step for step, _ in sent] == [1, 2, 3, 4, 5, 6]


def test_the_summary_is_the_tested_checkpoint_with_its_step(train: Train) -> None:
    outcome = train("logger=wandb_offline", "optim.ema_decay=0.5", "optim.report=ema")
    summary = read_back(outcome.folder)["summary"]
    primary = outcome.record["primary"]
    assert summary["primary"] == primary
    assert (primary["weights"], primary["step"]) == ("ema", 6)
    for name, value in outcome.record["metrics"].items():
        assert summary[name] == value, name


def test_the_summary_keeps_the_tested_value_where_a_worse_one_came_after_it(tmp_path: Path) -> None:
    """Left to itself, W&B's summary holds the last value of every name."""
    sink = WandbSink(
        mode="offline", folder=tmp_path, run_id="0" * 32, project="p", entity=None, group="g", name="n", job_type="none",
        tags=[], config={"task": {"model": {"name": "vit"}}, "conditioning": {"correction": "none", "lam": 0.0}},
    )  # fmt: skip
    for step, accuracy in ((3, 0.9), (6, 0.5)):
        sink.write({"step": step, "split": "val", "epoch": 0.0, "accuracy": accuracy})
    primary = {"name": "val/accuracy", "mode": "max", "value": 0.9, "step": 3, "weights": "raw", "rule": "best"}
    sink.finish({"status": "finished", "metrics": {"val/accuracy": 0.9}, "primary": primary})
    seen = read_back(tmp_path)
    assert [line["val/accuracy"] for line in seen["history"]] == [0.9, 0.5]
    assert seen["summary"]["val/accuracy"] == 0.9
    assert (seen["summary"]["primary"]["value"], seen["summary"]["primary"]["step"]) == (0.9, 3)


def sweep_jobs(sweep: dict[str, Any]) -> Iterator[list[str]]:
    """The words that `wandb agent` runs for every point of the grid, by W&B's own functions."""
    grid = [[(name, value) for value in each["values"]] for name, each in sweep["parameters"].items()]
    for point in itertools.product(*grid):
        known = create_sweep_command_args({"args": {name: {"value": value} for name, value in point}})
        known |= {"env": ["/usr/bin/env"], "program": [sweep["program"]]}
        command = create_sweep_command(list(sweep["command"]))
        yield [word for part in command for word in (known[part[2:-1]] if part.startswith("${") else [part])]


def test_every_command_of_the_wandb_sweep_is_a_run_and_lambda_zero_the_baseline() -> None:
    sweep = yaml.safe_load((WANDB / "lambda_sweep.yaml").read_text(encoding="utf-8"))
    jobs = list(sweep_jobs(sweep))
    assert len(jobs) == 35
    configs = []
    for words in jobs:
        assert words[:3] == ["/usr/bin/env", "spectral", "train"]
        configs.append(compose_run(words[3:]))
    assert len({run_folder(config) for config in configs}) == 35
    assert {config.logger.wandb for config in configs} == {"online"}
    assert {config.logger.project for config in configs} == {sweep["project"]}
    assert {(config.conditioning.lam, config.seed) for config in configs} == {
        (lam, seed) for lam in (0, 0.1, 0.3, 1, 3, 10, 30) for seed in range(5)
    }
    for config in configs:
        assert (conditioning(config) is None) == (config.conditioning.lam == 0)
        if config.conditioning.lam == 0:
            assert run_folder(config) == run_folder(compose_run(["conditioning=none", f"seed={config.seed}"]))
    # A swept name that is also the start of another would stand in W&B's config in place of the run's own.
    assert not {"conditioning", "experiment"} & set(sweep["parameters"])


def test_every_name_in_the_recipe_is_one_that_a_run_sends(train: Train) -> None:
    seen = read_back(train("logger=wandb_offline", "conditioning=identity", "evaluate.spectra=1").folder)
    history = {name for line in seen["history"] for name in line}
    sent = {
        "group": {seen["group"]},
        "job type": {seen["job_type"], "none", "identity-10-fused"},
        "tags": {*seen["tags"], "baseline", "logger.tags=[…]"},
        "config": {*seen["config"], "conditioning.lam", "optim.lr", "result.json"}
        | {f"record.{key}" for key in seen["config"]["record"]},
        "history": {*history, "evaluate.spectra=N", "Step"},
        "summary": {*seen["summary"], "finished", "diverged"}
        | {f"primary.{key}" for key in seen["summary"]["primary"]},
    }
    rows = [line.split("|")[1:-1] for line in (WANDB / "README.md").read_text("utf-8").splitlines() if line[:1] == "|"]
    assert {row[0].strip() for row in rows[2:]} == set(sent)
    for where, *cells in rows[2:]:
        for name in re.findall("`([^`]+)`", "".join(cells)):
            if name not in ("none", "step"):
                assert name in sent[where.strip()], (where, name)
    text = (WANDB / "README.md").read_text("utf-8")
    assert set(re.findall(r"`((?:spectra|train|val)/[^`]+)`", text)) <= history


def test_arms_see_the_same_weights_and_samples_however_often_they_validate_and_load(
    train: Train, sample_ids: list[list[int]]
) -> None:
    """Two epochs of two sample_ids; the conditioned arm validates twice as often, with another number of workers."""
    two_epochs = ("data.batch_size=640", "budget.steps=4", "task.model.drop_path_rate=0.2", "data.mixup=0.4")
    often = ("conditioning=identity", "evaluate.every_steps=1", "data.workers=1")
    base = train(*two_epochs, "evaluate.every_steps=2")
    arm = train(*two_epochs, *often)
    assert len(sample_ids) == 8
    assert sample_ids[:4] == sample_ids[4:]
    assert sample_ids[0][:20] != sample_ids[2][:20]
    for name in ("initial_weights", "order", "data"):
        assert base.record["hashes"][name] == arm.record["hashes"][name]


def test_a_further_pass_over_the_validation_set_changes_no_weight(train: Train) -> None:
    words = ("task.model.drop_path_rate=0.2", "data.mixup=0.4", "conditioning=polar_every_step")
    seldom = train(*words, "evaluate.every_steps=6", runs="seldom")
    often = train(*words, "evaluate.every_steps=1", "data.workers=1", runs="often")
    one, other = (
        torch.load(outcome.folder / "checkpoints" / "reported.ckpt", weights_only=True)["model"]
        for outcome in (seldom, often)
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("arm", ["identity", "identity_fused", "polar", "svd"])
def test_what_an_arm_starts_from_is_what_was_hashed(tiny: Make, arm: str) -> None:
    """The hash is taken of the plain model; the stored weights of the conditioned one must still be those."""
    base, conditioned = prepare(tiny()), prepare(tiny(f"conditioning={arm}"))
    assert base.initial_weights == conditioned.initial_weights
    assert conditioned.report.count > 0
    for prepared in (base, conditioned):
        assert hash_tensors(prepared.module.model.named_parameters()) == prepared.initial_weights


def test_conditioning_takes_nothing_from_the_global_generator() -> None:
    from spectral_conditioning import Conditioning, condition

    for correction in ("identity", "polar", "svd", "scaled_identity", "orthogonal"):
        torch.manual_seed(0)
        model = torch.nn.MultiheadAttention(8, 2)
        before = torch.get_rng_state()
        condition(model, Conditioning(correction=correction, lam=1.0))
        assert torch.equal(before, torch.get_rng_state()), correction
