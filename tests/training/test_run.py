"""Laws of a run: it repeats itself, resumes exactly, and both arms of a pair see the same thing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spectral_conditioning.errors import DataError, RecordError, SpectralError
from spectral_conditioning.results.compare import compare
from spectral_conditioning.training.callbacks import Record, RecordOrder
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.prepare import load_run_model, prepare
from spectral_conditioning.training.record import RunFolder, read_lines
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig

Train = Callable[..., Outcome]
Make = Callable[..., RunConfig]


def lines(outcome: Outcome) -> list[dict[str, Any]]:
    return read_lines(outcome.folder / "metrics.jsonl")


def weights(outcome: Outcome) -> dict[str, torch.Tensor]:
    content = torch.load(outcome.folder / "checkpoints" / "reported.ckpt", weights_only=True)
    return dict(content["model"])


def assert_same(one: Outcome, other: Outcome) -> None:
    assert lines(one) == lines(other)
    assert weights(one).keys() == weights(other).keys()
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name
    ignored = ("config", "seconds", "conditioning", "arm", "arm_id", "code")
    for key in one.record.keys() - set(ignored):
        assert one.record[key] == other.record[key], key


def test_a_run_equals_itself_in_another_folder(train: Train):
    overrides = ("task.model.drop_path_rate=0.2", "data.mixup=0.4", "conditioning=polar_every_step")
    assert_same(train(*overrides), train(*overrides, runs="again"))


def test_lambda_zero_equals_the_baseline_bit_for_bit(train: Train):
    zero = train("conditioning=identity", "conditioning.lam=0", runs="zero")
    assert_same(train("conditioning=none"), zero)
    assert zero.record["arm"] == "baseline"
    assert zero.record["conditioning"] is None
    assert zero.record["projections"] == 0


def test_arms_share_initial_weights_order_and_data_but_not_results(train: Train):
    arms = [train(), train("conditioning=identity", "conditioning.lam=1"), train("conditioning=polar")]
    assert len({json.dumps(arm.record["hashes"]) for arm in arms}) == 1
    assert [arm.record["projections"] for arm in arms] == [0, 3, 3]
    assert len({arm.record["metrics"]["val/loss"] for arm in arms}) == 3


def test_the_baseline_refuses_conditioned_weights_even_when_not_strict(train: Train):
    model = load_run_model(train().folder)
    with pytest.raises(SpectralError, match="conditioned in the checkpoint"):
        model.load_state_dict(weights(train("conditioning=identity")), strict=False)


def test_products_in_float32_are_an_arm_of_their_own(train: Train, tiny: Make):
    overrides = ("conditioning=identity", "trainer.precision=bf16-mixed")
    arms = [train(*overrides), train(*overrides, "conditioning.float32_projection=true")]
    assert [arm.record["arm_id"] for arm in arms] == ["identity-10", "identity-10-float32"]
    assert len({arm.record["metrics"]["val/loss"] for arm in arms}) == 2
    assert len({arm.record["hashes"]["pair"] for arm in arms}) == 1


def test_seeds_differ_in_weights_and_order(train: Train):
    one, other = train(), train("seed=1")
    assert one.record["hashes"]["initial_weights"] != other.record["hashes"]["initial_weights"]
    assert one.record["hashes"]["order"] != other.record["hashes"]["order"]


def test_a_sweep_in_one_process_leaves_the_baseline_plain(train: Train, caplog: pytest.LogCaptureFixture):
    alone = train(runs="alone")
    with caplog.at_level("INFO"):
        train("conditioning=identity")
        assert_same(alone, train())
    said = [item.message for item in caplog.records if "projections corrected" in item.message]
    assert [re.findall(r"(\d+) projections", line)[0] for line in said] == ["3", "0"]
    assert "identity λ=10" in said[0]


def test_the_optimizer_treats_each_parameter_alike_in_both_arms(tiny: Make):
    """Conditioning keeps the names that rules about weight decay go by."""

    def treatment(arm: str) -> dict[str, float]:
        module = prepare(tiny(f"conditioning={arm}", "optim.weight_decay=0.1")).module
        names = {id(parameter): name for name, parameter in module.model.named_parameters()}
        optimizer = module.configure_optimizers()["optimizer"]
        return {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}

    baseline = treatment("none")
    assert baseline["blocks.0.attn.qkv.weight"] == 0.1
    assert baseline["blocks.0.attn.qkv.bias"] == baseline["cls_token"] == 0
    assert all(treatment(arm) == baseline for arm in ("identity", "polar", "shifted_start"))


class Killed(BaseException):
    """Stands for a process that ends here."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Record.on_train_batch_end

    def dies(self: Record, trainer: Any, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == step:
            raise Killed

    monkeypatch.setattr(Record, "on_train_batch_end", dies)


@pytest.mark.parametrize("step", [1, 3, 4, 5])
@pytest.mark.parametrize(
    "overrides",
    [
        ("conditioning=identity", "optim.ema_decay=0.5", "optim.report=ema", "data.mixup=0.4"),
        ("conditioning=polar_every_step", "trainer.accumulate=2", "task.model.drop_path_rate=0.2"),
        ("conditioning=shifted_start", "trainer.log_every=4", "evaluate.every_steps=4", "evaluate.spectra=3"),
    ],
    ids=["ema", "accumulate", "log"],
)
def test_a_killed_run_ends_as_an_unbroken_one(
    overrides: tuple[str, ...], step: int, train: Train, monkeypatch: pytest.MonkeyPatch
):
    unbroken = train(*overrides, runs="unbroken")
    with monkeypatch.context() as patch:
        killed_at(step, patch)
        with pytest.raises(Killed):
            train(*overrides)
    assert_same(unbroken, train(*overrides))


def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    unbroken = train(runs="unbroken")
    with monkeypatch.context() as patch:
        killed_at(5, patch)
        with pytest.raises(Killed):
            train()
    (newest,) = tmp_path.glob("runs/**/step-4.ckpt")
    newest.write_bytes(newest.read_bytes()[:-100])
    assert_same(unbroken, train())


def test_a_finished_run_is_left_alone(train: Train, capsys: pytest.CaptureFixture[str]):
    first = train()
    stamp = (first.folder / "result.json").stat().st_mtime_ns
    again = train()
    assert again.status == "already"
    assert "already finished" in capsys.readouterr().out
    assert (first.folder / "result.json").stat().st_mtime_ns == stamp


def test_a_diverging_run_is_recorded_as_that(train: Train):
    outcome = train("optim.lr=1e30", "optim.clip_norm=null", "evaluate.spectra=3")
    assert outcome.status == "diverged"
    record = json.loads((outcome.folder / "result.json").read_text())
    assert record["status"] == "diverged"
    assert record["primary"]["value"] is None
    assert record["diverged_at"] == lines(outcome)[-1]["step"]


def test_a_diverged_run_pairs_with_its_baseline(train: Train, tmp_path: Path):
    """It saw fewer batches by its nature; refusing it for that would hide the arm that failed."""
    train()
    failed = train("conditioning=identity", "conditioning.lam=1e25")
    assert failed.status == "diverged"
    comparison = compare([tmp_path / "runs"])
    assert not comparison.left_out()
    (table,) = comparison.tables
    assert [[run.diverged for run in arm.runs] for arm in table.all_arms] == [[False], [True]]


def test_budget_in_steps_and_epochs_agree(train: Train):
    per_epoch = 1297 // 32
    outcome = train("budget={steps: null, epochs: 0.1, tokens: null}")
    assert outcome.record["steps"] == round(0.1 * per_epoch)
    assert outcome.record["samples_seen"] == outcome.record["steps"] * 32


def test_the_last_step_is_validated_and_reported(train: Train):
    outcome = train("evaluate.every_steps=4")
    validated = [line for line in lines(outcome) if line["split"] == "val"]
    assert [line["step"] for line in validated] == [4, 6]
    assert outcome.record["primary"]["step"] == 6
    assert outcome.record["primary"]["value"] == validated[-1]["accuracy"]


def test_reported_weights_give_the_reported_accuracy_when_read_back(train: Train, tiny: Make):
    outcome = train("conditioning=polar", "optim.ema_decay=0.5", "optim.report=ema")
    model = load_run_model(outcome.folder)
    from spectral_conditioning.tasks.registry import load_task

    data = load_task("imagenet").load_data(tiny())
    images, labels = zip(*(data.val[i] for i in range(len(data.val))), strict=True)
    with torch.no_grad():
        predicted = model(torch.stack(list(images))).argmax(1)
    accuracy = (predicted == torch.tensor([int(label) for label in labels])).double().mean()
    assert float(accuracy) == pytest.approx(outcome.record["primary"]["value"], abs=1e-12)


def test_ema_and_raw_weights_are_told_apart(train: Train):
    raw, ema = train("optim.ema_decay=0.5"), train("optim.ema_decay=0.5", "optim.report=ema")
    assert (raw.record["primary"]["weights"], ema.record["primary"]["weights"]) == ("raw", "ema")
    assert raw.record["metrics"]["val/loss"] != ema.record["metrics"]["val/loss"]


def test_the_reported_average_is_the_average_and_gives_the_reported_loss(
    train: Train, tiny: Make, monkeypatch: pytest.MonkeyPatch
):
    after_step: list[dict[str, torch.Tensor]] = []
    original = Record.on_train_batch_end

    def keeps(self: Record, trainer: Any, module: Any, *rest: Any) -> None:
        original(self, trainer, module, *rest)
        if trainer.global_step > len(after_step):
            after_step.append({name: value.detach().clone() for name, value in module.model.named_parameters()})

    monkeypatch.setattr(Record, "on_train_batch_end", keeps)
    outcome = train(
        "conditioning=identity_fused",
        "optim.lr=0.03",
        "optim.ema_decay=0.75",
        "optim.report=ema",
        "trainer.accumulate=2",
    )
    expected = after_step[0]
    for raw in after_step[1:]:
        expected = {name: 0.75 * value + 0.25 * raw[name] for name, value in expected.items()}
    assert len(after_step) == 6
    for name, value in expected.items():
        torch.testing.assert_close(weights(outcome)[name], value, rtol=0, atol=1e-6)

    model = load_run_model(outcome.folder)
    val = prepare(tiny()).data.val
    images, labels = zip(*(val[i] for i in range(len(val))), strict=True)

    def loss() -> float:
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(torch.stack(images)), torch.tensor(labels)))

    reported = outcome.record["metrics"]["val/loss"]
    assert loss() == pytest.approx(reported, rel=1e-5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(after_step[-1][name])
    assert loss() != pytest.approx(reported, rel=1e-3)


def test_an_unwritable_folder_is_one_message(tiny: Make, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match=r"cannot write the run folder .*paths\.runs="):
        run(tiny(f"paths.runs={tmp_path / 'file'}"))


def test_a_folder_in_use_is_refused(tiny: Make, train: Train):
    from spectral_conditioning.training.identity import run_folder

    with RunFolder(run_folder(tiny())), pytest.raises(RecordError, match="in use by process"):
        train()
    assert train().status == "finished"


def test_bad_data_leaves_no_folder(tiny: Make, tmp_path: Path):
    with pytest.raises(SpectralError):
        run(tiny("data.batch_size=5000"))
    with pytest.raises(DataError):
        run(tiny("experiment=imagenet/flowers", f"data.path={tmp_path / 'missing.zip'}"))
    assert not (tmp_path / "runs").exists()


def test_a_batch_out_of_order_stops_the_run(train: Train, monkeypatch: pytest.MonkeyPatch):
    original = RecordOrder.on_train_batch_start

    def swapped(self: RecordOrder, trainer: Any, module: Any, batch: Any, index: int) -> None:
        original(self, trainer, module, batch._replace(index=batch.index.flip(0)), index)

    monkeypatch.setattr(RecordOrder, "on_train_batch_start", swapped)
    with pytest.raises(RuntimeError, match="same order"):
        train()


def test_a_saturated_start_is_said_before_the_first_step(train: Train, caplog: pytest.LogCaptureFixture):
    outcome = train("conditioning=identity", "conditioning.lam=30", "task.model.num_heads=1")
    assert outcome.record["saturation"]["saturated"] > 0
    warnings = [item.message for item in caplog.records if item.levelname == "WARNING"]
    assert any("identity" in message for message in warnings)
    caplog.clear()
    assert train().record["saturation"]["saturated"] == 0


def test_recording_spectra_changes_nothing_else_and_gives_the_papers_curves(train: Train):
    plain, recorded = train("evaluate.spectra=0"), train("evaluate.spectra=3", runs="recorded")
    spectra = [line for line in lines(recorded) if line["split"] == "spectra"]
    assert [line for line in lines(recorded) if line["split"] != "spectra"] == lines(plain)
    assert [line["step"] for line in spectra] == [0, 2, 4, 6]
    assert all(torch.equal(value, weights(recorded)[name]) for name, value in weights(plain).items())
    assert {"sigma_min/q", "kappa_w/v", "kappa_head/k", "kappa_j", "attention_entropy"} <= set(spectra[0])
    assert plain.record["seconds"]["spectra"] == 0
    assert 0 < recorded.record["seconds"]["spectra"] < recorded.record["seconds"]["train"]
    assert plain.folder.name == recorded.folder.name


def test_spectra_are_recorded_unless_switched_off():
    assert compose_run(["experiment=imagenet/vit_b", "data.path=nowhere"]).evaluate.spectra == 8
    # A fine-tuning on RTE takes less time than nine recordings.
    glue = ["experiment=cramming/glue", "task.model.glue_task=rte", "init.weights=runs/x", "data.path=glue"]
    assert compose_run(glue).evaluate.spectra == 0


def test_the_first_spectra_are_those_of_w_plus_c(train: Train):
    outcome = train("conditioning=polar", "evaluate.spectra=1")
    first = next(line for line in lines(outcome) if line["split"] == "spectra")
    # Theorem 3.5: every singular value of W lifted by the largest.
    assert all(1 <= first[f"kappa_w/{role}"] <= 2.01 for role in "qkv")


def test_a_gpu_that_is_not_there_is_one_message_and_leaves_no_folder(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpectralError, match="no GPU is visible"):
        run(tiny("trainer=gpu", "trainer.progress=none"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("clip", ["optim.clip_norm=0.5", "optim.clip_value=0.5"])
def test_mixed_precision_and_clipping_go_together(clip: str, train: Train):
    # Lightning refuses to clip for an optimizer that unscales by itself, which every fused one does.
    outcome = train("trainer.precision=bf16-mixed", clip, "budget.steps=2")
    assert outcome.status == "finished"
