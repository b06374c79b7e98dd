"""Masked language modelling: data, loss over all masked tokens of a step, accumulation, evaluation."""

# B sequences, N tokens, M predicted positions, V vocabulary.

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from spectral_conditioning.errors import ConfigError, DataError
from spectral_conditioning.tasks.base import TaskData, TaskModule
from spectral_conditioning.tasks.cramming.config import DataConfig
from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel
from spectral_conditioning.tasks.cramming.masking import mask_counts, mask_sequence
from spectral_conditioning.tasks.cramming.preparation import Settings
from spectral_conditioning.tasks.cramming.prepare import prepare_text
from spectral_conditioning.tasks.cramming.token_store import TOKENIZER, Sequences, TokenStore, open_store
from spectral_conditioning.tasks.cramming.wordpiece import MASK, load_tokenizer, special_id
from spectral_conditioning.tasks.optim import OptimConfig, build_optimizer, triangle_factor
from spectral_conditioning.tasks.ramp import BatchPlan, Ramp
from spectral_conditioning.tasks.streams import Batch

NOT_COUNTED = -100
TEXT_HOLDOUT = 20


class Masked(NamedTuple):
    """Sequences with masks (B, N), the predicted positions (B, M) and the tokens there (B, M).

    A label of −100 marks a position that does not count.
    """

    ids: Tensor
    positions: Tensor
    labels: Tensor


class MaskedSequences(Dataset[Masked]):
    """Packed sequences, masked anew at every visit: the masks are a function of (seed, visit), by the caller's seeding."""

    def __init__(self, sequences: Sequences, *, rate: float, mask_id: int, vocabulary: int, limit: int | None = None):
        self.sequences, self.mask_id, self.vocabulary = sequences, mask_id, vocabulary
        self.size = min(len(sequences), limit) if limit is not None else len(sequences)
        self.counts = mask_counts(rate, len(sequences[0])) if self.size else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Masked:
        assert self.counts is not None
        ids_N = torch.from_numpy(self.sequences[index].astype("int64"))
        return Masked(*mask_sequence(ids_N, self.counts, mask_id=self.mask_id, vocabulary=self.vocabulary))


def open_tokens(data: DataConfig) -> TokenStore:
    """Open the prepared folder, or prepare the text first. Raises DataError when it does not fit the settings."""
    assert data.path is not None
    if data.source == "text":
        settings = Settings(
            vocabulary=data.vocabulary,
            length=data.length,
            filter=data.filter,
            holdout=TEXT_HOLDOUT,
            megabytes=data.megabytes,
        )
        store = prepare_text(data.path, Path(data.cache), settings)
    else:
        store = open_store(data.path)
    if store.length != data.length:
        raise DataError(
            f"{store.folder} holds sequences of {store.length} tokens, but data.length is {data.length}; set it to that"
        )
    return store


def load_pretraining_data(config: Any) -> TaskData:
    """Open the sequences that `config.data` names."""
    data: DataConfig = config.data
    store = open_tokens(data)
    wanted = config.task.model.vocabulary
    if wanted is not None and wanted != store.vocabulary:
        raise ConfigError(
            f"task.model.vocabulary is {wanted}, but the tokenizer of {store.folder} has {store.vocabulary} words; "
            f"prepare with --vocabulary {wanted}, or set it to null"
        )
    train, val = masked_split(store, data, "train"), masked_split(store, data, "val", limit=data.val_sequences)
    if not len(val):
        raise DataError(f"{store.folder} has no validation sequences; prepare it with a smaller --holdout")
    return TaskData(
        train=train,
        val=val,
        fingerprint=store.fingerprint,
        chance={"loss": store.unigram_entropy},
        outputs=store.vocabulary,
        description=f"{len(train):,} sequences of {store.length} tokens from {store.folder}, "
        f"unigram entropy {store.unigram_entropy:.3f} nats",
        tokens_per_sample=store.length,
        shuffle=data.order == "shuffled",
        ramp=None if data.ramp is None else Ramp(unit=data.ramp_unit, until=data.ramp),
    )


def masked_split(store: TokenStore, data: DataConfig, split: str, *, limit: int | None = None) -> MaskedSequences:
    """Return one split, masked by the rate of the settings."""
    mask_id = special_id(load_tokenizer(store.folder / TOKENIZER), MASK)
    return MaskedSequences(
        store.split(split), rate=data.mask_rate, mask_id=mask_id, vocabulary=store.vocabulary, limit=limit
    )


