"""What `spectral compare` costs on many runs.

    python benchmarks/compare.py                                     # 2,000 run folders: 4 experiments, 20 arms, 25 seeds
    python benchmarks/compare.py --experiments 1 --arms 400 --seeds 5

Writes run folders with invented results into a temporary folder, with the configuration and the log of a digits run, then times
the whole command, start of Python included: with --table-only, and with every file and figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spectral_conditioning.conditioning import Conditioning
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.identity import arm_id, arm_label

STEPS, LOGGED = 400, 80
PLACEMENTS = ("full", "per_head", "fused")


def arms(count: int) -> Iterator[Conditioning | None]:
    """Yield the baseline and then conditioned arms: λ rises, over the three placements."""
    yield None
    for index in range(count - 1):
        yield Conditioning(correction="identity", lam=0.1 * (1 + index // 3), placement=PLACEMENTS[index % 3])


def record(
    experiment: str, arm: Conditioning | None, seed: int, config: dict[str, Any], value: float
) -> dict[str, Any]:
    """Return a record of schema 1 with the invented result `value`."""
    return {
        "schema": 1, "status": "finished", "experiment": experiment, "task": "imagenet", "arm": arm_label(arm),
        "arm_id": arm_id(arm), "seed": seed, "conditioning": None if arm is None else arm.to_dict(),
        "lam": 0.0 if arm is None else arm.lam, "projections": 0 if arm is None else 18, "steps": STEPS,
        "samples_seen": 64 * STEPS, "tokens_seen": None, "metrics": {"val/accuracy": value, "val/loss": 1 - value},
        "primary": {"name": "val/accuracy", "mode": "max", "value": value, "step": STEPS, "weights": "raw", "rule": "last"},
        "chance": 0.1, "hashes": {"initial_weights": f"w{seed}", "order": f"o{seed}", "data": "d", "pair": experiment},
        "saturation": {"layers": [{"layer": str(i), "self_weight": 0.1} for i in range(6)], "saturated": 0, "total": 6},
        "diverged_at": None, "skipped_steps": 0, "scale": {"parameters": 301706, "train_samples": 1297, "val_samples": 500},
        "config": config, "versions": {"torch": "2"}, "code": {"sources": "s", "commit": "c", "dirty": False}, "machine": {},
        "seconds": {"train": 30.0, "total": 31.0},
    }  # fmt: skip


def log_lines(value: float, draw: random.Random) -> str:
    """Return the text of a metrics.jsonl with training, validation and spectra lines."""
    lines: list[dict[str, Any]] = []
    for index in range(1, LOGGED + 1):
        step, share = index * STEPS // LOGGED, index / LOGGED
        lines.append({"step": step, "split": "train", "epoch": share, "loss": 2.3 - 2 * share + 0.1 * draw.random()})
        if index % 4 == 0:
            lines.append(
                {"step": step, "split": "val", "epoch": share, "accuracy": value * share, "loss": 2.3 - 2 * share}
            )
        if index % 8 == 0:
            spectra = {f"{name}/{role}": 1 + draw.random() for name in ("sigma_min", "kappa_w") for role in "qkv"}
            lines.append({"step": step, "split": "spectra", "epoch": share, **spectra, "kappa_j": 1e4})
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_folders(root: Path, *, experiments: int, arm_count: int, seeds: int) -> int:
    """Write the run folders and return how many there are."""
    config = dataclasses.asdict(compose_run([]))
    draw = random.Random(0)
    written = 0
    for number in range(experiments):
        experiment = f"imagenet/study_{number}"
        for place, arm in enumerate(arms(arm_count)):
            for seed in range(seeds):
                value = 0.85 + 0.002 * (place % 7) + 0.02 * draw.random()
                folder = root / experiment / arm_id(arm) / f"seed{seed}-{written:08x}"
                folder.mkdir(parents=True)
                content = record(experiment, arm, seed, {**config, "name": experiment, "seed": seed}, value)
                (folder / "result.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
                (folder / "metrics.jsonl").write_text(log_lines(value, draw), encoding="utf-8")
                (folder / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
                written += 1
    return written


def timed(*words: str) -> tuple[float, float]:
    """Run `spectral compare` in a process of its own; return its wall time and its processor time, in seconds."""
    command = "import sys; from spectral_conditioning.cli import main; sys.exit(main())"
    started, used = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", command, "compare", *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    processor = after.children_user - used.children_user + after.children_system - used.children_system
    return time.perf_counter() - started, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=4)
    parser.add_argument("--arms", type=int, default=20, help="arms of each experiment, the baseline counted")
    parser.add_argument("--seeds", type=int, default=25)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "runs"
        count = write_folders(root, experiments=args.experiments, arm_count=args.arms, seeds=args.seeds)
        tables = timed(str(root), "--table-only")
        report = timed(str(root), "--out", str(Path(temporary) / "compare"))
        files = len(list((Path(temporary) / "compare").iterdir()))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{count:,} run folders: {args.experiments} experiments, {args.arms} arms, {args.seeds} seeds")
    print(f"{'':28}{'wall':>10}{'processor':>12}")
    for name, (wall, processor) in (
        ("spectral compare --table-only", tables),
        (f"the same, and {files} files", report),
    ):
        print(f"{name:28}{wall:8.1f} s{processor:10.1f} s")


if __name__ == "__main__":
    main()
