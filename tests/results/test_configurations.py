"""Configurations of one experiment: named by what differs, in the order of the values, with safe and unique file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.configurations import safe_name, settings_of
from spectral_conditioning.results.markup import markdown
from spectral_conditioning.results.pairing import pair_runs
from spectral_conditioning.results.records import Run, run_from_record
from spectral_conditioning.results.report import _named
from spectral_conditioning.results.summary import Table, build_tables

Record = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


@pytest.fixture
def runs_of(make_record: Record) -> Callable[..., list[Run]]:
    """runs_of({key: value}, …) gives a pair of each configuration of optim, its hash in falling order."""

    def build(*configs: dict[str, Any], experiment: str = "imagenet/small") -> list[Run]:
        return [
            run_from_record(
                make_record(
                    0.9, lam=lam, hashes__pair=f"{99 - place}", config={"optim": config}, experiment=experiment
                ),
                source="x",
            )
            for place, config in enumerate(configs)
            for lam in (0.0, 1.0)
        ]

    return build


@pytest.fixture
def tables_of(runs_of: Callable[..., list[Run]]) -> Callable[..., list[Table]]:
    return lambda *configs, **options: build_tables(pair_runs(runs_of(*configs, **options)), [])


def names(tables: list[Table]) -> list[str]:
    return [name for _, name in _named(list(tables))]


def test_tables_stand_by_value_not_by_hash(tables_of: Callable[..., list[Table]]) -> None:
    built = tables_of({"lr": 0.001}, {"lr": 10.0}, {"lr": 3e-05}, {"lr": 0.02})
    assert [table.title for table in built] == [
        "imagenet/small · optim.lr=3e-05", "imagenet/small · optim.lr=0.001", "imagenet/small · optim.lr=0.02",
        "imagenet/small · optim.lr=10.0",
    ]  # fmt: skip
    assert names(built) == [
        "imagenet-small-lr3e-05", "imagenet-small-lr0.001", "imagenet-small-lr0.02", "imagenet-small-lr10.0",
    ]  # fmt: skip


def test_every_key_that_differs_is_in_title_and_file_name(tables_of: Callable[..., list[Table]]) -> None:
    built = tables_of(
        {"lr": 0.002, "name": "sgd"}, {"lr": 0.001, "name": "sgd"}, {"lr": 0.001, "name": "adamw"}, {"lr": 0.002}
    )
    assert [table.title.partition(" · ")[2] for table in built] == [
        "optim.lr=0.001, optim.name=adamw", "optim.lr=0.001, optim.name=sgd", "optim.lr=0.002, optim.name=None",
        "optim.lr=0.002, optim.name=sgd",
    ]  # fmt: skip
    assert names(built) == [
        "imagenet-small-lr0.001-name-adamw", "imagenet-small-lr0.001-name-sgd", "imagenet-small-lr0.002-name-None",
        "imagenet-small-lr0.002-name-sgd",
    ]  # fmt: skip


def test_many_differing_values_are_cut_in_the_title_and_whole_below(tables_of: Callable[..., list[Table]]) -> None:
    built = tables_of(*({f"key{index}": value for index in range(6)} for value in (2, 1)))
    assert (
        built[0].title
        == "imagenet/small · optim.key0=1, optim.key1=1, optim.key2=1 and 3 more values (configuration 98)"
    )
    assert built[0].setting == ", ".join(f"optim.key{index}=1" for index in range(6))
    assert f"- This configuration: {built[0].setting}." in markdown(built)


def test_one_leaf_under_two_keys_is_written_with_both(make_record: Record) -> None:
    runs = [
        run_from_record(make_record(0.9, config={"optim": {"lr": rate}, "head": {"lr": rate}}), source="x")
        for rate in (0.1, 0.2)
    ]
    assert [each.file_part for each in settings_of(runs)] == ["head.lr0.1-optim.lr0.1", "head.lr0.2-optim.lr0.2"]


def test_configurations_that_look_alike_are_told_apart_by_hash(tables_of: Callable[..., list[Table]]) -> None:
    assert [table.setting for table in tables_of({"lr": 1}, {"lr": 1})] == ["configuration 98", "configuration 99"]
    three = tables_of({"lr": 2}, {"lr": 1}, {"lr": 1})
    assert [table.setting for table in three] == [
        "optim.lr=1, configuration 97", "optim.lr=1, configuration 98", "optim.lr=2",
    ]  # fmt: skip
    assert len(set(names(three))) == 3


def test_file_names_are_safe_short_and_unique_where_case_does_not_count(tables_of: Callable[..., list[Table]]) -> None:
    values = ["a/../b", "A/../B", "../c", "é$ λ", "x" * 300, "x" * 299 + "y", 1e30, -1.5]
    given = names(tables_of(*({"path": value} for value in values), experiment="../a b/" + "c" * 300))
    assert len({name.lower() for name in given}) == len(values)
    for name in given:
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
        assert len(name) <= 125
        assert name[0] not in "-."


def test_one_name_for_two_experiments_is_numbered(tables_of: Callable[..., list[Table]]) -> None:
    both = [*tables_of({}, experiment="a/b"), *tables_of({}, experiment="a-b"), *tables_of({}, experiment="a-b-2")]
    assert names(both) == ["a-b", "a-b-2", "a-b-2-2"]


def test_safe_names_differ_where_long_texts_do() -> None:
    assert safe_name("small lr=1e+16") == "small-lr-1e-16"
    assert safe_name("a" * 60) == "a" * 60
    assert safe_name("a" * 70).startswith("a" * 51 + "-")
    assert safe_name("a" * 70) != safe_name("a" * 71)
    assert safe_name("...") == "unnamed"


def test_figures_of_a_sweep_carry_the_value(write: Write, runs: Path, tmp_path: Path) -> None:
    from spectral_conditioning.results.report import write_outputs

    for rate in (0.003, 0.001):
        for lam in (0.0, 10.0):
            write(0.9, lam=lam, name=f"{rate}", hashes__pair=f"{1 - rate}", config={"optim": {"lr": rate}})
    write_outputs(compare([runs]), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        "imagenet-small-lr0.001-lambda.png", "imagenet-small-lr0.003-lambda.png", "imagenet-small-sweep.png",
    ]  # fmt: skip
