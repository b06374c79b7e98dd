"""Laws of training: the shifted start, weight decay, refreshing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectral_conditioning import (
    ConditioningError,
    Refresher,
    attach_decay,
    condition,
    conditioned_layers,
    find_attention,
    refresh,
)

STEPS = 20


class Net(nn.Module):
    """Attention and a head, in float64: small enough that 20 steps compare to 1e-9."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, bias=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS, after: Callable[[], Any] | None = None
) -> list[Tensor]:
    """Return the outputs at every step."""
    generator = torch.Generator().manual_seed(7)
    outputs = []
    for _ in range(steps):
        x = torch.randn(8, 5, 16, generator=generator, dtype=torch.float64)
        target = torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        logits = model(x)
        nn.functional.cross_entropy(logits, target).backward()
        optimizer.step()
        if after is not None:
            after()
        outputs.append(logits.detach())
    return outputs


def shifted(model: Net, conditioned: Net) -> Net:
    """Return the plain model that starts from W₀ + C."""
    start = copy.deepcopy(model)
    with torch.no_grad():
        start.attention.in_proj_weight.copy_(conditioned.attention.in_proj_weight)
    return start


SETTINGS = [
    {"lam": 1.0},
    {"lam": 1.0, "placement": "per_head"},
    {"correction": "polar", "lam": 1.0},
    {"correction": "scaled_identity", "lam": 2.0},
    {"correction": "orthogonal", "lam": 1.0},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_without_decay_training_equals_a_shifted_start(net: Net, settings: dict[str, Any]) -> None:
    model = copy.deepcopy(net)
    condition(model, **settings)
    reference = shifted(net, model)
    one = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0))
    two = train(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.0))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    effective = model.attention.effective_weight("in_proj_weight")
    torch.testing.assert_close(effective, reference.attention.in_proj_weight, rtol=0, atol=1e-9)
    assert (one[-1] - one[0]).abs().max() > 0.1


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam])
def test_decay_toward_zero_equals_decay_of_a_shifted_start(net: Net, settings: dict[str, Any], make: Any) -> None:
    model = copy.deepcopy(net)
    condition(model, decay_toward="zero", **settings)
    reference = shifted(net, model)
    decoupled = {} if make is torch.optim.AdamW else {"decoupled_weight_decay": True}

    def optimizer(network: Net) -> torch.optim.Optimizer:
        groups = [
            {"params": network.attention.parameters(), "weight_decay": 0.5},
            {"params": network.head.parameters(), "weight_decay": 0.1, "lr": 1e-3},
        ]
        return make(groups, lr=1e-2, **decoupled)

    first, second = optimizer(model), optimizer(reference)
    attach_decay(model, first)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (first, second)]
    one, two = train(model, first, after=schedules[0].step), train(reference, second, after=schedules[1].step)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    effective = model.attention.effective_weight("in_proj_weight")
    torch.testing.assert_close(effective, reference.attention.in_proj_weight, rtol=0, atol=1e-9)


def test_decay_toward_the_correction_acts_on_the_stored_weight(net: Net) -> None:
    """With zero gradients only decay acts: W shrinks by 1 − η w a step and W + C moves toward C."""
    for toward, expected_of in (
        ("correction", lambda w, c: w * 0.99 + c),
        ("zero", lambda w, c: (w + c) * 0.99),
    ):
        model = copy.deepcopy(net)
        condition(model, lam=1.0, decay_toward=toward)
        layer = model.attention
        weight, correction = layer.trained_weight("in_proj_weight").detach().clone(), layer.correction("in_proj_weight")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
        handle = attach_decay(model, optimizer)
        assert (handle is None) == (toward == "correction")
        layer.trained_weight("in_proj_weight").grad = torch.zeros_like(weight)
        optimizer.step()
        expected = expected_of(weight, correction)
        torch.testing.assert_close(layer.effective_weight("in_proj_weight"), expected, rtol=0, atol=1e-14)


def test_decay_of_a_tied_weight_is_added_once() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList(nn.MultiheadAttention(16, 2, bias=False).double() for _ in range(2))
    model[1].in_proj_weight = model[0].in_proj_weight
    condition(model, lam=1.0, decay_toward="zero")
    before = model[0].effective_weight("in_proj_weight").detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    attach_decay(model, optimizer)
    weight = model[0].trained_weight("in_proj_weight")
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for layer in model:
        torch.testing.assert_close(layer.effective_weight("in_proj_weight"), 0.99 * before, rtol=0, atol=1e-14)


