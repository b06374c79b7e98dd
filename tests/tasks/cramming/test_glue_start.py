"""Laws of the start of fine-tuning: exactly the weights that were named, checked by the loss they were recorded with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from spectral_conditioning import conditioned_layers
from spectral_conditioning.errors import ConditioningError, ConfigError, DataError
from spectral_conditioning.results.pairing import pair_runs
from spectral_conditioning.results.records import run_from_record
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.identity import pair_digest
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.run import Outcome, run
from spectral_conditioning.training.schema import RunConfig

from .cramming_text import sentences
from .test_glue_files import FILES

Train = Callable[..., Outcome]
PRETRAIN = ("budget.steps=5", "evaluate.every_steps=5", "trainer.checkpoint_every=null")


@pytest.fixture
def polarity(tmp_path: Path) -> Path:
    """SST-2's layout: positive sentences hold "good"."""
    folder = tmp_path / "sst"
    folder.mkdir()
    for split, count in (("train", 48), ("dev", 12)):
        rows = [f"{sentences(i, 6)}{' good' if i % 2 else ' bad'}\t{i % 2}" for i in range(count)]
        (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return folder


@pytest.fixture
def glue(tmp_path: Path, polarity: Path) -> Callable[..., RunConfig]:
    """Compose fine-tuning from the pretraining experiment in the test's folder."""

    def make(*overrides: str) -> RunConfig:
        return compose_run(
            [
                "experiment=cramming/small_glue",
                "task.model.glue_task=sst2",
                f"data.path={polarity}",
                "data.batch_size=16",
                "data.length=32",
                "budget.epochs=2",
                "evaluate.every_epochs=1",
                "trainer.progress=none",
                f"paths.runs={tmp_path / 'runs'}",
                *overrides,
            ]
        )

    return make


Glue = Callable[..., RunConfig]


def reported(outcome: Outcome) -> Path:
    return outcome.folder / "checkpoints/reported.ckpt"


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    content = torch.load(path, weights_only=True)
    content["model"] = change(content["model"])
    torch.save(content, path)


def test_fine_tuning_runs_from_the_run_of_its_own_arm_and_seed(train: Train, glue: Glue) -> None:
    plain, conditioned = train(*PRETRAIN), train(*PRETRAIN, "conditioning=identity")
    train(*PRETRAIN, "seed=1")
    for arm, source in (("none", plain), ("identity", conditioned)):
        prepared = prepare(glue(f"conditioning={arm}"))
        assert str(source.folder) in prepared.data.description
        stored = torch.load(reported(source), weights_only=True)["model"]
        for name, value in prepared.module.model.language_model.state_dict().items():
            assert torch.equal(value, stored[name]), name
    outcomes = [run(glue(f"conditioning={arm}")) for arm in ("none", "identity")]
    assert [outcome.record["projections"] for outcome in outcomes] == [0, 6]
    for key in ("initial_weights", "order", "data", "pair"):  # what compare asks of a pair
        assert outcomes[0].record["hashes"][key] == outcomes[1].record["hashes"][key]
    assert outcomes[0].record["experiment"] == "cramming/small_glue/sst2"
    assert outcomes[0].record["primary"]["rule"] == "last"
    lines = [json.loads(line) for line in (outcomes[0].folder / "metrics.jsonl").read_text().splitlines()]
    assert outcomes[0].record["primary"]["value"] == [x for x in lines if x["split"] == "val"][-1]["accuracy"]


def test_every_task_gets_its_own_head_and_loss_from_one_pretraining(train: Train, glue: Glue, tmp_path: Path) -> None:
    train(*PRETRAIN)
    outputs = {}
    for key, task in GLUE_TASKS.items():
        for name, rows in FILES[task.folder].items():
            path = tmp_path / "glue" / task.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(rows) + "\n", encoding="utf-8", newline="")
        config = glue(f"task.model.glue_task={key}", f"data.path={tmp_path / 'glue'}", "data.batch_size=2")
        prepared = prepare(config)
        module, samples = prepared.module.eval(), prepared.loader.first_samples(2)
        outputs_BC, labels_B = module.example_forward(samples), samples.labels
        outputs[key] = outputs_BC.shape[-1]
        wanted = F.mse_loss(outputs_BC[:, 0], labels_B) if key == "stsb" else F.cross_entropy(outputs_BC, labels_B)
        assert module.training_losses(samples)["loss"].item() == pytest.approx(wanted.item(), rel=1e-6), key
    assert outputs == {"cola": 2, "sst2": 2, "mrpc": 2, "stsb": 1, "qqp": 2, "mnli": 3, "qnli": 2, "rte": 2}


def test_arms_whose_pretraining_differs_are_no_pair(train: Train, glue: Glue) -> None:
    """Fine-tuned alike from 5 and from 6 steps of pretraining: the longer one would win by its length."""
    train(*PRETRAIN)
    train("budget.steps=6", "evaluate.every_steps=6", "trainer.checkpoint_every=null", "conditioning=identity")
    base, arm = (run_from_record(run(glue(f"conditioning={arm}")).record, source=arm) for arm in ("none", "identity"))
    (pairing,) = pair_runs([base, arm])
    assert not pairing.pairs
    (refused,) = pairing.refused
    assert [reason.split(" differ")[0] for reason in refused.reasons] == ["data"]


