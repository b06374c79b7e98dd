"""Configurations: every value that does not fit is named, and every experiment file is what its header says."""

from __future__ import annotations

import pytest

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.compose import compose_run, config_directory

FAMILY = config_directory() / "experiment/lra"
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
# Positions, vocabulary, batch, peak rate, warm-up, steps, steps between evaluations: mlpen/Nystromformer, LRA/code/lra_config.py.
PAPER = {
    "listops": (2048, 32, 32, 1e-4, 1000, 5000, 50),
    "text": (4096, 512, 32, 1e-4, 8000, 20000, 500),
    "retrieval": (4096, 512, 32, 1e-4, 800, 30000, 300),
    "image": (1024, 512, 256, 1e-4, 175, 35000, 175),
    "pathfinder": (1024, 512, 256, 1e-4, 312, 62400, 312),
}
SKYFORMER = {
    "skyformer_listops": (32, 1e-4, 1000, 500),
    "skyformer_text": (32, 1e-4, 80, 500),
    "skyformer_retrieval": (16, 2e-4, 800, 1000),
    "skyformer_image": (256, 1e-4, 175, 50),
    "skyformer_pathfinder": (128, 2e-4, 312, 500),
}
SMALL = tuple(f"small_{name}" for name in TASKS)
EVERY = (*PAPER, *SKYFORMER, *SMALL)


def test_every_file_on_disk_is_tested_here() -> None:
    assert {path.stem for path in FAMILY.glob("*.yaml")} == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_header_says_what_a_reader_needs(name: str) -> None:
    header = [line for line in (FAMILY / f"{name}.yaml").read_text().splitlines() if line.startswith("# ")]
    for word in ("command:", "hardware:", "score:", "inferred:"):
        assert any(line.startswith(f"# {word}") for line in header), word
    assert any(f"experiment=lra/{name}" in line for line in header)
    assert compose_run([f"experiment=lra/{name}"]).name == f"lra/{name}"


@pytest.mark.parametrize("name", PAPER)
def test_values_of_the_published_recipe(name: str) -> None:
    config = compose_run([f"experiment=lra/{name}"])
    model, data, optim = config.task.model, config.data, config.optim
    assert (data.padded_length, model.vocabulary, data.batch_size, optim.lr) == PAPER[name][:4]
    assert (optim.warmup_steps, config.budget.steps, config.evaluate.every_steps) == PAPER[name][4:]
    assert (model.layers, model.width, model.mlp_width, model.heads, model.head_dim) == (2, 64, 128, 2, 32)
    assert (model.attention, model.mode, model.pooling, model.inverse_start) == (
        "nystrom",
        "published",
        "mean_padded",
        "batch",
    )
    assert (model.landmarks, model.kernel_size, model.inverse_iterations, model.dropout) == (64, 35, 6, 0.1)
    assert (optim.weight_decay, optim.eps, tuple(optim.betas), optim.schedule) == (0.0, 1e-6, (0.9, 0.999), "onecycle")
    assert (optim.clip_norm, optim.clip_value, optim.ema_decay) == (None, None, None)
    assert (config.trainer.precision, data.select_on_test, data.dataset) == ("16-mixed", False, name)


@pytest.mark.parametrize("name", SKYFORMER)
def test_values_of_the_skyformer_recipe(name: str) -> None:
    config = compose_run([f"experiment=lra/{name}"])
    assert (
        config.data.batch_size,
        config.optim.lr,
        config.optim.warmup_steps,
        config.evaluate.every_steps,
    ) == SKYFORMER[name]
    assert (config.task.model.landmarks, config.task.model.kernel_size, config.budget.steps) == (128, 0, 50000)
    assert (config.optim.clip_value, config.optim.clip_norm) == (1.0, None)


@pytest.mark.parametrize("name", SMALL)
def test_small_runs_are_small_and_on_a_cpu(name: str) -> None:
    config = compose_run([f"experiment=lra/{name}"])
    assert config.trainer.accelerator == "cpu"
    assert config.budget.steps * config.data.batch_size * config.data.padded_length < 1e7
    # The retrieval stand-in comes by path; all others are generated or installed.
    assert (config.data.stand_in is None) == (name == "small_retrieval")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.model.attention=nystroem",
            r"task\.model\.attention is 'nystroem'; allowed: nystrom, softmax; closest 'nystrom'",
        ),
        ("task.model.mode=exactly", "closest 'exact'"),
        ("task.model.pooling=max", "allowed: mean_padded, mean, cls"),
        ("task.model.inverse_start=row", r"inverse_start is 'row'"),
        ("task.model.kernel_size=34", "must be odd, or 0"),
        ("task.model.layers=0", r"task\.model\.layers is 0; it must be at least 1"),
        ("task.model.dropout=1.0", r"must be in \[0, 1\)"),
        ("task.model.landmarks=60", r"does not divide data\.padded_length \(64\)"),
        ("task.model.landmarks=64", "which is exact softmax attention"),
        ("task.model.mode=exact", "lets batch-mates change a sequence's output"),
        ("data.padding=longest", "padded length, which the published mode computes with"),
        ("data.length=65", r"between 1 and data\.padded_length"),
        ("data.dataset=listop", "closest 'listops'"),
        ("data.batch_size=0", "must be at least 1"),
        ("data.stand_in=listop", r"data\.stand_in is 'listop'; allowed: .*closest 'listops'"),
    ],
)
def test_a_value_that_does_not_fit_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_run(["experiment=lra/small_listops", override])


def test_all_problems_come_in_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_run(
            ["experiment=lra/small_listops", "task.model.kernel_size=34", "task.model.pooling=max", "data.workers=-1"]
        )
    assert all(word in str(caught.value) for word in ("3 problems", "kernel_size", "pooling", "data.workers"))


def test_the_exact_mode_takes_any_length_and_batches_padded_to_their_longest() -> None:
    config = compose_run(
        [
            "experiment=lra/small_listops",
            "task.model.mode=exact",
            "task.model.inverse_start=matrix",
            "task.model.pooling=mean",
            "task.model.landmarks=13",
            "data.padding=longest",
        ]
    )
    assert config.data.padding == "longest"
    with pytest.raises(ConfigError, match="mean_padded divides by the padded length"):
        compose_run(
            [
                "experiment=lra/small_listops",
                "task.model.mode=exact",
                "task.model.inverse_start=matrix",
                "data.padding=longest",
            ]
        )
