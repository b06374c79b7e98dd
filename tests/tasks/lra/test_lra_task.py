"""The task through the run path: true shapes, both arms alike, and the checkpoint that is tested."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spectral_conditioning.errors import RecordError
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.base import Reported
from spectral_conditioning.tasks.lra.module import SequenceModule
from spectral_conditioning.tasks.lra.task import TASK
from spectral_conditioning.tasks.optim import OptimConfig
from spectral_conditioning.tasks.streams import CollateBatch, EvaluationBatches, SeededDataset
from spectral_conditioning.training.callbacks import RecordOrder
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.identity import run_folder
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.record import hash_tensors
from spectral_conditioning.training.run import run
from spectral_conditioning.training.schema import RunConfig

Write = Callable[..., Path]
CPU = ["trainer=cpu", "trainer.precision=32-true", "trainer.progress=none", "paths.runs=runs", "evaluate.spectra=0"]


@pytest.mark.parametrize("name", ["listops", "text", "retrieval", "image", "pathfinder", "skyformer_listops"])
@pytest.mark.parametrize("arm", ["none", "identity"])
def test_paper_experiments_take_two_steps_on_data_of_the_true_shape(write_folder: Write, name: str, arm: str) -> None:
    folder = write_folder(name.removeprefix("skyformer_"), samples=(4, 2, 2))
    config = compose_run(
        [f"experiment=lra/{name}", f"conditioning={arm}", *CPU, f"data.source={folder}", "data.batch_size=1"]
    )
    prepared = prepare(config)
    module, loader = prepared.module, prepared.loader
    module.to(torch.device("cpu"))
    assert (prepared.report.count if prepared.report else 0) == (6 if arm == "identity" else 0)
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    before = [p.detach().clone() for p in module.parameters()]
    batches = iter(loader.train_dataloader())
    for step in range(2):
        batch = next(batches)
        positions = config.data.padded_length
        assert batch.samples["ids"].shape == ((1, 2, positions) if "retrieval" in name else (1, positions))
        seed_all(0, "step", step)
        loss = module.training_losses(batch.samples)["loss"]
        assert 0 < loss.item() < 20
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    changed = [not torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True)]
    assert all(changed)


def test_rate_and_momentum_follow_the_reference_schedule() -> None:
    config = compose_run(["experiment=lra/listops", *CPU])
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    configured = SequenceModule(model, optim=config.optim, total_steps=5000).configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    seen = {}
    for step in range(5001):
        if step in (0, 1000, 3000, 5000):
            seen[step] = (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        if step < 5000:
            schedule.step()
    assert seen[0] == (pytest.approx(1e-4 / 25), pytest.approx(0.95))
    assert seen[1000] == (pytest.approx(1e-4, rel=1e-2), pytest.approx(0.85, abs=1e-3))
    assert seen[3000] == (pytest.approx(0.5e-4, rel=1e-2), pytest.approx(0.90, abs=1e-3))
    assert seen[5000][0] < 1e-7


@pytest.fixture
def tiny(write_folder: Write) -> Callable[..., RunConfig]:
    folder = write_folder("listops", lengths=(16, 63), samples=(40, 12, 10))

    def make(*overrides: str) -> RunConfig:
        return compose_run(
            [
                "experiment=lra/small_listops",
                *CPU,
                f"data.source={folder}",
                "data.stand_in=null",
                "data.batch_size=8",
                "data.eval_batch_size=5",
                "budget={steps: 6, epochs: null, tokens: null}",
                "evaluate={every_steps: 2, every_epochs: null}",
                "optim.warmup_steps=2",
                "task.model.width=16",
                "task.model.head_dim=8",
                "trainer.checkpoint_every=null",
                *overrides,
            ]
        )

    return make


def test_both_arms_start_from_the_same_weights_and_see_the_same_order(tiny: Callable[..., RunConfig]) -> None:
    records = [
        run(tiny(f"conditioning={arm}", *more)).record
        for arm, more in (("none", []), ("identity", ["conditioning.lam=0.5"]), ("polar", []))
    ]
    for key in ("initial_weights", "order", "data", "pair"):
        assert len({record["hashes"][key] for record in records}) == 1, key
    assert [record["projections"] for record in records] == [0, 6, 6]
    assert len({json.dumps(record["metrics"], sort_keys=True) for record in records}) == 3
    # A constant answer scores what the record calls chance: 10 labels, each on one of the 10 test samples.
    assert records[0]["chance"] == pytest.approx(0.1)
    assert records[0]["primary"]["name"] == "test/accuracy"


def test_spectra_are_recorded(tiny: Callable[..., RunConfig]) -> None:
    outcome = run(tiny("evaluate.spectra=2", "conditioning=polar"))
    lines = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    spectra = [line for line in lines if line["split"] == "spectra"]
    assert [line["step"] for line in spectra] == [0, 3, 6]
    # Theorem 3.5 before the first step.
    assert all(1 <= spectra[0][f"kappa_w/{role}"] <= 2.01 for role in "qkv")
    assert all(line["kappa_j"] > 1 and 0 < line["attention_entropy"] <= 1 for line in spectra)
    assert 0 < outcome.record["seconds"]["spectra"] < outcome.record["seconds"]["train"]


@pytest.mark.slow
def test_the_best_checkpoint_on_validation_is_the_one_tested_here_and_in_another_process(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = [0.5, 0.9, 0.4]
    weights: list[str] = []
    measured = SequenceModule.evaluation_metrics

    def pretend(module: SequenceModule) -> dict[str, float]:
        values = measured(module)
        weights.append(hash_tensors(module.model.named_parameters()))
        return {**values, "accuracy": scripted[list(dict.fromkeys(weights)).index(weights[-1])]}

    monkeypatch.setattr(SequenceModule, "evaluation_metrics", pretend)
    outcome = run(tiny("conditioning=identity"))
    assert outcome.record["primary"]["rule"] == "best"
    assert outcome.record["primary"]["step"] == 4
    assert len(set(weights[:3])) == 3
    assert set(weights[3:]) == {weights[1]}  # what was tested is what scored 0.9
    program = f"""
