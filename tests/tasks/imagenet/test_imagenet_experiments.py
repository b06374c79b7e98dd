"""Laws of the experiment files: each builds the published network, conditions its projections and trains with its recipe."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.conditioning.layouts import find_attention
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.base import TaskData
from spectral_conditioning.tasks.imagenet.model import build_classifier
from spectral_conditioning.tasks.imagenet.task import TASK
from spectral_conditioning.tasks.optim import cosine_factor
from spectral_conditioning.training.compose import compose_run, config_directory
from spectral_conditioning.training.schema import RunConfig

FAMILY = config_directory() / "experiment/imagenet"
# Parameters in millions as published, projections (3 an attention block), epochs, batch, peak rate.
PAPER = {
    "vit_b": (86.6, 36, 300, 4096, 3e-3),
    "deit_b": (86.6, 36, 300, 1024, 1e-3),
    "swin_b": (87.8, 72, 300, 1024, 1e-3),
    "xcit_m": (84.4, 78, 400, 1024, 1e-3),
    "davit_b": (88.0, 72, 300, 1024, 1e-3),
}
SMALL = {"small": ["data=digits"], "flowers": ["data.path=flowers.zip"]}
IDENTITY = Conditioning(correction="identity", lam=10.0)


def composed(name: str) -> RunConfig:
    return compose_run([f"experiment=imagenet/{name}", *SMALL.get(name, [])])


def test_every_file_on_disk_is_tested_here() -> None:
    assert {path.stem for path in FAMILY.glob("*.yaml")} == {*PAPER, *SMALL}


@pytest.mark.parametrize("name", [*PAPER, *SMALL])
def test_header_says_what_a_reader_needs(name: str) -> None:
    header = [line for line in (FAMILY / f"{name}.yaml").read_text().splitlines() if line.startswith("# ")]
    for word in ("command:", "hardware:", "score:", "inferred:"):
        assert any(line.startswith(f"# {word}") for line in header), word
    command = next(line for line in header if line.startswith("# command:"))
    assert f"experiment=imagenet/{name}" in command


@pytest.mark.parametrize("name", PAPER)
def test_values_of_the_recipe(name: str) -> None:
    _, _, epochs, batch, rate = PAPER[name]
    config = composed(name)
    assert (config.name, config.budget.epochs, config.budget.steps) == (f"imagenet/{name}", epochs, None)
    assert (config.data.batch_size, config.optim.lr) == (batch, rate)
    assert config.data.augment
    assert config.data.cutmix == 1.0
    # The rate starts and ends where the recipe says, and peaks at the end of the warm-up.
    optim = dataclasses.replace(config.optim, warmup_steps=1000)
    rates = [optim.lr * cosine_factor(step, optim, 20_000) for step in (0, 1000, 20_000)]
    peak = rate if optim.warmup_prefix else pytest.approx(rate, rel=0.01)
    assert rates == [pytest.approx(optim.warmup_lr), peak, pytest.approx(optim.min_lr, abs=1e-12)]


def corrections(model: nn.Module) -> dict[str, Tensor]:
    """Return effective minus stored weight of every projection."""
    return {
        f"{attention.name}.{role}": projection.effective() - projection.stored()
        for attention in find_attention(model)
        for role, projection in attention.projections.items()
    }


def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{attention.name}.{role}": projection.stored().clone()
        for attention in find_attention(model)
        for role, projection in attention.projections.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_published_network_conditions_and_takes_two_steps(name: str) -> None:
    millions, projections, *_ = PAPER[name]
    config = composed(name)
    seed_all(0, "init")
    model = build_classifier(config.task.model, outputs=1000)
    names = list(dict(model.named_parameters()))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert round(parameters / 1e6, 1) == millions

    plain = stored_weights(model)
    report = condition(model, IDENTITY)
    assert report.count == len(plain) == projections
    assert list(dict(model.named_parameters())) == names
    before, fixed = stored_weights(model), corrections(model)
    assert all(torch.equal(before[key], plain[key]) for key in plain)
    for key, correction in fixed.items():
        assert correction.diagonal().mean().item() == pytest.approx(10.0, abs=1e-4), key

    data = TaskData(train=[], val=[], fingerprint="", chance={}, outputs=1000, description="")  # type: ignore[arg-type]
    recipe = dataclasses.replace(config, optim=dataclasses.replace(config.optim, warmup_steps=1, warmup_lr=1e-4))
    module = TASK.build_module(recipe, model, data, total_steps=100)
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(2, 3, 224, 224, generator=draw), torch.tensor([3, 997])
    for step in range(2):
        seed_all(0, "step", step)
        loss = module.training_losses(samples)["loss"]
        assert 0 < loss.item() < 50
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    after = stored_weights(model)
    assert all(not torch.equal(after[key], before[key]) for key in before)
    assert all(torch.allclose(change, fixed[key], atol=1e-5) for key, change in corrections(model).items())
