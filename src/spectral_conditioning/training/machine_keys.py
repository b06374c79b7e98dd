"""Which values say nothing about what a run computes; without torch, because comparisons ask too."""

# Values that change where or how fast a run goes but not what it computes; they stay out of the run's identity.
MACHINE_KEYS = frozenset(
    {"paths", "logger", "data.workers", "evaluate.spectra"}
    | {f"trainer.{key}" for key in ("devices", "nodes", "threads", "log_every", "progress")}
    | {f"trainer.{key}" for key in ("accelerator", "checkpoint_every", "keep_checkpoints")}
)
