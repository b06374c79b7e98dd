"""`spectral bench MODEL`: what conditioning costs, as ratios measured in one process, beside exact counts."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning import Conditioning, Refresher, condition, fold
from spectral_conditioning.errors import ConfigError, closest
from spectral_conditioning.launch.paired_timing import Ratio, paired_ratios
from spectral_conditioning.launch.run_path_timing import time_run_path
from spectral_conditioning.randomness import seed_all
from spectral_conditioning.training.record import machine, versions, write_json

PLAIN = "plain"
MODEL = "vit_base_patch16_224"
# Label → settings of each conditioned training step, in the order of the table.
STEPS: dict[str, Conditioning] = {
    "identity λ=10": Conditioning(correction="identity", lam=10.0),
    "polar once": Conditioning(correction="polar", lam=1.0),
    "polar every step": Conditioning(correction="polar", lam=1.0, refresh_every=1),
    "SVD every step": Conditioning(correction="svd", lam=1.0, refresh_every=1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral bench`."""
    parser.add_argument("model", nargs="?", default=MODEL, help=f"a timm model (default: {MODEL})")
    parser.add_argument(
        "--batch", type=int, default=None, metavar="N", help="images a step (default: 128 on a GPU, 4 on CPUs)"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, metavar="N", help="rounds; each gives one ratio (default: %(default)s)"
    )
    parser.add_argument("--device", default=None, metavar="NAME", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default=None, help="autocast (default: bfloat16 on a GPU)"
    )
    parser.add_argument("--flush-denormal", action="store_true",
                        help="on a CPU: numbers below 1e-38 count as zero (a saturated softmax is full of them)")  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="LABEL",
                        help=f"training steps to time beside the plain one: {', '.join(STEPS)}")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure here")


class Step:
    """One AdamW training step of a model on fixed random images; refreshes corrections as its settings say."""

    def __init__(self, model: nn.Module, settings: Conditioning | None, images: Tensor, labels: Tensor, autocast: bool):
        self.model, self.images, self.labels, self.autocast = model, images, labels, autocast
        if settings is not None:
            condition(model, settings)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        self.refresher = Refresher(model) if settings is not None and settings.refresh_every else None
        self.count = 0

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.images.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.count += 1
        if self.refresher is not None:
            self.refresher.step(self.count)


def run(args: argparse.Namespace) -> int:
    """Run the bench, with denormal numbers flushed to zero where that is asked for, and return 0."""
    if not args.flush_denormal:
        return measure(args)
    # Threads that start from here on inherit it.
    if not torch.set_flush_denormal(True):
        raise ConfigError("--flush-denormal: this processor has no such mode; leave it out")
    try:
        return measure(args)
    finally:
        torch.set_flush_denormal(False)


def measure(args: argparse.Namespace) -> int:
    """Measure, print the table and write it as JSON when asked. Raises ConfigError for a model or device that is not there."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {args.device}: no CUDA device is available here; use --device cpu")
    if args.rounds < 1 or (args.batch is not None and args.batch < 1):
        raise ConfigError(f"--rounds is {args.rounds} and --batch is {args.batch}; both must be at least 1")
    batch = args.batch or (128 if device.type == "cuda" else 4)
    autocast = (args.precision or ("bfloat16" if device.type == "cuda" else "float32")) == "bfloat16"
    model, size = build(args.model, device)
    seed_all(0, "bench")
    images = torch.randn(batch, *size, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)
    number = "bfloat16 autocast" if autocast else "float32"
    flushed = ", denormals flushed" if args.flush_denormal else ""
    print(f"{args.model}, batch {batch}, {number}{flushed}, {describe_machine(device)}", flush=True)
    chosen = {label: STEPS[label] for label in args.only}
    steps, memory = time_steps(model, chosen, images, labels, autocast=autocast, rounds=args.rounds)
    shared = shared_refreshes(steps)
    inference = time_inference(model, images, autocast=autocast, rounds=args.rounds)
    counts = count_costs(model, images)
    with progress("run path", args.rounds) as advance:
        path = time_run_path(rounds=args.rounds, progress=advance)
    print_table(steps, inference, counts, memory, batch=batch, shared=shared, path=path, seconds=unit(device))
    if args.json:
        write_json(args.json, {
            "model": args.model, "batch": batch, "autocast": autocast, "rounds": args.rounds, "machine": machine(),
            "seconds": unit(device), "threads": torch.get_num_threads(), "flush_denormal": args.flush_denormal,
            "versions": versions(), "training_step": {k: vars(v) for k, v in steps.items()},
            "derived": shared, "inference": {k: vars(v) for k, v in inference.items()}, "counts": counts,
            "run_path": vars(path), "peak_memory_bytes": memory,
        })  # fmt: skip
        print(f"Written: {args.json}")
    return 0


def build(name: str, device: torch.device) -> tuple[nn.Module, tuple[int, int, int]]:
    """Build a randomly initialised timm model and return it with its input size (channels, height, width)."""
    import timm

    if name not in timm.list_models():
        near = closest(name, timm.list_models())
        raise ConfigError(
            f"timm has no model {name!r}" + (f"; closest {near!r}" if near else "; see timm.list_models()")
        )
    seed_all(0, "init")
    model = timm.create_model(name).to(device).train()
    size: tuple[int, int, int] = timm.data.resolve_model_data_config(model)["input_size"]
    return model, size


def describe_machine(device: torch.device) -> str:
    """Return one phrase about the hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def unit(device: torch.device) -> str:
    """Return what the seconds of a table are (`paired_timing.clock`)."""
    return "seconds" if device.type == "cuda" else "processor seconds"


