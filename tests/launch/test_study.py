"""A study file means the product of its lists, and what is wrong with one is said by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.launch.study import Element, config_name, expand, labels, replace
from spectral_conditioning.launch.study_file import read_study, split_words
from spectral_conditioning.training.compose import config_directory
from spectral_conditioning.training.identity import run_folder

SMALL = "experiments: [imagenet/small]\n"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        folder = tmp_path / "mystudy"
        folder.mkdir(exist_ok=True)
        (folder / "study.yaml").write_text(text)
        return folder

    return make


def values(elements: list[Element]) -> list[tuple[float, int]]:
    return [(item.conditioning.lam, item.seed) for element in elements for item in element.configs]


def test_runs_are_experiments_times_arms_times_seeds_times_sweeps(write: Write):
    text = SMALL + "arms: [[conditioning=none], [conditioning=identity, 'conditioning.lam=1,2']]\nseeds: [3, 4]\n"
    elements = expand(read_study(write(text), []), [])
    assert values(elements) == [(0, 3), (0, 4), (1, 3), (2, 3), (1, 4), (2, 4)]
    assert all(len(element.configs) == 1 for element in elements)


def test_an_override_replaces_what_the_study_says_about_its_key(write: Write):
    study = read_study(write(SMALL + "seeds: [0, 1, 2]\noverrides: [optim.lr=1, conditioning=identity]\n"), [])
    (element,) = expand(study, ["seed=7", "optim.lr=0.5", "conditioning.lam=3"])
    (config,) = element.configs
    assert (config.seed, config.optim.lr, config.conditioning.lam) == (7, 0.5, 3)
    assert replace(["a=1", "+b.c=2", "d=3"], ["b.c=4"]) == ["a=1", "d=3", "b.c=4"]


def test_lambda_zero_and_the_baseline_are_one_run(write: Write):
    text = SMALL + "arms: [[conditioning=none], [conditioning=identity, 'conditioning.lam=0,1']]\n"
    assert [lam for lam, _ in values(expand(read_study(write(text), []), []))] == [0, 1]


def test_overrides_alone_are_a_study_with_a_name_of_its_own():
    words = ["experiment=imagenet/small", "conditioning=identity", "conditioning.lam=0,1,10", "seed=0,1"]
    study = read_study(None, words)
    assert study.name.startswith("imagenet-small-")
    assert study.name != read_study(None, [*words, "optim.lr=1"]).name
    assert len(expand(study, words)) == 6


def test_folders_are_absolute_and_configurations_named_after_them(write: Write, tmp_path: Path):
    (element,) = expand(read_study(write(SMALL), []), ["paths.runs=here", "seed=5"])
    folder = run_folder(element.configs[0])
    assert folder.is_relative_to(tmp_path / "here")
    assert config_name(element.configs[0]) == f"imagenet--small--none--{folder.name}.yaml"


STAGES = """
stages:
  pretrain: {experiments: [imagenet/small], arms: [[conditioning=none], [conditioning=polar]], seeds: [1, 2]}
  glue:
    after: pretrain
    experiments: [imagenet/small]
    overrides: ["init.weights={pretrain}/checkpoints/reported.ckpt", "optim.lr=1e-3,2e-3"]
