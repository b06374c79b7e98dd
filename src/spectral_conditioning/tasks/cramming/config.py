"""Settings of crammed BERT, pretraining and GLUE, and everything that can be wrong with them (nothing heavy is imported here)."""

from __future__ import annotations

import dataclasses
from typing import Any

from spectral_conditioning.errors import closest
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS
from spectral_conditioning.tasks.settings import LoaderConfig, loader_problems

ARCHITECTURES = ("crammed_bert", "crammed_bert_simple", "bert_base")
TEXT_SOURCES = ("prepared", "text")
GLUE_SOURCES = ("folder", "hub")
ORDERS = ("stored", "shuffled")
PYTHON_SOURCES = "python"


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """A masked language model to pretrain, or, with `glue_task`, a pretrained one to fine-tune.

    architecture: a name of ARCHITECTURES; null in fine-tuning, where the pretraining run says it and the sizes. vocabulary:
    must equal the tokenizer's, null takes it from there. layers, width, heads, ffn (rows of the first feed-forward layer),
    length (positions): sizes. dropout: of embedding, attention and both branches; the recipe pretrains without.

    glue_task: which task to fine-tune on, null pretrains. head_width: inner layer of the classification head.
    keep_conditioning: false adds C to the weights for good before fine-tuning. mask_padding: false lets tokens attend to padding,
    which then goes up to data.length. pretraining_seed: seed of the run to start from, null the run's own.
    """

    architecture: str | None = "crammed_bert"
    vocabulary: int | None = 32768
    layers: int = 16
    width: int = 768
    heads: int = 12
    ffn: int = 3072
    length: int = 128
    dropout: float = 0.0
    glue_task: str | None = None
    head_width: int = 1024
    keep_conditioning: bool = True
    mask_padding: bool = True
    pretraining_seed: int | None = None


@dataclasses.dataclass(kw_only=True)
class DataConfig(LoaderConfig):
    """Packed token sequences, or the sentences of one GLUE task.

    source: `prepared` (a folder that `spectral prepare pile` wrote), `text` (anything that command reads, prepared on first
    use under `cache`), `folder` (GLUE's files) or `hub` (a Hugging Face data set). path: where; for `text`, "python" means the
    sources of the running Python. length: tokens per sequence, or at most per sentence pair.

    text only: vocabulary, filter, megabytes: words of the tokenizer; documents with so many tokens per character or more are
    dropped (0: none); text that is read at most, null for all.
    pretraining: order: stored (shortest text first) or shuffled. mask_rate: share of positions predicted. micro_batch_size:
    sequences per device and backward pass, null for all at once. ramp: fraction of the budget at which the batch is full, null
    for constant batches; ramp_unit: first size and increment. val_sequences: at most so many are evaluated, null for all.
    GLUE: skip_bad_rows: report rows that cannot be read and go on without them. tokens: prepared folder whose tokenizer is
    used, null for that of the pretraining run.
    """

    source: str = "prepared"
    path: str | None = None
    cache: str = "data/cramming"
    length: int = 128
    vocabulary: int = 4096
    filter: float = 0.0
    megabytes: float | None = None
    order: str = "stored"
    mask_rate: float = 0.25
    micro_batch_size: int | None = None
    ramp: float | None = None
    ramp_unit: int = 128
    val_sequences: int | None = None
    skip_bad_rows: bool = False
    tokens: str | None = None


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> list[str]:
    if value in allowed:
        return []
    near = closest(str(value), allowed)
    return [f"{name} is {value!r}; allowed: {', '.join(allowed)}" + (f"; closest {near!r}" if near else "")]