def time_steps(
    model: nn.Module, chosen: dict[str, Conditioning], images: Tensor, labels: Tensor, *, autocast: bool, rounds: int
) -> tuple[dict[str, Ratio], dict[str, int]]:
    """Return the ratio of each conditioned training step to the plain one, and peak memory in bytes on a GPU ({} on a CPU).

    Every variant owns a copy of the model.
    """
    settings: dict[str, Conditioning | None] = {PLAIN: None, **chosen}
    steps = {name: Step(copy.deepcopy(model), value, images, labels, autocast) for name, value in settings.items()}
    device = images.device
    memory = {name: peak_memory(step, device) for name, step in steps.items()} if device.type == "cuda" else {}
    with progress("training steps", rounds) as advance:
        ratios = paired_ratios(steps, reference=PLAIN, rounds=rounds, device=device, progress=advance, warm_up=2)
    return ratios, memory


def shared_refreshes(steps: dict[str, Ratio]) -> dict[str, float]:
    """Return the ratio of a polar correction refreshed every n steps: each step carries 1/n of a refresh."""
    if not {"polar once", "polar every step"} <= set(steps):
        return {}
    once, always = steps["polar once"].ratio, steps["polar every step"].ratio
    return {f"polar every {n} steps": once + (always - once) / n for n in (10, 100)}


def peak_memory(step: Step, device: torch.device) -> int:
    """Return how much one step allocates at its peak beyond what was held before, in bytes."""
    step()
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - held


def time_inference(model: nn.Module, images: Tensor, *, autocast: bool, rounds: int) -> dict[str, Ratio]:
    """Return the ratios of conditioned and of folded inference to plain inference."""
    plain = copy.deepcopy(model).eval()
    conditioned = copy.deepcopy(model).eval()
    condition(conditioned, Conditioning(correction="identity", lam=10.0))
    folded = copy.deepcopy(conditioned)
    fold(folded)

    def forward(net: nn.Module) -> Callable[[], Any]:
        def call() -> Any:
            with torch.inference_mode(), torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=autocast):
                return net(images)

        return call

    variants = {PLAIN: forward(plain), "conditioned": forward(conditioned), "folded": forward(folded)}
    with progress("inference", rounds) as advance:
        return paired_ratios(variants, reference=PLAIN, rounds=rounds, device=images.device, progress=advance)


def count_costs(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Return what identity conditioning adds to a training step, counted: FLOPs, bytes, parameters."""
    from spectral_conditioning.analysis.cost import conditioning_cost

    return conditioning_cost(model, Conditioning(correction="identity", lam=10.0), images[:1])


@contextmanager
def progress(text: str, total: int) -> Iterator[Callable[[], object]]:
    """Show a bar while rounds pass, where standard error is a terminal."""
    from tqdm import tqdm

    with tqdm(total=total, desc=text, unit="round", disable=None, leave=False) as bar:
        yield lambda: bar.update()


def print_table(
    steps: dict[str, Ratio],
    inference: dict[str, Ratio],
    counts: dict[str, Any],
    memory: dict[str, int],
    *,
    batch: int,
    shared: dict[str, float],
    path: Ratio,
    seconds: str,
) -> None:
    """Print the ratios and counts."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for title, ratios in (("Training step", steps), ("Inference", inference)):
        table = Table(title=title, title_justify="left")
        for name in ("variant", "time / plain", "95 % interval", seconds, *(["peak memory, MB"] if memory else [])):
            table.add_column(name, justify="left" if name == "variant" else "right")
        for name, ratio in ratios.items():
            shown = [f"{memory[name] / 2**20:.0f}" if name in memory else ""] if memory else []
            table.add_row(
                name, f"{ratio.ratio:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}", f"{ratio.seconds:.4f}", *shown
            )
        console.print(table)
    for name, share in shared.items():
        console.print(f"{name}: {share:.3f} (derived from the rows above)")
    console.print(
        f"Run path / bare loop: {path.ratio:.3f} ({path.low:.3f} to {path.high:.3f}), "
        f"a step of imagenet/small, {path.seconds:.4f} processor seconds"
    )
    console.print("Identity, counted for one image:", json.dumps(counts, indent=1, default=str), markup=False)
    if batch < 32:
        console.print(
            f"Batch {batch} is small: adding C costs the same at any batch, so its share shrinks as the batch grows."
        )
