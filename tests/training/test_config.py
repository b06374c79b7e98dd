"""What is wrong with a configuration is said at once, all of it, with the nearest valid name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from spectral_conditioning.cli import dispatch
from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.compose import check_jobs, compose_run, compose_tree, config_directory, expand_sweep
from spectral_conditioning.training.config import LARGEST_SEED, typed
from spectral_conditioning.training.identity import arm_id, conditioning, pair_digest, run_folder
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.schema import RunConfig
from spectral_conditioning.training.storage import read_config, save_config

EXPERIMENTS = sorted(
    str(path.relative_to(config_directory() / "experiment").with_suffix(""))
    for path in (config_directory() / "experiment").rglob("*.yaml")
)
CHOICES = sorted(path.stem for path in (config_directory() / "conditioning").glob("*.yaml"))
Make = Callable[..., RunConfig]


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_run(list(overrides))
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("conditioning.lamb=3", ["'conditioning.lamb'", "closest 'conditioning.lam'"]),
        ("+optim.learning_rate=1", ["unknown key 'optim.learning_rate'"]),
        ("conditionin=identity", ["'conditionin'", "closest 'conditioning'"]),
        ("conditioning=identiti", ["conditioning=identiti", "closest 'identity'"]),
        ("experiment=imagenet/smal", ["experiment=imagenet/smal", "closest 'imagenet/small'"]),
        ("optim.lr=fast", ["optim.lr is 'fast'", "float"]),
        ("seed=one", ["seed is 'one'", "whole number"]),
        ("optim.schedule=cosin", ["optim.schedule is 'cosin'", "closest 'cosine'"]),
        ("trainer.precision=fp8", ["trainer.precision is 'fp8'", "bf16-mixed"]),
        ("optim.lr=inf", ["optim.lr is inf", "finite number above 0"]),
        ("optim.weight_decay=nan", ["optim.weight_decay is nan", "finite"]),
        ("optim.clip_norm=inf", ["optim.clip_norm is inf", "null for no clipping"]),
        ("~optim.lr", ["~optim.lr deletes a value", "set optim.lr=…"]),
        ("~logger", ["~logger deletes a value"]),
        ("budget.epochs=nan", ["budget.epochs is nan", "finite"]),
        ("data.path=flowers.zip", ["data.path is 'flowers.zip'", "experiment=imagenet/flowers"]),
        ("optim.report=ema", ["optim.ema_decay is null"]),
        ("budget.steps=5", ["exactly one", "steps=5, epochs=40", "budget.epochs=null"]),
        ("budget.epochs=null", ["exactly one", "found none", "budget.steps=1000"]),
        ("seed=-1", ["seed is -1", "from 0 to 9223372036854775807"]),
        (f"seed={10**400}", ["from 0 to 9223372036854775807"]),
        ("seed=1,2", ["seed=1,2 holds several values", "add -m"]),
        ("foo", ["'foo' sets nothing", "key=value"]),
        ("imagenet/small", ["'imagenet/small' sets nothing", "experiment=imagenet/small"]),
        ("name=../x", ["name is '../x'", "words of letters"]),
        ("data.path=a (b)[", ["'data.path=a (b)['", "quote"]),
        ("conditioning.lam=2", ["correction is 'none'", "conditioning=identity"]),
        ("conditioning.targets=[q,x]", ["targets=['q', 'x']", "q, k, v at most once"]),
        ("conditioning.refresh_every=-1", ["refresh_every=-1 is not an integer"]),
        ("optim.betas=[0.9]", ["optim.betas is [0.9]", "must hold 2 values"]),
        ("optim.betas=[0.9,0.99,0.999]", ["must hold 2 values"]),
        ("paths.runs=", ["paths.runs is ''", "must name a folder"]),
        ("experiment=null", ["experiment=null: no such choice", "imagenet/small"]),
        ("conditioning=null", ["conditioning=null: no such choice", "closest 'none'"]),
    ],
)
def test_a_bad_override_names_thing_value_and_fix(override: str, parts: list[str]):
    message = refused(override)
    for part in parts:
        assert part in message


def test_the_other_arms_settings_leave_the_baseline_of_a_sweep_the_baseline():
    words = ["conditioning=none,polar", "conditioning.refresh_every=5", "conditioning.targets=[q]"]
    baseline, polar = check_jobs(expand_sweep(words))
    assert conditioning(baseline) is None
    assert conditioning(polar) is not None
    assert run_folder(baseline) == run_folder(compose_run([]))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"a: [1", "is no valid YAML"),
        (b"seed: 1\nseed: 2", "is no valid YAML: key 'seed' in line 2 is there already"),
        (b"- a", "holds list; it must map the settings of a run"),
        (b"", "is empty"),
        (b"name: gr\xf6\xdfe", "is no text in UTF-8"),
    ],
)
def test_a_broken_saved_configuration_is_named(content: bytes, part: str, tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"{path} {part}")):
        read_config(path)


def test_the_largest_seed_trains_a_run_of_its_own(train: Callable[..., Any]):
    outcome = train(f"seed={LARGEST_SEED}")
    assert outcome.record["seed"] == LARGEST_SEED
    assert outcome.folder.name.startswith(f"seed{LARGEST_SEED}-")


def test_words_that_are_no_overrides_are_told_with_the_fix_in_a_sweep_too():
    with pytest.raises(ConfigError, match=r"'identity' sets nothing; .*conditioning=identity"):
        expand_sweep(["seed=0,1", "identity"])


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config-dir=/does/not/exist", "--config-dir=/does/not/exist is not a folder"),
        ("--config-path=/does/not/exist", "--config-path=/does/not/exist: spectral train composes its own train.yaml"),
        ("--config-name=nope", "--config-name=nope: .*use experiment=NAME"),
    ],
)
def test_a_flag_of_hydra_that_leads_nowhere_is_named(flag: str, message: str):
    with pytest.raises(ConfigError, match=message):
        dispatch(["train", flag])


def test_an_unknown_flag_is_told_by_the_command_it_belongs_to(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        dispatch(["train", "--nope"])
    assert ended.value.code == 2
    assert "spectral train: error: unrecognized arguments: --nope" in capsys.readouterr().err


def test_a_budget_below_one_step_is_told_in_words(tiny: Make):
    with pytest.raises(ConfigError, match=r"^budget\.epochs=0\.0001 is less than one step \(an epoch has 40\)"):
        prepare(tiny("budget={steps: null, epochs: 0.0001, tokens: null}"))


@pytest.mark.parametrize(("name", "near"), [("vit_tiny_patch16_22", "vit_tiny_patch16_224"), ("nope", "")])
def test_a_model_that_timm_does_not_know_is_refused_with_the_nearest(name: str, near: str, tiny: Make):
    with pytest.raises(ConfigError, match=rf"task\.model\.name is '{name}'.*closest '{near}\w*'"):
        prepare(tiny(f"task.model.name={name}"))


def test_lambda_that_is_no_number_is_refused_by_name():
    for value in ("nan", "inf", "-1", "big"):
        message = refused("conditioning=identity", f"conditioning.lam={value}")
        assert "lam" in message
        assert value in message


def test_every_problem_is_listed():
    message = refused("optim.lr=-1", "trainer.accumulate=0", "conditioning=identity", "conditioning.targets=[q,x]")
    for part in ("3 problems", "optim.lr", "trainer.accumulate", "targets"):
        assert part in message


def test_every_unknown_key_is_listed():
    message = refused("optim.lrr=1", "optm.lr=1")
    assert "optim.lrr" in message
    assert "optm.lr" in message


def test_experiment_values_lose_to_the_command_line():
    config = compose_run(
        ["experiment=imagenet/small", "optim.lr=3.5e-4", "conditioning=identity", "conditioning.lam=3"]
    )
    assert config.optim.lr == 3.5e-4
    assert config.conditioning.lam == 3


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_named_by_its_file_and_lacks_nothing_but_what_only_the_user_has(name: str):
    tree = compose_tree([f"experiment={name}"])
    # GLUE's name goes on with the task, which only the command line gives.
    written = str(OmegaConf.to_container(tree)["name"])
    assert written.partition("/${")[0] == name
    try:
        typed(tree)
    except ConfigError as error:
        asked = str(error).splitlines()[1:] or [str(error)]
        assert all("data.path" in line or "init.weights" in line or "is not set; add" in line for line in asked), asked


def test_every_conditioning_choice_composes_and_has_an_arm_of_its_own():
    arms = {name: arm_id(conditioning(compose_run([f"conditioning={name}"]))) for name in CHOICES}
    assert len(set(arms.values())) == len(CHOICES)
    assert [name for name, arm in arms.items() if arm == "none"] == ["none"]


def test_lambda_zero_is_the_baseline_run(tiny: Make):
    baseline = tiny("conditioning=none")
    for choice in ("identity", "polar", "identity_fused"):
        assert run_folder(tiny(f"conditioning={choice}", "conditioning.lam=0")) == run_folder(baseline)


def test_the_folder_follows_from_what_is_computed_not_from_where(tiny: Make):
    base = tiny()
    same = tiny("trainer.threads=1", "data.workers=2", "logger=wandb_offline", "trainer.checkpoint_every=7")
    assert run_folder(base) == run_folder(same)
    for override in ("seed=1", "optim.lr=0.5", "data.batch_size=16", "conditioning=identity", "trainer.accumulate=2"):
        assert run_folder(tiny(override)) != run_folder(base)


def test_arms_and_seeds_share_a_pair_and_recipes_do_not(tiny: Make):
    base = pair_digest(tiny())
    assert pair_digest(tiny("conditioning=polar", "seed=3")) == base
    # Settings of the machine that change the numbers belong to the recipe.
    for override in ("optim.lr=0.5", "trainer.compile=true", "trainer.precision=bf16-mixed", "trainer.accumulate=2"):
        assert pair_digest(tiny(override)) != base, override


def test_a_saved_configuration_reads_back_as_itself(tiny: Make, tmp_path: Path):
    config = tiny("conditioning=identity_fused", "logger=wandb_offline", "optim.ema_decay=0.9")
    save_config(config, tmp_path / "config.yaml")
    again = read_config(tmp_path / "config.yaml")
    assert run_folder(again) == run_folder(config)
    assert again == config


def test_a_sweep_is_expanded_in_order_and_checked_before_it_starts():
    jobs = expand_sweep(["conditioning=identity", "conditioning.lam=0,1,10", "seed=0,1"])
    configs = check_jobs(jobs)
    assert [(c.conditioning.lam, c.seed) for c in configs] == [(lam, s) for lam in (0, 1, 10) for s in (0, 1)]
    with pytest.raises(ConfigError, match="lam=-1"):
        check_jobs(expand_sweep(["conditioning=identity", "conditioning.lam=1,-1"]))
