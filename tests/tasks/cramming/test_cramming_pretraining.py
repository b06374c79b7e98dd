"""Laws of pretraining: one mean over a step's masked tokens, however it is split; exact budgets; exact resumption."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.errors import ConfigError, DataError
from spectral_conditioning.tasks.cramming.architectures import build_language_model
from spectral_conditioning.tasks.cramming.config import ModelConfig
from spectral_conditioning.tasks.cramming.pretraining import NOT_COUNTED, Masked, PretrainingModule
from spectral_conditioning.tasks.cramming.token_store import TokenStore
from spectral_conditioning.tasks.optim import OptimConfig, build_optimizer, triangle_factor
from spectral_conditioning.training import fit as fit_module
from spectral_conditioning.training.callbacks import RecordOrder
from spectral_conditioning.training.prepare import load_run_model
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig

Make = Callable[..., RunConfig]
Train = Callable[..., Outcome]
V, N = 40, 12


def module(micro_batch_size: int | None) -> PretrainingModule:
    torch.manual_seed(0)
    sizes = ModelConfig(layers=1, width=16, heads=2, ffn=32, length=N)
    model = build_language_model(sizes, vocabulary=V, length=N).double()
    return PretrainingModule(model, optim=OptimConfig(), total_steps=1, micro_batch_size=micro_batch_size)


def gradients(micro_batch_size: int | None, masked: Masked) -> list[Tensor]:
    training = module(micro_batch_size)
    training.accumulate(masked)
    return [parameter.grad for parameter in training.parameters() if parameter.grad is not None]


def test_gradient_does_not_depend_on_the_split() -> None:
    """Sequences with 1 and 9 counted tokens, as 1 × 2 and 2 × 1: a mean of means would weigh the lonely token nine times."""
    torch.manual_seed(1)
    positions = torch.stack([torch.randperm(N)[:9].sort().values for _ in range(2)])
    labels = torch.randint(V, (2, 9))
    labels[0, 1:] = NOT_COUNTED
    masked = Masked(torch.randint(V, (2, N)), positions, labels)
    whole, split = gradients(None, masked), gradients(1, masked)
    for a, b in zip(whole, split, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)

    reference = module(None)
    logits = torch.stack([reference.model(masked.ids)[b, positions[b]] for b in range(2)])
    counted = labels != NOT_COUNTED
    F.cross_entropy(logits[counted].float(), labels[counted]).backward()
    for a, parameter in zip(whole, reference.parameters(), strict=True):
        torch.testing.assert_close(a, parameter.grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "aot_eager"),
        pytest.param("cuda", "inductor", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    ],
)
def test_a_compiled_model_accumulates_the_same_gradients(device: str, backend: str) -> None:
    """Four micro-batches; of compiled graphs that reuse memory, wrong sums were reported (pytorch 96693)."""
    torch.manual_seed(1)
    positions = torch.stack([torch.randperm(N)[:9].sort().values for _ in range(4)])
    masked = Masked(*(t.to(device) for t in (torch.randint(V, (4, N)), positions, torch.randint(V, (4, 9)))))
    found = []
    for compiled in (False, True):
        training = module(1).float().to(device)
        if compiled:
            training.model.compile(backend=backend)
        training.accumulate(masked)
        found.append({name: parameter.grad for name, parameter in training.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_groups_of_the_recipe(tiny: Make) -> None:
    """Names with `bias` or `norm` are spared; everything else decays by 0.01, the scalar of the positions included."""
    config = tiny()
    model = build_language_model(ModelConfig(layers=1, width=16, heads=2, ffn=32), vocabulary=V, length=N)
    training = PretrainingModule(model, optim=config.optim, total_steps=1, micro_batch_size=None)
    optimizer, _ = build_optimizer(training, config.optim, total_steps=1, no_decay=training.no_decay())
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in training.named_parameters():
        assert decay[id(parameter)] == (0.0 if "bias" in name or "norm" in name else 0.01), name
    assert decay[id(training.get_parameter("model.positions.scale"))] == 0.01
    assert optimizer.defaults["betas"] == (0.9, 0.98)
    assert optimizer.defaults["eps"] == 1e-12


def lines(outcome: Outcome, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def test_micro_batches_train_the_same_model(train: Train) -> None:
    whole = train("trainer.precision=64-true", runs="whole")
    split = train("trainer.precision=64-true", "data.micro_batch_size=3", runs="split")
    for a, b in zip(lines(whole, "train"), lines(split, "train"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)


def test_recorded_loss_is_that_of_the_reported_weights_and_chance_is_the_unigram_entropy(
    train: Train, store: TokenStore
) -> None:
    from spectral_conditioning.tasks.cramming.pretrained import _run as as_pretrained
    from spectral_conditioning.tasks.cramming.pretrained import masked_lm_loss, read_run

    outcome = train("conditioning=identity")
    assert outcome.record["primary"]["name"] == "val/loss"
    assert outcome.record["chance"] == store.unigram_entropy
    pretrained = as_pretrained(outcome.folder, *read_run(outcome.folder))
    measured = masked_lm_loss(load_run_model(outcome.folder), pretrained)
    assert measured == pytest.approx(outcome.record["metrics"]["val/loss"], rel=1e-6)
    assert lines(outcome, "val")[-1]["loss"] == outcome.record["metrics"]["val/loss"]


def test_the_baseline_learns_more_than_word_frequencies(train: Train, store: TokenStore) -> None:
    outcome = train("budget.steps=200", "evaluate.every_steps=200", "data.mask_rate=0.15", "optim.lr=1e-2")
    assert outcome.record["metrics"]["val/loss"] < 0.85 * store.unigram_entropy


RAMP = ("data.ramp=0.6", "data.ramp_unit=2", "data.batch_size=12", "data.micro_batch_size=5")


class Killed(Exception):
    pass


def killed_at(step: int, patch: pytest.MonkeyPatch) -> None:
    original = RecordOrder.on_train_batch_start

    def dying(self: RecordOrder, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == step:
            raise Killed
        original(self, trainer, *rest)

    patch.setattr(RecordOrder, "on_train_batch_start", dying)


@pytest.mark.parametrize("step", [3, 7])
def test_a_killed_pretraining_goes_on_exactly(train: Train, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    overrides = (*RAMP, "budget.steps=9", "task.model.dropout=0.1", "conditioning=identity", "conditioning.lam=0.1")
    unbroken = train(*overrides, runs="unbroken")
    with monkeypatch.context() as patch:
        killed_at(step, patch)
        with pytest.raises(Killed):
            train(*overrides)
    resumed = train(*overrides)
    assert resumed.record["metrics"] == unbroken.record["metrics"]
    assert resumed.record["hashes"] == unbroken.record["hashes"]
    for split in ("train", "val"):
        assert lines(resumed, split) == lines(unbroken, split)
    a, b = (torch.load(o.folder / "checkpoints/reported.ckpt", weights_only=True) for o in (unbroken, resumed))
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name


def test_ramped_batches_are_counted_and_the_rate_follows_the_samples(train: Train, tiny: Make) -> None:
    from spectral_conditioning.tasks.ramp import Ramp, plan_batches

    outcome = train(*RAMP, f"budget={{steps: null, epochs: null, tokens: {400 * 32}}}")
    plan = plan_batches(Ramp(unit=2, until=0.6), batch_size=12, samples=400)
    assert outcome.record["steps"] == plan.steps
    assert outcome.record["samples_seen"] == plan.starts[-1]
    assert outcome.record["tokens_seen"] == plan.starts[-1] * 32
    optim = tiny(*RAMP).optim
    for line in lines(outcome, "train"):
        factor = triangle_factor(plan.samples_before(line["step"]), optim, plan.starts[-1])
        assert line["lr"] == pytest.approx(optim.lr * factor, abs=1e-12)
    assert lines(outcome, "train")[-1]["lr"] == 0
    assert lines(outcome, "train")[-1]["epoch"] == pytest.approx(
        plan.starts[-1] / outcome.record["scale"]["train_samples"], abs=1e-6
    )


def test_a_slower_arm_gets_the_same_steps_and_the_same_final_rate(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budgets are never wall-clock time, which would give the slower arm less training."""
    fast = train(*RAMP)
    step = PretrainingModule.training_step

    def slow(self: PretrainingModule, *arguments: Any) -> Any:
        time.sleep(0.05)
        return step(self, *arguments)

    monkeypatch.setattr(PretrainingModule, "training_step", slow)
    slowed = train(*RAMP, "conditioning=identity")
    for key in ("steps", "samples_seen", "tokens_seen"):
        assert slowed.record[key] == fast.record[key]
    assert lines(slowed, "train")[-1]["lr"] == lines(fast, "train")[-1]["lr"]
    assert slowed.record["hashes"] == fast.record["hashes"]


