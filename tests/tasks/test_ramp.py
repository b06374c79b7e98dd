"""Laws of growing batches: sizes follow the published formula, the order has no gaps, and any batch can be the first."""

from __future__ import annotations

import pytest

from spectral_conditioning.errors import ConfigError, DataError
from spectral_conditioning.tasks.ramp import Ramp, plan_batches, plan_steps
from spectral_conditioning.tasks.streams import SampleStream, TrainBatches


def test_sizes_follow_the_formula_of_the_recipe() -> None:
    """b = min(B, (⌊seen·B/(f·S)/u⌋ + 1)·u), as cramming computes it from its count of micro-batches."""
    unit, full, until, budget = 8, 64, 0.6, 4000
    plan = plan_batches(Ramp(unit=unit, until=until), batch_size=full, samples=budget)
    seen = 0
    for size in plan.sizes():
        assert size == min(full, int(seen * full / (until * budget) // unit + 1) * unit)
        seen += size
    assert seen <= budget < seen + full
    assert plan.sizes()[0] == unit
    reached = plan.sizes().index(full)
    assert plan.starts[reached] == pytest.approx(until * budget, rel=0.15)


def test_a_ramp_longer_than_the_budget_never_fills_the_batch() -> None:
    plan = plan_batches(Ramp(unit=8, until=1 / 0.6), batch_size=80, samples=50_000)
    assert max(plan.sizes()) == 48  # 60 % of 80


@pytest.mark.parametrize("steps", [1, 2, 3, 17, 250])
def test_a_budget_in_steps_gives_exactly_that_many(steps: int) -> None:
    plan = plan_steps(Ramp(unit=4, until=0.5), batch_size=32, steps=steps)
    assert plan.steps == len(plan.sizes()) == steps
    assert plan.sizes() == sorted(plan.sizes())


def test_a_budget_below_the_first_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="less than the first batch"):
        plan_batches(Ramp(unit=8, until=0.5), batch_size=16, samples=7)
    with pytest.raises(ConfigError, match=r"not a multiple of data\.ramp_unit"):
        plan_batches(Ramp(unit=5, until=0.5), batch_size=16, samples=100)


def ramped(*, shuffle: bool, size: int = 50) -> SampleStream:
    plan = plan_batches(Ramp(unit=2, until=0.5), batch_size=12, samples=130)
    return SampleStream(size, batch_size=12, seed=3, shuffle=shuffle, plan=plan)


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_join_to_whole_epochs(shuffle: bool) -> None:
    stream = ramped(shuffle=shuffle)
    assert stream.plan is not None
    keys = [key for step in range(stream.plan.steps) for key in stream.batch(step)]
    assert [key.draw for key in keys] == list(range(len(keys)))
    assert sorted(key.index for key in keys[:50]) == list(range(50))
    if not shuffle:
        assert [key.index for key in keys] == [i % 50 for i in range(len(keys))]
    plain = SampleStream(50, batch_size=1, seed=3, shuffle=shuffle)
    assert [key.index for key in keys[:100]] == [plain.batch(i)[0].index for i in range(100)]


def test_any_step_can_be_the_first_and_ranks_share_each_batch() -> None:
    stream = ramped(shuffle=True)
    for rank in (0, 1):
        started = iter(TrainBatches(ramped(shuffle=True), start=5, rank=rank, world_size=2))
        assert next(started) == stream.batch(5)[rank::2]
    assert stream.samples_before(5) == sum(len(stream.batch(step)) for step in range(5))


def test_devices_must_divide_the_unit() -> None:
    with pytest.raises(DataError, match=r"data\.ramp_unit is 2, which 4 devices"):
        TrainBatches(ramped(shuffle=True), world_size=4)