def model_problems(model: ModelConfig) -> list[str]:
    """Name every model value that is out of range."""
    found = []
    for name in ("layers", "width", "heads", "ffn", "length", "head_width"):
        if getattr(model, name) < 1:
            found.append(f"task.model.{name} is {getattr(model, name)}; it must be at least 1")
    if not 0 <= model.dropout < 1:
        found.append(f"task.model.dropout is {model.dropout}; it must lie in [0, 1)")
    if model.heads >= 1 and model.width % model.heads:
        found.append(
            f"task.model.width is {model.width}, not a multiple of task.model.heads ({model.heads}); choose one that is"
        )
    if model.architecture == "crammed_bert" and (model.width % 2 or model.ffn % 2):
        found.append(
            f"crammed_bert halves task.model.width ({model.width}) and task.model.ffn ({model.ffn}); both must be even"
        )
    return found


def pretraining_problems(config: Any) -> list[str]:
    """Name what does not fit in a pretraining configuration."""
    model, data = config.task.model, config.data
    found = _choice("task.model.architecture", model.architecture, ARCHITECTURES) + model_problems(model)
    found += _choice("data.source", data.source, TEXT_SOURCES) + _choice("data.order", data.order, ORDERS)
    if data.source in TEXT_SOURCES and not data.path:
        found.append(f"data.path is not given, but data.source {data.source!r} reads from it; add data.path=…")
    if not 0 < data.mask_rate <= 1 or not 1 <= round(data.mask_rate * data.length) <= data.length:
        found.append(f"data.mask_rate is {data.mask_rate}; it must lie in (0, 1] and mask at least one token")
    for name in ("micro_batch_size", "val_sequences"):
        value = getattr(data, name)
        if value is not None and value < 1:
            found.append(f"data.{name} is {value}; it must be at least 1, or null")
    if data.ramp is not None and not data.ramp > 0:
        found.append(f"data.ramp is {data.ramp}; it must be a fraction of the budget above 0, or null")
    if data.ramp_unit < 1 or (data.ramp is not None and data.batch_size % max(1, data.ramp_unit)):
        found.append(
            f"data.ramp_unit is {data.ramp_unit}; it must be at least 1 and divide data.batch_size ({data.batch_size})"
        )
    if config.trainer.accumulate != 1:
        found.append(
            f"trainer.accumulate is {config.trainer.accumulate}; pretraining accumulates by data.micro_batch_size: set it to 1"
        )
    if config.optim.clip_value is not None:
        found.append(f"optim.clip_value is {config.optim.clip_value}; pretraining clips by norm: use optim.clip_norm")
    if config.optim.schedule != "triangle":
        found.append(f"optim.schedule is {config.optim.schedule!r}; pretraining uses 'triangle'")
    if config.init.weights is not None:
        found.append("init.weights is set; pretraining starts from random weights: set it to null")
    return found


def glue_problems(config: Any) -> list[str]:
    """Name what does not fit in a fine-tuning configuration."""
    model, data = config.task.model, config.data
    found = _choice("task.model.glue_task", model.glue_task, tuple(GLUE_TASKS))
    found += _choice("data.source", data.source, GLUE_SOURCES) + model_problems(model)
    if not data.path:
        found.append(
            "data.path is not given; it is the folder that holds CoLA, SST-2, … (or one task's files), or a hub name"
        )
    if config.init.weights is None:
        found.append(
            "init.weights is not given; it is the folder of a pretraining run, or of its experiment, in which the run "
            "of the same conditioning is found (then both arms share one configuration)"
        )
    if model.architecture is not None:
        found.append(
            f"task.model.architecture is {model.architecture!r}; fine-tuning takes it from the pretraining run: set it to null"
        )
    if not model.keep_conditioning and config.conditioning.refresh_every:
        found.append(
            "task.model.keep_conditioning is false, so nothing can be refreshed: set conditioning.refresh_every to 0"
        )
    return found


def problems(config: Any) -> list[str]:
    """Name every value of the task's model and data that does not fit, without opening a file (`config` is a `RunConfig`)."""
    found = loader_problems(config.data)
    if config.data.length < 2:
        found.append(f"data.length is {config.data.length}; it must be at least 2")
    pretrains = config.task.model.glue_task is None
    return found + (pretraining_problems(config) if pretrains else glue_problems(config))
