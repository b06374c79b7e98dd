"""Schedules against the libraries and formulas they are named after; groups by what they hold."""

import math

import pytest
import torch
from timm.scheduler import CosineLRScheduler
from torch import nn

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.optim import OptimConfig, build_optimizer, parameter_groups


def rates(optim: OptimConfig, steps: int) -> list[float]:
    """The rate used at each step."""
    optimizer, schedule = build_optimizer(nn.Linear(2, 2), optim, total_steps=steps, no_decay=set())
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [*seen, optimizer.param_groups[0]["lr"]]


@pytest.mark.parametrize("prefix", [False, True])
def test_cosine_equals_timm(prefix: bool):
    optim = OptimConfig(lr=1e-3, min_lr=1e-5, warmup_lr=1e-6, warmup_steps=5, warmup_prefix=prefix)
    steps = 40
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-3)
    timm = CosineLRScheduler(
        optimizer, t_initial=steps - 5 * prefix, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6, warmup_prefix=prefix,
        t_in_epochs=False,
    )  # fmt: skip
    expected = []
    for step in range(steps):
        timm.step_update(step)
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates(optim, steps)[:steps] == pytest.approx(expected, rel=1e-12)


def test_cosine_ends_at_its_minimum():
    assert rates(OptimConfig(lr=1e-3, min_lr=1e-5, warmup_steps=2), 20)[-1] == pytest.approx(1e-5, rel=1e-12)


def test_triangle_starts_at_a_quarter_peaks_at_three_quarters_and_ends_at_zero():
    seen = rates(OptimConfig(lr=1.0, schedule="triangle"), 100)
    assert (seen[0], seen[75], seen[100]) == (0.25, 1.0, 0.0)
    assert max(seen) == seen[75]


def test_multistep_drops_to_a_tenth_at_each_milestone():
    seen = rates(
        OptimConfig(lr=1.0, schedule="multistep", milestones=(0.75, 11 / 12), warmup_steps=2, warmup_lr=0.0), 36
    )
    assert seen[:4] == [0.0, 0.5, 1.0, 1.0]
    assert (seen[26], seen[27], seen[33]) == pytest.approx((1.0, 0.1, 0.01))


def test_onecycle_peaks_after_its_warm_up_and_cycles_momentum():
    optim = OptimConfig(lr=1e-2, schedule="onecycle", warmup_steps=10, betas=(0.9, 0.999))
    optimizer, schedule = build_optimizer(nn.Linear(2, 2), optim, total_steps=40, no_decay=set())
    seen = []
    for _ in range(40):
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]))
        optimizer.step()
        schedule.step()
    peak = max(range(40), key=lambda step: seen[step][0])
    assert abs(peak - 10) <= 1
    assert seen[0][0] == pytest.approx(1e-2 / 25)
    assert seen[0][1] == pytest.approx(0.95)
    assert min(beta for _, beta in seen) == pytest.approx(0.85, abs=0.01)


def test_unknown_schedule_names_the_nearest():
    with pytest.raises(ConfigError, match="closest 'cosine'"):
        build_optimizer(nn.Linear(2, 2), OptimConfig(schedule="cosin"), total_steps=4, no_decay=set())


def test_vectors_biases_and_named_parameters_are_spared_and_nothing_is_lost():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    model.register_parameter("position", nn.Parameter(torch.zeros(2, 2)))
    groups = parameter_groups(model, weight_decay=0.1, no_decay={"position"}, decay_vectors=False)
    sizes = {group["weight_decay"]: sum(p.numel() for p in group["params"]) for group in groups}
    assert sizes == {0.1: 3 * 4 + 4 * 2, 0.0: 4 + 8 + 4}
    everything = parameter_groups(model, weight_decay=0.1, no_decay=set(), decay_vectors=True)
    assert math.fsum(p.numel() for group in everything for p in group["params"]) == 36
    assert [group["weight_decay"] for group in everything] == [0.1]
