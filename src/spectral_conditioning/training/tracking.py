"""Weights & Biases as one more place where a run's lines go; the run folder stays the record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import ConfigError


class WandbSink:
    """One W&B run per run folder, under an id that is a function of the configuration, finished when the run ends.

    Lines go to W&B with `split/` before each name and the optimizer step as a value of its own, so that a resumed run never
    asks W&B to go back in steps.
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
        self.run = wandb.init(
            mode=mode,  # type: ignore[arg-type]
            dir=str(folder), id=run_id, resume="allow", project=project, entity=entity, group=group, name=name,
            job_type=job_type, tags=tags, config=dict(config), reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self.run.define_metric("step")
        for split in ("train", "val", "test", "spectra"):
            self.run.define_metric(f"{split}/*", step_metric="step")

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
