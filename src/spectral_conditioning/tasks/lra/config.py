"""Settings of the Long Range Arena task."""

from __future__ import annotations

import dataclasses
from typing import Any

from spectral_conditioning.errors import closest
from spectral_conditioning.tasks.settings import LoaderConfig, loader_problems

DATASETS = ("listops", "text", "retrieval", "image", "pathfinder")
STAND_INS = ("listops", "text", "image", "pathfinder")
CHOICES: dict[str, tuple[str, ...]] = {
    "attention": ("nystrom", "softmax"),
    "mode": ("published", "exact"),
    "inverse_start": ("batch", "matrix", "norms"),
    "pooling": ("mean_padded", "mean", "cls"),
}


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """The encoder of `nystromformer.py`; the defaults are the published setting.

    attention: "nystrom" | "softmax". mode: "published" follows the reference code, quirks included; "exact" keeps padding and
    batch-mates out of every token's output. landmarks, kernel_size (0: no convolution), inverse_iterations and
    inverse_start: see `attention.NystromAttention`. pooling: see `nystromformer.Encoder`. vocabulary: rows of the embedding.
    attention_dropout: of the softmax probabilities; Nyström attention has none, in the reference code either.
    """

    attention: str = "nystrom"
    mode: str = "published"
    layers: int = 2
    width: int = 64
    heads: int = 2
    head_dim: int = 32
    mlp_width: int = 128
    vocabulary: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.1
    pooling: str = "mean_padded"
    landmarks: int = 64
    kernel_size: int = 35
    inverse_iterations: int = 6
    inverse_start: str = "batch"


@dataclasses.dataclass(kw_only=True)
class DataConfig(LoaderConfig):
    """A folder of token arrays, as `spectral prepare NAME` writes it.

    dataset: which of the five tasks the folder holds. source: the folder. stand_in: name of a small data set
    (`stand_ins.RECIPES`) that is generated, or taken from an installed package, into `source` on first use; null for data that
    `spectral prepare` must have written. length: leading tokens of a sequence that are kept. padded_length: positions of the
    model. padding: "fixed" pads every batch to `padded_length`; "longest" to its longest sequence (exact mode only).
    select_on_test: validate, and so choose the checkpoint, on the test set and train on everything else, as the published
    Text experiment does; false holds out validation data.
    """

    dataset: str = "listops"
    source: str = "data/lra/listops"
    stand_in: str | None = None
    length: int = 2000
    padded_length: int = 2048
    padding: str = "fixed"
    select_on_test: bool = False


def choice_problem(key: str, value: str, allowed: tuple[str, ...]) -> list[str]:
    """Name a value that is not in its table, and the nearest one that is."""
    if value in allowed:
        return []
    near = closest(value, allowed)
    return [f"{key} is {value!r}; allowed: {', '.join(allowed)}" + (f"; closest {near!r}" if near else "")]


def _model_problems(model: ModelConfig) -> list[str]:
    found = [
        problem
        for key, allowed in CHOICES.items()
        for problem in choice_problem(f"task.model.{key}", getattr(model, key), allowed)
    ]
    positive = ("layers", "width", "heads", "head_dim", "mlp_width", "vocabulary", "landmarks", "inverse_iterations")
    found += [
        f"task.model.{key} is {getattr(model, key)}; it must be at least 1"
        for key in positive
        if getattr(model, key) < 1
    ]
    for key in ("dropout", "attention_dropout"):
        if not 0 <= getattr(model, key) < 1:
            found.append(f"task.model.{key} is {getattr(model, key)}; it must be in [0, 1)")
    if model.kernel_size < 0 or (model.kernel_size and model.kernel_size % 2 == 0):
        found.append(f"task.model.kernel_size is {model.kernel_size}; it must be odd, or 0 for no convolution")
    if model.mode == "exact" and model.inverse_start == "batch" and model.attention == "nystrom":
        found.append(
            "task.model.inverse_start=batch lets batch-mates change a sequence's output, which task.model.mode=exact rules "
            "out; set task.model.inverse_start=matrix, or task.model.mode=published"
        )
    return found


def _data_problems(data: DataConfig) -> list[str]:
    found = loader_problems(data)
    found += choice_problem("data.dataset", data.dataset, DATASETS)
    if data.stand_in is not None:
        found += choice_problem("data.stand_in", data.stand_in, STAND_INS)
    found += choice_problem("data.padding", data.padding, ("fixed", "longest"))
    if not 1 <= data.length <= data.padded_length:
        found.append(
            f"data.length is {data.length}; it must be between 1 and data.padded_length ({data.padded_length}), "
            f"or tokens would be cut off unsaid"
        )
    return found


def problems(config: Any) -> list[str]:
    """Name every value of a run configuration that does not fit; no file is opened."""
    model, data = config.task.model, config.data
    found = _model_problems(model) + _data_problems(data)
    if model.mode == "published" and model.attention == "nystrom" and model.landmarks > 0:
        if data.padded_length % model.landmarks:
            found.append(
                f"task.model.landmarks is {model.landmarks}, which does not divide data.padded_length ({data.padded_length}); "
                f"choose a divisor, or task.model.mode=exact"
            )
        elif data.padded_length == model.landmarks:
            found.append(
                f"task.model.landmarks equals data.padded_length ({data.padded_length}), which is exact softmax attention, not "
                f"Nyström's; ask for it with task.model.attention=softmax"
            )
    if model.mode == "published" and data.padding == "longest":
        found.append(
            "data.padding=longest makes the padded length, which the published mode computes with, depend on the batch; "
            "set data.padding=fixed, or task.model.mode=exact"
        )
    if model.pooling == "mean_padded" and model.mode == "exact" and data.padding == "longest":
        found.append(
            "task.model.pooling=mean_padded divides by the padded length, which data.padding=longest makes depend on the "
            "batch; set task.model.pooling=mean"
        )
    return found