def token_losses(model: nn.Module, masked: Masked) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of the predicted tokens, in nats, and how many were predicted correctly."""
    logits_XV = model(masked.ids, masked.positions).flatten(0, 1).float()
    labels_X = masked.labels.flatten()
    loss = F.cross_entropy(logits_XV, labels_X, ignore_index=NOT_COUNTED, reduction="sum")
    return loss, (logits_XV.argmax(-1) == labels_X).sum()


class PretrainingModule(TaskModule):
    """Mean cross-entropy over all masked tokens of an optimizer step, accumulated over micro-batches.

    One batch of the loader is one optimizer step, whatever its size, so batches may grow; every micro-batch adds its sum
    divided by the count of the whole step, which makes the gradient independent of the split (a mean of means is not). The
    learning rate follows the samples seen, as the published schedule follows the clock.
    """

    def __init__(
        self,
        model: MaskedLanguageModel,
        *,
        optim: OptimConfig,
        total_steps: int,
        micro_batch_size: int | None,
    ) -> None:
        super().__init__(model, optim=optim, total_steps=total_steps)
        self.automatic_optimization = False
        self.micro_batch_size = micro_batch_size
        self._sums = torch.zeros(3, dtype=torch.float64)

    def micro_batches(self, masked: Masked) -> list[Masked]:
        """Split a step's sequences."""
        size = self.micro_batch_size or len(masked.ids)
        return [Masked(*parts) for parts in zip(*(torch.split(tensor, size) for tensor in masked), strict=True)]

    def accumulate(self, masked: Masked) -> dict[str, Tensor]:
        """Add the gradient of the step's mean loss to the weights and return loss and accuracy."""
        counted = (masked.labels != NOT_COUNTED).sum()
        # Ranks average their gradients, so each divides by the mean count of a rank.
        ranks = self.trainer.world_size if self._trainer is not None else 1
        count = self.reduce_sum(counted) / ranks
        total, correct = torch.zeros((), device=count.device), torch.zeros((), device=count.device)
        parts = self.micro_batches(masked)
        for number, part in enumerate(parts, start=1):
            with self._synchronised(number == len(parts)):
                loss, hits = token_losses(self.model, part)
                self._backward(loss / count)
            total += loss.detach()
            correct += hits
        return {"loss": total / count, "accuracy": correct / count}

    def _backward(self, loss: Tensor) -> None:
        if self._trainer is None:
            torch.autograd.backward(loss)
        else:
            self.manual_backward(loss)

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Let ranks exchange gradients in the last backward pass of a step only."""
        if last or self._trainer is None or self.trainer.world_size == 1:
            return contextlib.nullcontext()
        return self.trainer.strategy.model.no_sync()  # type: ignore[no-any-return, union-attr, operator]

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad()  # type: ignore[union-attr]
        losses = self.accumulate(Masked(*batch.samples))
        if self.optim.clip_norm is not None:
            self._clip(self.optim.clip_norm)
        optimizer.step()  # type: ignore[union-attr]
        schedule.step()  # type: ignore[union-attr, call-arg]
        return losses

    def no_decay(self) -> set[str]:
        # The recipe spares these names and nothing else (optim.decay_vectors is true there).
        return {name for name, _ in self.named_parameters() if "bias" in name or "norm" in name.lower()}

    def _clip(self, norm: float) -> None:
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            # AdamW's fused kernel unscales by itself unless this was done before, and a norm needs true gradients.
            scaler.unscale_(self.optimizers().optimizer)  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(self.parameters(), norm)

    def configure_optimizers(self) -> Any:
        optimizer, schedule = build_optimizer(
            self, self.optim, total_steps=self.total_steps, no_decay=self.no_decay(), clips_itself=True
        )
        plan: BatchPlan | None = self.trainer.datamodule.stream.plan  # type: ignore[attr-defined]
        if plan is not None:
            total, optim = plan.starts[-1], self.optim
            schedule = LambdaLR(optimizer, lambda step: triangle_factor(plan.samples_before(step), optim, total))
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def training_losses(self, samples: Any) -> dict[str, Tensor]:
        masked = Masked(*samples)
        loss, correct = token_losses(self.model, masked)
        count = (masked.labels != NOT_COUNTED).sum()
        return {"loss": loss / count, "accuracy": correct / count}

    def evaluate_batch(self, samples: Any, counted: Tensor) -> None:
        masked = Masked(*samples)
        labels = masked.labels.masked_fill(~counted[:, None], NOT_COUNTED)
        loss, correct = token_losses(self.evaluated_model, masked._replace(labels=labels))
        sums = torch.stack([loss.double(), correct.double(), (labels != NOT_COUNTED).sum().double()])
        self._sums = self._sums.to(sums.device) + sums

    def evaluation_metrics(self) -> dict[str, float]:
        loss, correct, count = self.reduce_sum(self._sums).tolist()
        self._sums = torch.zeros_like(self._sums)
        return {"loss": loss / count, "accuracy": correct / count}

    def example_forward(self, samples: Any) -> Tensor:
        masked = Masked(*samples)
        logits_BMV: Tensor = self.model(masked.ids, masked.positions)
        return logits_BMV