"""


def test_a_later_stage_follows_each_run_with_its_arm_seed_and_folder(write: Write):
    elements = expand(read_study(write(STAGES), []), [])
    before, after = elements[:4], elements[4:]
    assert [element.after for element in after] == before
    for first, element in zip(before, after, strict=True):
        (pretrained,) = first.configs
        assert [config.optim.lr for config in element.configs] == [1e-3, 2e-3]
        for config in element.configs:
            assert config.init.weights == f"{run_folder(pretrained)}/checkpoints/reported.ckpt"
            assert (config.seed, config.conditioning) == (pretrained.seed, pretrained.conditioning)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("experiment: [imagenet/small]", ["unknown key 'experiment'", "closest 'experiments'"]),
        ("experiments: imagenet/small", ["experiments is 'imagenet/small'", "list"]),
        ("arms: [conditioning=none]", ["arms holds 'conditioning=none'", "each arm must be a list"]),
        ("arms: [[conditioning=none], []]", ["arms holds []", "[conditioning=none]"]),
        ("arms: []", ["arms is empty", "leave it out"]),
        ("seeds:", ["seeds is empty", "leave it out"]),
        ("experiments: []", ["experiments is empty"]),
        ("experiment: x", ["closest 'experiments'"]),
        ("zzzz: 1", ["allowed: experiments", "stages"]),
        ("seeds: [1]\nseeds: [2]", ["key 'seeds' in line 2", "in line 1", "keep one"]),
        ("arms: [[seed=1, 'x={seed: 1, seed: 2}']]\nseeds: [2]", ["seeds lists 2 and 'seed=1' sets it again"]),
        ("experiments: [a]\noverrides: [experiment=b]", ["experiments lists 'a' and 'experiment=b' sets it again"]),
        ("overrides: [hydra.run.dir=x]", ["'hydra.run.dir=x' has no effect", "paths.runs"]),
        ("arms: [[hydra/launcher=submitit_slurm]]", ["'hydra/launcher=submitit_slurm' has no effect", "resources"]),
        ("stages: [a]", ["stages is ['a']", "map a name to each stage"]),
        ("stages: {}", ["stages is {}"]),
        ("stages: {../x: {}}", ["stage '../x'", "name becomes that of files"]),
        (
            "stages: {a: {}, b: {after: a, overrides: ['init.weights={zz}/x']}}",
            ["stage 'zz'", "{a}, the stage it follows"],
        ),
        ("overrides: ['init.weights={zz}/x']", ["stage 'zz'", "allowed here: none"]),
        ("- a", ["holds list"]),
        ("seeds: [0", ["is no valid YAML"]),
        ("", ["is empty", "must map experiments, arms"]),
        ("seeds: [a, 1]", ["seeds holds 'a'", "whole number"]),
        ("seeds: [1.5]", ["seeds holds 1.5"]),
        ("seeds: [0, true]", ["seeds holds True"]),
        ("stages: {a: {after: b}}", ["stage 'a'", "after is 'b'", "earlier stages: none"]),
        ("stages: {b: {}, a: {after: b, seeds: [1]}}", ["takes arm and seed from there"]),
        ("stages: {a: {}}\nseeds: [1]", ["every other key belongs to one of them"]),
        ("resources: [time]", ["resources is ['time']"]),
    ],
)
def test_a_bad_study_names_thing_and_fix(text: str, parts: list[str], write: Write):
    with pytest.raises(ConfigError) as caught:
        read_study(write(text), [])
    for part in parts:
        assert part in str(caught.value)


def test_braces_of_lists_mappings_and_interpolations_name_no_stage(write: Write):
    items = ["'budget={steps: 3, epochs: null, tokens: null}'", "'logger.tags=[a]'", "'name=x/${seed}'"]
    (element,) = expand(read_study(write(SMALL + f"overrides: [{', '.join(items)}]"), []), [])
    assert (element.configs[0].budget.steps, element.configs[0].name) == (3, "x/0")


def test_what_is_wrong_with_a_run_says_where_it_was_asked_for(write: Write):
    folder = write("stages: {a: {experiments: [imagenet/small], overrides: [optim.lrr=1]}}")
    with pytest.raises(ConfigError, match=r"study\.yaml, stage 'a': overrides: unknown key 'optim.lrr'"):
        expand(read_study(folder, []), [])
    with pytest.raises(ConfigError, match=r"^overrides: unknown key 'optim.lrr'"):
        expand(read_study(None, ["optim.lrr=1"]), ["optim.lrr=1"])
    with pytest.raises(ConfigError, match=r"^overrides: 'hydra.run.dir=x' has no effect"):
        read_study(None, ["hydra.run.dir=x"])


def test_a_study_in_another_encoding_is_named(write: Write):
    path = write("")
    (path / "study.yaml").write_bytes("overrides: [logger.tags=[größe]]".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"study\.yaml is no text in UTF-8 .*save it as UTF-8"):
        read_study(path, [])


def test_runs_of_one_name_are_told_apart_by_what_differs():
    words = ["experiment=imagenet/small", "conditioning=none,identity", "optim.lr=0.001,0.002", "paths.runs=here"]
    configs = [config for element in expand(read_study(None, words), words) for config in element.configs]
    arms = ["baseline"] * 2 + ["identity λ=10 (full, qkv)"] * 2
    rates = [0.001, 0.002] * 2
    assert labels(configs) == [
        f"imagenet/small · {arm} · seed 0 · optim.lr={rate}" for arm, rate in zip(arms, rates, strict=True)
    ]
    assert labels(configs[::2]) == [f"imagenet/small · {arm} · seed 0" for arm in arms[::2]]


def test_every_bad_run_of_a_study_is_found_before_anything_else(write: Write):
    with pytest.raises(ConfigError, match=r"lam=-1(.|\n)*lam=-2"):
        expand(read_study(write(SMALL + "arms: [[conditioning=identity, 'conditioning.lam=-1,-2']]"), []), [])


def test_a_missing_study_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        read_study(Path("nowhere"), [])
    assert split_words(["a/b", "c=d"]) == (Path("a/b"), ["c=d"])
    assert split_words(["c=d"]) == (None, ["c=d"])


STUDIES = sorted(
    path
    for path in (config_directory().parent / "experiments").glob("*/*.yaml")
    if path.name == "study.yaml" or path.parent.name == "imagenet"
)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_study_of_the_suite_reads(path: Path):
    study = read_study(path, [])
    assert study.stages
    for stage in study.stages:
        for name in stage.experiments:
            assert (config_directory() / "experiment" / f"{name}.yaml").is_file(), name
