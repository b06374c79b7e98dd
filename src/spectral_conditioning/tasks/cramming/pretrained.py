"""Where fine-tuning starts: a finished pretraining run, found, loaded, and checked by the loss that it recorded."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader

from spectral_conditioning.conditioning import conditioned_layers, fold
from spectral_conditioning.errors import ConfigError, DataError
from spectral_conditioning.tasks.cramming.architectures import build_language_model
from spectral_conditioning.tasks.cramming.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.cramming.glue_model import GlueModel
from spectral_conditioning.tasks.cramming.language_model import MaskedLanguageModel
from spectral_conditioning.tasks.cramming.pretraining import (
    NOT_COUNTED,
    Masked,
    masked_split,
    open_tokens,
    token_losses,
)
from spectral_conditioning.tasks.cramming.token_store import TokenStore
from spectral_conditioning.tasks.streams import CollateBatch, EvaluationBatches, SeededDataset

# Relative difference between the recorded loss and the one measured again: mixed precision rounds, other weights are far off.
TOLERANCE = {"32-true": 1e-3, "64-true": 1e-3}
MIXED_TOLERANCE = 2e-2


@dataclasses.dataclass(frozen=True)
class PretrainedRun:
    """A finished run of masked language modelling: its folder, record and settings."""

    folder: Path
    record: Mapping[str, Any]
    model: ModelConfig
    data: DataConfig
    precision: str

    @property
    def store(self) -> TokenStore:
        """The sequences that it was trained on."""
        return open_tokens(self.data)

    @property
    def tokens(self) -> Path:
        """The prepared folder, which holds the tokenizer."""
        return self.store.folder

    def build(self, *, dropout: float) -> MaskedLanguageModel:
        """Build its model, untrained, with the dropout of fine-tuning."""
        settings = dataclasses.replace(self.model, dropout=dropout)
        return build_language_model(settings, vocabulary=self.store.vocabulary, length=self.data.length)

    def weights(self) -> dict[str, Any]:
        """Read the weights that it reported."""
        path = self.folder / "checkpoints" / "reported.ckpt"
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            return dict(content["model"])
        except Exception as error:
            raise DataError(f"cannot read the weights of the pretraining run, {path}: {error}") from error


def arm(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return conditioning settings in one form for comparison, None for the baseline."""
    if values["correction"] == "none" or values["lam"] == 0:
        return None
    return {key: list(value) if isinstance(value, list | tuple) else value for key, value in values.items()}


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return record and configuration of a run folder. Raises DataError when it is not a finished pretraining run."""
    try:
        record = json.loads((folder / "result.json").read_text())
        config = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{folder} is not the folder of a finished run: {error}") from error
    if record.get("task") != "cramming" or config["task"]["model"].get("glue_task") is not None:
        raise DataError(f"{folder} is a run of {record.get('experiment')!r}, not of masked language modelling")
    if record["status"] != "finished":
        raise DataError(
            f"the pretraining run {folder} has status {record['status']!r}; only a finished one can be used"
        )
    return record, config


def find_pretrained(config: Any) -> PretrainedRun:
    """Return the run that `init.weights` names: its own folder, or its experiment's, where arm and seed choose it.

    The conditioning of fine-tuning must be that of pretraining; with an experiment's folder both arms then share one
    configuration and can be paired.
    """
    given = Path(config.init.weights)
    wanted = arm(dataclasses.asdict(config.conditioning))
    if (given / "result.json").is_file():
        record, values = read_run(given)
        found = arm(values["conditioning"])
        if found != wanted:
            raise ConfigError(
                f"the pretraining run {given} was trained with conditioning {_shown(found)}, but this run asks for "
                f"{_shown(wanted)}; choose the same (conditioning=…), or give the folder of the experiment"
            )
        return _run(given, record, values)
    seed = config.seed if config.task.model.pretraining_seed is None else config.task.model.pretraining_seed
    runs = {result.parent: read_run(result.parent) for result in sorted(given.glob("*/seed*/result.json"))}
    fitting = [
        folder
        for folder, (_, values) in runs.items()
        if arm(values["conditioning"]) == wanted and values["seed"] == seed
    ]
    if len(fitting) != 1:
        listed = ", ".join(str(folder.relative_to(given)) for folder in fitting or runs) or "none"
        raise ConfigError(
            f"init.weights {given} holds {len(fitting)} finished pretraining runs with conditioning {_shown(wanted)} and "
            f"seed {seed}, and exactly one is needed (found: {listed}); pretrain it, set task.model.pretraining_seed, or name "
            f"the run's own folder"
        )
    return _run(fitting[0], *runs[fitting[0]])


def _shown(values: Mapping[str, Any] | None) -> str:
    return "none" if values is None else f"{values['correction']} λ={values['lam']:g} ({values['placement']})"


def _run(folder: Path, record: Mapping[str, Any], values: Mapping[str, Any]) -> PretrainedRun:
    model, data = ModelConfig(**values["task"]["model"]), DataConfig(**values["data"])
    return PretrainedRun(folder, record, model, data, values["trainer"]["precision"])


@torch.no_grad()
def masked_lm_loss(model: nn.Module, run: PretrainedRun) -> float:
    """Measure the loss on the validation sequences, with the masks that the run itself evaluated with."""
    dataset = masked_split(run.store, run.data, "val", limit=run.data.val_sequences)
    seeded = SeededDataset(dataset, seed=int(run.record["seed"]), stream="validate")
    batches = EvaluationBatches(len(dataset), batch_size=run.data.eval_batch_size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = model.training
    model.eval().to(device)
    total, count = 0.0, 0
    for batch in DataLoader(seeded, batch_sampler=batches, collate_fn=CollateBatch()):
        masked = Masked(*(tensor.to(device) for tensor in batch.samples))
        total += float(token_losses(model, masked)[0])
        count += int((masked.labels != NOT_COUNTED).sum())
    model.train(training).to("cpu")
    return total / count


def start_from(run: PretrainedRun, model: GlueModel, *, keep_conditioning: bool) -> None:
    """Load a run's weights into the (conditioned) model and check that they give the loss that the run recorded.

    Raises DataError when a name, shape or conditioning differs or the loss is another one: fine-tuning from other weights than
    the named ones would give a plausible score. Without `keep_conditioning` W + C becomes the weight.
    """
    try:
        model.language_model.load_state_dict(run.weights(), strict=True)
    except RuntimeError as error:
        raise DataError(f"the weights of {run.folder} do not fit its own configuration: {error}") from error
    recorded = run.record["metrics"]["val/loss"]
    measured = masked_lm_loss(model.language_model, run)
    tolerance = TOLERANCE.get(run.precision, MIXED_TOLERANCE)
    if not math.isclose(measured, recorded, rel_tol=tolerance):
        raise DataError(
            f"the weights of {run.folder} give a masked-LM loss of {measured:.4f}, but the run recorded {recorded:.4f}; they "
            f"are not the weights of that run, or its data has changed. Nothing was trained"
        )
    if not keep_conditioning and conditioned_layers(model):
        fold(model)
