"""GLUE sentences as token ids: `<cls> a <sep>`, or `<cls> a <sep> b <sep>`, cut and padded."""

# B examples, N tokens.

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from spectral_conditioning.tasks.base import TaskData
from spectral_conditioning.tasks.cramming.config import DataConfig
from spectral_conditioning.tasks.cramming.glue_files import Example, read_folder, read_hub
from spectral_conditioning.tasks.cramming.glue_metrics import chance_scores
from spectral_conditioning.tasks.cramming.glue_tasks import GLUE_TASKS
from spectral_conditioning.tasks.cramming.pretrained import PretrainedRun
from spectral_conditioning.tasks.cramming.token_store import TOKENIZER, find_store
from spectral_conditioning.tasks.cramming.wordpiece import CLS, PAD, SEP, load_tokenizer, special_id


class Sentences(NamedTuple):
    """A collated batch: ids (B, N), which tokens may be attended to (B, N) or None for all, labels (B,), parts (B,)."""

    ids: Tensor
    visible: Tensor | None
    labels: Tensor
    parts: Tensor


def cut_pair(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Cut the longer one, then both to halves of `room`, the longer one keeping an odd token (`longest_first` of tokenizers)."""
    if len(first) + len(second) <= room:
        return first, second
    shorter = min(len(first), len(second), room // 2)
    if len(first) > len(second):
        return first[: room - shorter], second[:shorter]
    return first[:shorter], second[: room - shorter]


class EncodedExamples(Dataset[tuple[list[int], float, int]]):
    """Examples as (ids, label, part), encoded when asked for. Draws nothing."""

    deterministic = True

    def __init__(self, examples: Sequence[Example], tokenizer: Tokenizer, *, length: int) -> None:
        self.examples, self.tokenizer, self.length = examples, tokenizer, length
        self.cls, self.sep = special_id(tokenizer, CLS), special_id(tokenizer, SEP)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[list[int], float, int]:
        example = self.examples[index]
        encoded = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in example.sentences]
        if len(encoded) == 1:
            ids = [self.cls, *encoded[0][: self.length - 2], self.sep]
        else:
            first, second = cut_pair(encoded[0], encoded[1], self.length - 3)
            ids = [self.cls, *first, self.sep, *second, self.sep]
        return ids, example.label, example.part


def collate(
    samples: list[tuple[list[int], float, int]], *, padding: int, regression: bool, length: int | None
) -> Sentences:
    """Pad to the longest of the batch and hide the padding, or, with `length`, pad to that and hide nothing."""
    ids, labels, parts = zip(*samples, strict=True)
    width = length or max(map(len, ids))
    ids_BN = torch.tensor([row + [padding] * (width - len(row)) for row in ids])
    lengths_B = torch.tensor([len(row) for row in ids])
    visible_BN = None if length else torch.arange(width) < lengths_B[:, None]
    kind = torch.float32 if regression else torch.int64
    return Sentences(ids_BN, visible_BN, torch.tensor(labels, dtype=kind), torch.tensor(parts))


def load_glue_data(config: Any, run: PretrainedRun) -> TaskData:
    """Read one task and encode it with the tokenizer that the pretraining run used.

    The fingerprint covers the sentences, the tokenizer, and what and how the pretraining run was trained on.
    """
    data: DataConfig = config.data
    key = config.task.model.glue_task
    task = GLUE_TASKS[key]
    read = read_folder if data.source == "folder" else read_hub
    assert data.path is not None
    train, val = read(data.path, key, task, skip_bad_rows=data.skip_bad_rows)
    folder = run.tokens if data.tokens is None else find_store(Path(data.tokens))
    tokenizer = load_tokenizer(folder / TOKENIZER)
    state = hashlib.blake2b(tokenizer.to_str().encode(), digest_size=16)
    # Arms whose pretraining differs in more than conditioning and seed are no pair, though they are fine-tuned alike.
    state.update("".join(run.record["hashes"][name] for name in ("pair", "data")).encode())
    for example in (*train, *val):
        state.update(repr(example).encode())
    parts = sorted({example.part for example in val})
    names = [name or "matched" for name in task.validation] if len(task.validation) > 1 else [""]
    sizes = ", ".join(f"{sum(e.part == p for e in val):,} validation {names[p]}".strip() for p in parts)
    return TaskData(
        train=EncodedExamples(train, tokenizer, length=data.length),
        val=EncodedExamples(val, tokenizer, length=data.length),
        fingerprint=state.hexdigest(),
        chance=chance_scores(task, [example.label for example in val if example.part == 0]),
        outputs=task.outputs,
        description=f"{task.folder}: {len(train):,} training, {sizes} examples; from {run.folder}",
        collate=functools.partial(
            collate,
            padding=special_id(tokenizer, PAD),
            regression=task.regression,
            length=None if config.task.model.mask_padding else data.length,
        ),
    )
