"""What a submission cuts its runs into: only what is missing, arrays that Slurm takes, stages chained element by element."""

import dataclasses

import pytest

from spectral_conditioning.launch.plan import Part, plan
from spectral_conditioning.launch.status import Kind, State
from spectral_conditioning.launch.study import Element, config_name
from spectral_conditioning.launch.study_file import Stage
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.schema import RunConfig

FIRST, SECOND = Stage("first"), Stage("second", after="first")


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return compose_run(["experiment=imagenet/small", "paths.runs=/runs"])


def runs(base: RunConfig, count: int, *, stage: Stage = FIRST, devices: int = 1) -> list[Element]:
    machine = dataclasses.replace(base.trainer, devices=devices)
    return [Element(stage, [dataclasses.replace(base, seed=seed, trainer=machine)]) for seed in range(count)]


def following(base: RunConfig, first: list[Element]) -> list[Element]:
    return [
        Element(SECOND, [dataclasses.replace(base, name="later", seed=item.configs[0].seed)], item) for item in first
    ]


def states(elements: list[Element], **kinds: Kind) -> dict[str, State]:
    """Every run is missing, but `seed3="done"` and the like; a run in the queue is element 7 of job 55."""
    found = {}
    for element in elements:
        for config in element.configs:
            kind = kinds.get(f"seed{config.seed}", "missing") if config.name != "later" else "missing"
            job = ("55", 7) if kind in ("waiting", "running") else None
            found[config_name(config)] = State(kind, "", job)
    return found


def seeds(part: Part) -> dict[int | None, int]:
    return {index: element.configs[0].seed for index, element in part.elements.items()}


def test_a_sweep_is_one_array_and_a_single_run_one_job(base: RunConfig):
    sweep = runs(base, 5)
    (part,) = plan(sweep, states(sweep), limit=1000)
    assert seeds(part) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    assert (part.indices(None), part.indices(2)) == ("0-4", "0-4%2")
    (single,) = plan(sweep[:1], states(sweep), limit=1000)
    assert not single.is_array


def test_only_what_is_missing_is_submitted(base: RunConfig):
    sweep = runs(base, 6)
    known = states(sweep, seed0="done", seed1="diverged", seed2="running", seed3="waiting", seed4="failed")
    (part,) = plan(sweep, known, limit=1000)
    assert seeds(part) == {0: 4, 1: 5}
    assert plan(sweep[:4], known, limit=1000) == []


def test_what_trains_outside_the_queue_and_what_follows_it_is_left_for_later(base: RunConfig):
    first = runs(base, 2)
    both = [*first, *following(base, first)]
    known = states(both, seed0="done") | {config_name(first[1].configs[0]): State("running", "outside the queue")}
    (part,) = plan(both, known, limit=1000)
    assert [element.configs[0].name for element in part.elements.values()] == ["later"]
    assert seeds(part) == {None: 0}


def test_more_runs_than_an_array_may_have_become_several_arrays(base: RunConfig):
    sweep = runs(base, 2500)
    parts = plan(sweep, states(sweep), limit=1000, first_number=4)
    assert [len(part.elements) for part in parts] == [1000, 1000, 500]
    assert [part.name for part in parts] == ["004-first", "005-first", "006-first"]
    assert [part.indices(None) for part in parts] == ["0-999", "0-999", "0-499"]
    assert [seed for part in parts for seed in seeds(part).values()] == list(range(2500))


def test_runs_of_different_shapes_get_arrays_of_their_own(base: RunConfig):
    mixed = [*runs(base, 2), *runs(base, 4, devices=2)[2:]]
    assert [part.shape.tasks_per_node for part in plan(mixed, states(mixed), limit=1000)] == [1, 2]


def test_a_later_stage_waits_for_the_element_of_the_same_index(base: RunConfig):
    first = runs(base, 4)
    both = [*first, *following(base, first)]
    one, other = plan(both, states(both), limit=1000)
    assert (one.waits_for, other.waits_for) == (None, one)
    assert seeds(one) == seeds(other)


def test_a_later_stage_waits_only_for_what_is_not_done(base: RunConfig):
    first = runs(base, 6)
    both = [*first, *following(base, first)]
    known = states(both, seed0="done", seed1="diverged", seed2="running", seed3="failed")
    parts = plan(both, known, limit=1000)
    again = parts[0]
    waiting = {str(part.waits_for) if isinstance(part.waits_for, str | None) else "again": part for part in parts[1:]}
    assert seeds(again) == {0: 3, 1: 4, 2: 5}
    # Seed 0 can start; seed 2 follows element 7 of a job of an earlier submission; seed 1 has nothing to start from.
    assert seeds(waiting["None"]) == {None: 0}
    assert seeds(waiting["55"]) == {7: 2}
    assert seeds(waiting["again"]) == {0: 3, 1: 4, 2: 5}
    assert waiting["again"].waits_for is again
