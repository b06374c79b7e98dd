"""Weights & Biases as one more place where a run's lines go; the run folder stays the record."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.training.record import read_lines

# Where a task's model configuration says which model it is.
_MODEL_KEYS = ("name", "architecture", "attention")


def described(config: Mapping[str, Any]) -> list[str]:
    """Return tags for a plain configuration: the model, the correction (`baseline` for none and for λ = 0), and λ."""
    model = config["task"]["model"]
    names = [str(model[key]) for key in _MODEL_KEYS if key in model][:1]
    chosen = config["conditioning"]
    lam = float(chosen["lam"])
    if chosen["correction"] == "none" or lam == 0:
        return [*names, "baseline", "lam0"]
    return [*names, chosen["correction"], f"lam{lam:g}"]


class WandbSink:
    """One W&B run per run folder, under an id that is a function of the configuration, finished when the run ends.

    Lines go to W&B with `split/` before each name and the optimizer step as a value of its own, so that a resumed run never
    asks W&B to go back in steps. A resumed run without a network writes its earlier lines again and removes the files that
    held them: two files under one id overwrite each other when they are synced.
    """

    def __init__(
        self,
        *,
        mode: str,
        folder: Path,
        run_id: str,
        project: str,
        entity: str | None,
        group: str,
        name: str,
        job_type: str,
        tags: list[str],
        config: Mapping[str, Any],
    ) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise ConfigError(
                "logger.wandb is on but wandb is not installed: pip install 'spectral-conditioning[train]'"
            ) from error
        earlier = list(folder.glob("wandb/offline-run-*")) if mode == "offline" else []
        self.run = wandb.init(
            mode=mode,  # type: ignore[arg-type]
            dir=str(folder), id=run_id, resume="allow", project=project, entity=entity, group=group, name=name,
            job_type=job_type, tags=[*dict.fromkeys([*tags, *described(config)])], config=dict(config), reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self.run.define_metric("step")
        for split in ("train", "val", "test", "spectra"):
            self.run.define_metric(f"{split}/*", step_metric="step")
        if earlier:
            for line in read_lines(folder / "metrics.jsonl"):
                self.write(line)
            for segment in earlier:
                shutil.rmtree(segment)

    def write(self, values: Mapping[str, Any]) -> None:
        split = values["split"]
        named = {f"{split}/{key}": value for key, value in values.items() if key not in ("step", "split", "epoch")}
        self.run.log({"step": values["step"], "epoch": values["epoch"], **named})

    def show(self, pictures: Mapping[str, Path]) -> None:
        """Log PNG files under their names."""
        if pictures:
            import wandb

            self.run.log({name: wandb.Image(str(path)) for name, path in pictures.items()})

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Write the summary from the reported checkpoint and close the run, with status failed when there is no record."""
        if record is not None:
            self.run.summary.update({"status": record["status"], **record["metrics"], "primary": record["primary"]})
            self.run.config.update({"record": dict(record)}, allow_val_change=True)
        self.run.finish(exit_code=0 if record is not None else 1)
