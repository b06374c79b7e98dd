"""What crammed BERT's run path, conditioning and preparation cost.

    python benchmarks/cramming.py                  the table below, a few minutes on one core
    python benchmarks/cramming.py --write benchmarks/cramming.md

step: one optimizer step of `spectral train` (loading and masking, callbacks, recording, scheduling) against a bare loop over the
same model and optimizer on batches that lie ready in memory. conditioned: a bare step with λI on Q, K and V against plain, step
by step in turn. Both are ratios of CPU seconds of one thread, so that a busy machine does not decide them. prepare: megabytes of
text per second on one core, tokenizer training apart.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.tasks.cramming.documents import chunks, find_files, python_sources
from spectral_conditioning.tasks.cramming.encoding import ChunkEncoder, Rules
from spectral_conditioning.tasks.cramming.preparation import Settings
from spectral_conditioning.tasks.cramming.prepare import prepare_text
from spectral_conditioning.tasks.cramming.pretraining import Masked, PretrainingModule, token_losses
from spectral_conditioning.tasks.cramming.task import TASK
from spectral_conditioning.tasks.cramming.token_store import TokenStore
from spectral_conditioning.tasks.cramming.wordpiece import Tokenizer
from spectral_conditioning.tasks.optim import build_optimizer
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.run import run
from spectral_conditioning.training.schema import RunConfig

# λ and whether denormal numbers are flushed to zero. The small λ shows what forming W + C costs; at λ = 10 the attention of
# this small model starts saturated, and a CPU takes longer over the denormal numbers of its softmax, which the last case flushes.
CASES = ((1e-3, False), (10.0, False), (10.0, True))


def configuration(store: TokenStore, folder: Path, *, steps: int, name: int = 0) -> RunConfig:
    """Compose the small pretraining with `steps` steps and nothing evaluated before the end."""
    return compose_run(
        [
            "experiment=cramming/small_pretrain",
            "data.source=prepared",
            f"data.path={store.folder}",
            "data.val_sequences=8",
            f"budget.steps={steps}",
            "evaluate.every_steps=null",
            "trainer.progress=none",
            "trainer.threads=1",
            "trainer.checkpoint_every=null",
            f"paths.runs={folder / f'runs{name}'}",
        ]
    )


def run_path_steps(config: RunConfig) -> list[float]:
    """Return CPU seconds from the begin of each training step to that of the next."""
    begun: list[float] = []
    step = PretrainingModule.training_step

    def timed(self: PretrainingModule, *arguments: Any) -> Any:
        begun.append(time.process_time())
        return step(self, *arguments)

    PretrainingModule.training_step = timed  # type: ignore[method-assign]
    try:
        run(config)
    finally:
        PretrainingModule.training_step = step  # type: ignore[method-assign]
    return [after - before for before, after in itertools.pairwise(begun)]


class BareLoop:
    """Forward, backward, clip, step; nothing else."""

    def __init__(self, config: RunConfig, conditioning: Conditioning | None = None) -> None:
        prepared = prepare(config)
        module = prepared.module
        assert isinstance(module, PretrainingModule)
        if conditioning is not None:
            condition(module.model, conditioning, layouts=TASK.layouts(module.model))
        self.model, self.norm = module.model.train(), config.optim.clip_norm or 1.0
        self.optimizer, _ = build_optimizer(module, config.optim, total_steps=10**6, no_decay=module.no_decay())
        self.batches = [Masked(*prepared.loader.first_samples(config.data.batch_size)) for _ in range(4)]

    def step(self, number: int) -> float:
        """Take one step and return its CPU seconds."""
        masked = self.batches[number % len(self.batches)]
        started = time.process_time()
        self.optimizer.zero_grad()
        loss, _ = token_losses(self.model, masked)
        (loss / masked.labels.numel()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.norm)
        self.optimizer.step()
        return time.process_time() - started


def ratio_of(
    variant: Callable[[int], list[float]], reference: Callable[[int], list[float]], rounds: int
) -> list[float]:
    """Return one ratio of median step times per round, the two in random order."""
    ratios, draw = [], random.Random(0)
    for number in range(rounds):
        found: dict[str, float] = {}
        for name, function in draw.sample([("variant", variant), ("reference", reference)], 2):
            found[name] = statistics.median(function(number))
        ratios.append(found["variant"] / found["reference"])
    return ratios


def alternating(variant: BareLoop, reference: BareLoop, *, rounds: int, steps: int, flush: bool) -> list[float]:
    """Return one ratio of median step times per round, the two taking turns at every step."""
    ratios = []
    torch.set_flush_denormal(flush)
    for _ in range(rounds):
        pairs = [(variant.step(number), reference.step(number)) for number in range(steps)][2:]
        ratios.append(statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs))
    torch.set_flush_denormal(False)
    return ratios


@dataclasses.dataclass
class Line:
    """One row of the table."""

    name: str
    value: str
    target: str


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} rounds)"


def preparation_speed(store: TokenStore, text: str, megabytes: float) -> str:
    """Encode and filter text on one core."""
    tokenizer = Tokenizer.from_file(str(store.folder / "tokenizer.json"))
    encode = ChunkEncoder(tokenizer.to_str(), Rules(filter=0.25, holdout=200))
    size, seconds = 0, 0.0
    for chunk in chunks(python_sources() if text == "python" else find_files(text)):
        started = time.process_time()
        encode(chunk)
        seconds += time.process_time() - started
        size += sum(len(text) for text in chunk.texts())
        if size > megabytes * 1e6:
            break
    return f"{size / seconds / 1e6:.2f} MB/s ({size / 1e6:.1f} MB)"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def measure(*, text: str, rounds: int, steps: int, megabytes: float) -> list[Line]:
    """Return every row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = prepare_text(
            "python", folder / "tokens", Settings(vocabulary=4096, filter=0.0, holdout=20, megabytes=4.0)
        )
        base = configuration(store, folder, steps=steps)
        plain = BareLoop(base)

        def path(number: int) -> list[float]:
            with quiet():
                return run_path_steps(configuration(store, folder, steps=steps, name=number))[2:]

        def bare(_: int) -> list[float]:
            return [plain.step(number) for number in range(steps)][2:]

        against_bare = ratio_of(path, bare, rounds)
        against_plain = {
            (lam, flush): alternating(
                BareLoop(base, Conditioning(lam=lam)), plain, rounds=rounds, steps=2 * steps, flush=flush
            )
            for lam, flush in CASES
        }
        speed = preparation_speed(store, text, megabytes)
    return [
        Line("step of `spectral train` / bare loop", spread(against_bare), "≤ 1.05"),
        *(
            Line(
                f"conditioned / plain step, λ = {lam:g}{', denormals flushed' if flush else ''}",
                spread(ratios),
                "≤ 1.01",
            )
            for (lam, flush), ratios in against_plain.items()
        ),
        Line(f"prepare, per core ({Path(text).name})", speed, "≥ 2 MB/s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--text", default="python", help="what `spectral prepare pile --input` takes (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = measure(text=args.text, rounds=args.rounds, steps=args.steps, megabytes=args.megabytes)
    if args.json:
        json.dump([dataclasses.asdict(line) for line in lines], sys.stdout, indent=1)
        return
    rows = ["| what | measured | target |", "|---|---|---|"]
    rows += [f"| {line.name} | {line.value} | {line.target} |" for line in lines]
    text = "\n".join(rows) + "\n"
    print(text, end="")
    if args.write:
        scale = "cramming/small_pretrain: 4 layers, width 128, 32 sequences of 128 tokens, one CPU thread, CPU seconds."
        args.write.write_text(f"`python benchmarks/cramming.py`. {scale}\n\n{text}")


if __name__ == "__main__":
    main()
