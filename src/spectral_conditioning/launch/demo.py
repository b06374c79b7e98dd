"""`spectral demo`: baseline against conditioned attention on digits, then the table, the plots and what they say."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from spectral_conditioning.launch.local import train_locally
from spectral_conditioning.results import compare
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.identity import arm_label, conditioning, run_folder
from spectral_conditioning.training.schema import RunConfig

ARMS = (
    ["conditioning=none"],
    ["conditioning=identity", "conditioning.lam=1"],
    ["conditioning=identity", "conditioning.lam=10"],
    ["conditioning=identity_fused", "conditioning.lam=10"],
    ["conditioning=polar"],
)
SEEDS = (0, 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="folder for runs, table and plots"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=max(1, min(len(ARMS), os.cpu_count() or 1)),
        metavar="N",
        help="runs trained at once",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to every run, e.g. budget.epochs=5")


def run(args: argparse.Namespace) -> int:
    """Train every arm and print the comparison. An interrupted demo goes on; a finished one starts anew."""
    started = time.perf_counter()
    configs = demo_configs(args.out, args.overrides)
    if all((run_folder(config) / "result.json").exists() for config in configs):
        for config in configs:
            shutil.rmtree(run_folder(config))
    print(f"{len(configs)} runs on scikit-learn's digits, {args.workers} at a time, into {args.out}:")
    for config in configs[:: len(SEEDS)]:
        print(f"  {arm_label(conditioning(config))}")
    failed = train_locally(configs, folder=args.out / "configs", workers=args.workers)
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    status = compare.run(parser.parse_args([str(args.out), "--out", str(args.out / "compare")]))
    print(
        f"{time.perf_counter() - started:.0f} s in all. Small models on small data: no reproduction of the paper's tables."
    )
    return 1 if failed else status


def demo_configs(out: Path, overrides: list[str]) -> list[RunConfig]:
    """Return the demo's runs, arm by arm and seed by seed, checked before the first one starts."""
    common = [
        "experiment=imagenet/small", f"paths.runs='{out}'", "trainer.threads=1", "trainer.progress=lines",
        "evaluate.every_epochs=5", *overrides,
    ]  # fmt: skip
    return [compose_run([*common, *arm, f"seed={seed}"]) for arm in ARMS for seed in SEEDS]