import json, torch
from pathlib import Path
from spectral_conditioning.tasks.lra.task import TASK
from spectral_conditioning.tasks.streams import StreamDataModule
from spectral_conditioning.training.prepare import load_run_model
from spectral_conditioning.training.record import hash_tensors
from spectral_conditioning.training.storage import read_config
folder = Path({str(outcome.folder)!r})
model = load_run_model(folder)
config = read_config(folder / "config.yaml")
data = TASK.load_data(config)
module = TASK.build_module(config, model, data, total_steps=6)
sets = {{"train": data.train, "val": data.val, "test": data.test, "collate": data.collate}}
loader = StreamDataModule(**sets, batch_size=8, eval_batch_size=5, seed=0)
with torch.no_grad():
    for batch in loader.test_dataloader():
        module.evaluate_batch(batch.samples, batch.counted)
print(json.dumps([hash_tensors(model.named_parameters()), module.evaluation_metrics()]))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    again, metrics = json.loads(told.strip().splitlines()[-1])
    assert again == weights[1]
    assert metrics["loss"] == pytest.approx(outcome.record["metrics"]["test/loss"], rel=1e-6)


def test_weights_that_do_not_give_their_validation_value_again_are_not_tested(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, scripted = SequenceModule.evaluation_metrics, iter([0.5, 0.9, 0.4, 0.7])
    monkeypatch.setattr(
        SequenceModule, "evaluation_metrics", lambda module: {**measured(module), "accuracy": next(scripted)}
    )
    config = tiny()
    with pytest.raises(RecordError, match=r"validation accuracy 0\.900000 .* 0\.700000 when read back"):
        run(config)
    assert not (run_folder(config) / "result.json").exists()


def test_reported_number() -> None:
    assert TASK.reported(None) == Reported(metric="accuracy", split="test", rule="best", mode="max")


class Fixed(torch.nn.Module):
    """Answers with the logits that it is given as ids."""

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return ids


def test_every_sample_counts_once_whatever_the_batches_and_not_a_number_is_a_miss() -> None:
    logits = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(11) % 4
    logits[3, labels[3]] = float("nan")
    logits[5] = torch.tensor([9.0, 0, 0, 0]).roll(int(labels[5]))
    usable = logits.isfinite().all(-1)
    expected = ((logits.argmax(-1) == labels) & usable).double().mean().item()
    samples = [{"ids": logits[i], "labels": labels[i]} for i in range(11)]
    for batch_size, world in ((11, 1), (4, 1), (3, 2)):
        module = SequenceModule(Fixed(), optim=OptimConfig(), total_steps=1)
        for rank in range(world):
            served = SeededDataset(samples, seed=0, stream="validate")  # type: ignore[arg-type]
            for keys in EvaluationBatches(11, batch_size=batch_size, rank=rank, world_size=world):
                batch = CollateBatch()([served[key] for key in keys])
                module.evaluate_batch(batch.samples, batch.counted)
        assert module._sums is not None
        assert module._sums[0] == 11
        assert module.evaluation_metrics()["accuracy"] == pytest.approx(expected)


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.mark.parametrize("step", [3, 5])
def test_a_killed_run_ends_as_an_unbroken_one(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    overrides = ("conditioning=polar", "trainer.checkpoint_every=2", "trainer.log_every=1")
    unbroken = run(tiny(*overrides, "paths.runs=unbroken"))
    original = RecordOrder.on_train_batch_start

    def dying(self: RecordOrder, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == step:
            raise Killed
        original(self, trainer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RecordOrder, "on_train_batch_start", dying)
        with pytest.raises(Killed):
            run(tiny(*overrides))
    resumed = run(tiny(*overrides))
    assert resumed.record["metrics"] == unbroken.record["metrics"]
    assert resumed.record["hashes"] == unbroken.record["hashes"]
    assert (resumed.folder / "metrics.jsonl").read_text() == (unbroken.folder / "metrics.jsonl").read_text()