def test_no_decay_for_weights_that_were_not_stepped(net: Net) -> None:
    condition(net, lam=1.0, decay_toward="zero")
    before = net.attention.effective_weight("in_proj_weight").detach().clone()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    attach_decay(net, optimizer)
    net.head(torch.ones(1, 16, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert torch.equal(net.attention.effective_weight("in_proj_weight"), before)


def test_optimizers_whose_decay_is_not_exact_are_refused_by_name(net: Net) -> None:
    condition(net, lam=1.0, decay_toward="zero")
    for optimizer, name in (
        (torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1), "SGD"),
        (torch.optim.Adam(net.parameters(), weight_decay=0.1), "Adam adds its decay to the gradient"),
    ):
        with pytest.raises(ConditioningError, match=name):
            attach_decay(net, optimizer)
    with pytest.raises(ConditioningError, match=r"does not hold attention\.in_proj_weight"):
        attach_decay(net, torch.optim.AdamW(net.head.parameters()))


def test_baseline_and_optimizers_without_need_get_no_hook(net: Net) -> None:
    assert attach_decay(net, torch.optim.SGD(net.parameters(), lr=0.1)) is None


def test_gradient_of_the_conditioned_model_is_checked_numerically(net: Net) -> None:
    condition(net, lam=1.0)
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    weight = net.attention.trained_weight("in_proj_weight")
    net(x).sum().backward()
    direction = torch.randn_like(weight)
    with torch.no_grad():
        weight += 1e-6 * direction
        up = net(x).sum()
        weight -= 2e-6 * direction
        down = net(x).sum()
    assert weight.grad is not None
    torch.testing.assert_close((up - down) / 2e-6, (weight.grad * direction).sum(), rtol=1e-6, atol=1e-6)


def conditions(model: nn.Module) -> float:
    """Return the largest κ(W + C) over the projections."""
    projections = [p for a in find_attention(model) for p in a.projections.values()]
    return max(float(torch.linalg.cond(p.effective())) for p in projections)


@pytest.mark.parametrize("correction", ["polar", "svd", "scaled_identity"])
def test_refresh_of_diverged_weights_does_not_raise(net: Net, correction: str) -> None:
    """The loss then shows the divergence; an error in the callback would hide it."""
    condition(net, correction=correction, lam=1.0)
    with torch.no_grad():
        net.attention.trained_weight("in_proj_weight")[0, 0] = float("nan")
    refresh(net)
    q, k, v = net.attention.correction("in_proj_weight").split(16)
    assert q.isnan().any()
    assert k.isfinite().all()
    assert v.isfinite().all()


@pytest.mark.parametrize("every", [1, 3])
def test_refresher_recomputes_every_n_steps(net: Net, every: int) -> None:
    condition(net, correction="polar", lam=1.0, refresh_every=every)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-2)
    refresher = Refresher(net)
    refreshed, bounded = [], []

    def after() -> None:
        refreshed.append(refresher.step())
        bounded.append(conditions(net) <= 2.0 + 1e-6)

    train(net, optimizer, steps=7, after=after)
    assert refreshed == [(step + 1) % every == 0 for step in range(7)]
    assert bounded == refreshed  # a stale C no longer bounds κ at this learning rate
    assert [layer.payload()["refreshed"] for layer in conditioned_layers(net).values()] == [7 // every * every]


def test_refresher_takes_the_step_from_the_loop(net: Net) -> None:
    condition(net, correction="polar", lam=1.0, refresh_every=4)
    assert [Refresher(net).step(n) for n in (3, 4, 5, 8)] == [False, True, False, True]
    assert Refresher(net, steps=3).step()


def test_refresher_only_counts_without_refresh_every(net: Net) -> None:
    refresher = Refresher(net)
    assert not any(refresher.step() for _ in range(3))
    assert refresher.steps == 3
    with pytest.raises(ConditioningError, match="holds no conditioned layer"):
        refresh(net)


def test_refresh_equals_a_new_start(net: Net) -> None:
    """C after a refresh is the C that condition() would give to the current W."""
    for settings in ({"correction": "polar", "lam": 1.0}, {"correction": "scaled_identity"}, {"relative": True}):
        model, again = copy.deepcopy(net), copy.deepcopy(net)
        condition(model, **settings)  # type: ignore[arg-type]
        with torch.no_grad():
            model.attention.trained_weight("in_proj_weight").mul_(1.5)
            again.attention.in_proj_weight.mul_(1.5)
        stale = model.attention.correction("in_proj_weight").clone()
        refresh(model)
        condition(again, **settings)  # type: ignore[arg-type]
        assert torch.equal(model.attention.correction("in_proj_weight"), again.attention.correction("in_proj_weight"))
        assert not torch.equal(model.attention.correction("in_proj_weight"), stale)


def test_refresh_leaves_what_does_not_depend_on_the_weight(net: Net) -> None:
    for settings in ({"lam": 1.0}, {"correction": "orthogonal"}):
        model = copy.deepcopy(net)
        condition(model, **settings)  # type: ignore[arg-type]
        before = model.attention.correction("in_proj_weight").clone()
        with torch.no_grad():
            model.attention.trained_weight("in_proj_weight").mul_(2)
        refresh(model)
        assert torch.equal(model.attention.correction("in_proj_weight"), before)


def test_refresh_preserves_the_function_when_asked(net: Net) -> None:
    condition(net, correction="polar", lam=1.0, preserve="function", refresh_every=1)
    with torch.no_grad():
        net.attention.trained_weight("in_proj_weight").add_(0.1 * torch.randn(48, 16, dtype=torch.float64))
    before = net.attention.effective_weight("in_proj_weight").detach().clone()
    stored = net.attention.trained_weight("in_proj_weight").detach().clone()
    refresh(net)
    torch.testing.assert_close(net.attention.effective_weight("in_proj_weight"), before, rtol=0, atol=1e-14)
    assert not torch.equal(net.attention.trained_weight("in_proj_weight"), stored)


def test_resume_is_exact(net: Net) -> None:
    """7 steps equal 3 steps, a state dict, and 4 steps: C is restored as of its last refresh, not computed anew."""
    settings = {"correction": "polar", "lam": 1.0, "refresh_every": 2, "decay_toward": "zero"}

    def start() -> tuple[Net, torch.optim.Optimizer]:
        model = copy.deepcopy(net)
        condition(model, **settings)  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        attach_decay(model, optimizer)
        return model, optimizer

    def run(model: Net, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        refresher = Refresher(model, steps=first)
        for step in range(first, last):
            x = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            refresher.step()

    whole, whole_optimizer = start()
    run(whole, whole_optimizer, 0, 7)
    part, part_optimizer = start()
    run(part, part_optimizer, 0, 3)
    resumed, resumed_optimizer = start()
    resumed.load_state_dict(part.state_dict())
    resumed_optimizer.load_state_dict(part_optimizer.state_dict())
    run(resumed, resumed_optimizer, 3, 7)
    assert all(torch.equal(whole.state_dict()[key], value) for key, value in resumed.state_dict().items())