def test_gradients_are_clipped_by_norm(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    clip = nn.utils.clip_grad_norm_

    def measured(parameters: Any, norm: float) -> Tensor:
        held = list(parameters)
        before = clip(held, norm)
        after = torch.stack([p.grad.norm() for p in held if p.grad is not None]).norm()
        norms.append(float(after))
        assert float(after) == pytest.approx(min(float(before), norm), rel=1e-4)
        return before

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", measured)
    train("optim.clip_norm=0.05")
    assert norms[0] == pytest.approx(0.05, rel=1e-4)
    assert len(norms) == 6


def test_a_scaler_skips_a_step_with_infinite_gradients_and_it_is_counted(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16's scaler on the CPU: it starts far too high, so the first steps overflow and must leave the weights alone."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)

    def scaled(*args: Any, precision: str, plugins: list[Any], **kwargs: Any) -> Trainer:
        return Trainer(*args, plugins=[*plugins, MixedPrecision("16-mixed", "cpu", scaler)], **kwargs)

    weights: list[Tensor] = []
    step = PretrainingModule.training_step

    def watched(self: PretrainingModule, *arguments: Any) -> Any:
        weights.append(self.model.get_parameter("embedding.weight").detach().clone())
        return step(self, *arguments)

    monkeypatch.setattr(PretrainingModule, "training_step", watched)
    monkeypatch.setattr(fit_module, "Trainer", scaled)
    outcome = train("budget.steps=12", "evaluate.every_steps=12", "trainer.precision=16-mixed")
    skipped = sum(torch.equal(a, b) for a, b in itertools.pairwise(weights))
    assert 1 <= skipped < 11
    assert outcome.record["skipped_steps"] == skipped
    assert outcome.record["status"] == "finished"
    assert outcome.record["steps"] == 12
    assert math.isfinite(outcome.record["metrics"]["val/loss"])


def test_what_does_not_fit_is_said_at_once(tiny: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(
            "data.mask_rate=0",
            "trainer.accumulate=2",
            "task.model.heads=5",
            "optim.schedule=cosine",
            "data.order=sorted",
        )
    said = str(caught.value)
    for part in ("data.mask_rate is 0", "trainer.accumulate is 2", "task.model.heads (5)", "optim.schedule", "'stored"):
        assert part in said or part.strip("'") in said


def test_data_that_does_not_fit_leaves_no_folder(tiny: Make, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"task\.model\.vocabulary is 999, but the tokenizer of .* has 270"):
        run(tiny("task.model.vocabulary=999"))
    with pytest.raises(DataError, match=r"sequences of 32 tokens, but data\.length is 64"):
        run(tiny("data.length=64"))
    assert not (tmp_path / "runs").exists()


def test_spectra_are_recorded(train: Train) -> None:
    outcome = train("evaluate.spectra=2", "conditioning=polar")
    lines = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    spectra = [line for line in lines if line["split"] == "spectra"]
    assert [line["step"] for line in spectra] == [0, 3, 6]
    # Theorem 3.5 before the first step.
    assert all(1 <= spectra[0][f"kappa_w/{role}"] <= 2.01 for role in "qkv")
    assert all(line["kappa_j"] > 1 and 0 < line["attention_entropy"] <= 1 for line in spectra)
    assert 0 < outcome.record["seconds"]["spectra"] < outcome.record["seconds"]["train"]
