"""Laws of the experiment files: each builds the published network, conditions the right projections and trains both arms alike."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.imagenet.config import ModelConfig
from spectral_conditioning.tasks.imagenet.model import build_classifier
from spectral_conditioning.tasks.imagenet.module import ClassificationModule
from spectral_conditioning.tasks.imagenet.task import TASK
from spectral_conditioning.tasks.optim import cosine_factor
from spectral_conditioning.training.compose import compose_run, config_directory
from spectral_conditioning.training.schema import RunConfig

FAMILY = config_directory() / "experiment/imagenet"
# Parameters in millions as published (DeiT, Swin, XCiT, DaViT papers), projections (3 an attention block), epochs, batch, peak rate.
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


@pytest.fixture(scope="module", params=PAPER)
def arms(request: pytest.FixtureRequest) -> tuple[str, RunConfig, ModelConfig, nn.Module]:
    config = composed(request.param)
    seed_all(0, "init")
    return request.param, config, config.task.model, build_classifier(config.task.model, outputs=1000)


def test_parameters_and_projections_are_the_published_ones(arms: tuple[str, RunConfig, ModelConfig, nn.Module]) -> None:
    name, _, _, model = arms
    millions, projections, *_ = PAPER[name]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert round(parameters / 1e6, 1) == millions
    report = condition(model, IDENTITY)
    assert report.count == projections
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