def test_a_run_can_be_named_itself_but_not_with_another_arm(train: Train, glue: Glue) -> None:
    outcome = train(*PRETRAIN, "conditioning=identity", "seed=3")
    weights = f"init.weights={outcome.folder}"
    assert str(outcome.folder) in prepare(glue(weights, "conditioning=identity")).data.description
    with pytest.raises(
        ConfigError, match=r"was trained with conditioning identity λ=10 \(full\), but this run asks for none"
    ):
        prepare(glue(weights))
    with pytest.raises(ConfigError, match=r"λ=10.*asks for identity λ=5"):
        prepare(glue(weights, "conditioning=identity", "conditioning.lam=5"))


def test_arms_that_name_their_own_runs_can_be_paired(train: Train, glue: Glue) -> None:
    """A study's second stage is given each arm's own folder; that alone must not make the configurations differ."""
    hashes = set()
    for arm in ("none", "identity"):
        folder = train(*PRETRAIN, f"conditioning={arm}").folder
        hashes.add(pair_digest(glue(f"init.weights={folder}", f"conditioning={arm}")))
    assert len(hashes) == 1
    other = train(*PRETRAIN, "seed=1").folder
    assert pair_digest(glue(f"init.weights={other}")) not in hashes


def test_a_missing_pretraining_is_named(train: Train, glue: Glue, tmp_path: Path) -> None:
    train(*PRETRAIN)
    with pytest.raises(
        ConfigError, match=r"holds 0 finished pretraining runs with conditioning polar λ=1 \(full\) and seed 0"
    ):
        prepare(glue("conditioning=polar"))
    with pytest.raises(ConfigError, match="seed 4, and exactly one is needed"):
        prepare(glue("task.model.pretraining_seed=4"))
    assert prepare(glue("task.model.pretraining_seed=0", "seed=4")).data.outputs == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda model: {f"encoder.{name}": value for name, value in model.items()},
        lambda model: {name.replace("layers.0.", "layer.0."): value for name, value in model.items()},
        lambda model: {name: value for name, value in model.items() if "final_norm" not in name},
    ],
    ids=["prefix", "one layer", "missing"],
)
def test_corrupt_names_fail_instead_of_training(train: Train, glue: Glue, change: Any) -> None:
    outcome = train(*PRETRAIN)
    rewrite(reported(outcome), change)
    with pytest.raises(DataError, match="do not fit its own configuration"):
        run(glue())
    assert not list(outcome.folder.parents[2].glob("small_glue/**/result.json"))


@pytest.mark.parametrize("arm", ["none", "identity"])
def test_other_weights_under_the_right_names_fail_too(train: Train, glue: Glue, arm: str) -> None:
    """Random weights of the same shapes would fine-tune to a plausible score; their masked-LM loss gives them away."""
    outcome = train(*PRETRAIN, f"conditioning={arm}")

    def shuffled(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        embedding = model["embedding.weight"]
        return {**model, "embedding.weight": embedding[torch.randperm(len(embedding))]}

    rewrite(reported(outcome), shuffled)
    with pytest.raises(DataError, match=r"masked-LM loss of \d+\.\d+, but the run recorded \d+\.\d+"):
        run(glue(f"conditioning={arm}"))


def test_a_plain_checkpoint_in_a_conditioned_run_is_refused(train: Train, glue: Glue) -> None:
    plain, conditioned = train(*PRETRAIN), train(*PRETRAIN, "conditioning=identity")
    reported(conditioned).write_bytes(reported(plain).read_bytes())
    with pytest.raises(ConditioningError, match="plain in the checkpoint"):
        run(glue("conditioning=identity"))


def test_an_unfinished_run_is_refused(train: Train, glue: Glue) -> None:
    outcome = train(*PRETRAIN, "optim.lr=1e30", "optim.clip_norm=null")
    assert outcome.status == "diverged"
    with pytest.raises(DataError, match="has status 'diverged'"):
        prepare(glue(f"init.weights={outcome.folder}"))


@pytest.mark.parametrize("arm", ["identity", "polar"])
def test_conditioning_can_be_added_to_the_weights_before_fine_tuning(train: Train, glue: Glue, arm: str) -> None:
    """The folded model is the same function; only what is trained differs."""
    train(*PRETRAIN, f"conditioning={arm}")
    kept = prepare(glue(f"conditioning={arm}"))
    folded = prepare(glue(f"conditioning={arm}", "task.model.keep_conditioning=false"))
    assert len(conditioned_layers(kept.module.model)) == 2
    assert not conditioned_layers(folded.module.model)
    samples = kept.loader.first_samples(4)
    with torch.no_grad():
        outputs = [prepared.module.eval().example_forward(samples) for prepared in (kept, folded)]
    torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
    outcome = run(glue(f"conditioning={arm}", "task.model.keep_conditioning=false"))
    assert outcome.record["arm_id"].startswith(arm)


def test_values_that_do_not_fit_are_listed(glue: Glue) -> None:
    with pytest.raises(ConfigError) as caught:
        glue(
            "task.model.architecture=crammed_bert", "init.weights=null", "task.model.glue_task=wnli", "data.source=text"
        )
    said = str(caught.value)
    for part in ("'wnli'; allowed: cola", "init.weights is not given", "set it to null", "allowed: folder, hub"):
        assert part in said
