"""What a Nyströmformer training step costs, against the same network around transformers' attention.

    python benchmarks/lra.py                          # the published ListOps setting: batch 32, 2,048 tokens, 64 landmarks
    python benchmarks/lra.py --pairs 5 --table-batch 4 --output benchmarks/lra.md

Steps of both networks alternate, and the ratio of a pair of neighbouring steps is what is reported (the median over pairs), so
that a busy machine slows both. Times of the table over lengths are medians of single steps.
"""

# B batch, N tokens.

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.lra.attention import Padding
from spectral_conditioning.tasks.lra.config import ModelConfig
from spectral_conditioning.tasks.lra.data import PadBatch, SequenceDataset
from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions, generate_chunk
from spectral_conditioning.tasks.lra.nystromformer import SequenceClassifier
from spectral_conditioning.tasks.lra.token_store import write_store
from spectral_conditioning.tasks.streams import StreamDataModule

LENGTHS = (512, 1024, 2048, 4096)
Step = Callable[[], object]


class TransformersAttention(nn.Module):
    """transformers' NystromformerSelfAttention with a projection back; it masks nothing, which spares it work."""

    def __init__(self, tokens: int, model: ModelConfig) -> None:
        super().__init__()
        from transformers import NystromformerConfig
        from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

        settings = NystromformerConfig(
            hidden_size=model.width,
            num_attention_heads=model.heads,
            segment_means_seq_len=tokens,
            num_landmarks=model.landmarks,
            conv_kernel_size=model.kernel_size,
        )
        self.inner = NystromformerSelfAttention(settings)
        self.out = nn.Linear(model.width, model.width)

    def forward(self, x_BND: Tensor, padding: Padding | None = None) -> Tensor:
        out: Tensor = self.out(self.inner(x_BND)[0])
        return out


def build(kind: str, tokens: int) -> nn.Module:
    """Return the ListOps network with "published", "exact", "softmax" or "transformers" attention."""
    seed_all(0, "init")
    start = "matrix" if kind == "exact" else "batch"
    mode = "exact" if kind == "exact" else "published"
    attention = "softmax" if kind == "softmax" else "nystrom"
    settings = ModelConfig(vocabulary=32, attention=attention, mode=mode, inverse_start=start)
    network = SequenceClassifier(settings, tokens=tokens, vocabulary=32, classes=10)
    if kind == "transformers":
        for block in network.encoder.blocks:
            block.attention = TransformersAttention(tokens, settings)
    return network


def expressions(batch: int, tokens: int) -> list[tuple[tuple[np.ndarray, ...], int]]:
    """Return ListOps samples of a length that fits."""
    chunk = generate_chunk(ListopsOptions(min_length=tokens // 4, max_length=tokens - 40), 0)
    offsets = chunk.offsets
    return [((chunk.tokens[offsets[i] : offsets[i + 1]],), int(chunk.labels[i])) for i in range(batch)]


def training_step(kind: str, batch: int, tokens: int) -> Step:
    """Return a function that takes one AdamW step on one fixed batch."""
    network = build(kind, tokens)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.0, fused=True)
    samples = PadBatch(positions=tokens, shift=1, padded=True)(expressions(batch, tokens))

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(samples["ids"], samples["lengths"]), samples["labels"])
        loss.backward()
        optimizer.step()

    return step


def seconds(step: Step) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def alternate(first: Step, second: Step, pairs: int) -> tuple[list[float], list[float]]:
    """Time both in turn, the order within a pair swapped each time; one step of each goes before."""
    first(), second()
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            times[which].append(seconds((first, second)[which]))
    return times


def loading_seconds(batch: int, tokens: int) -> float:
    """Return the time that a run waits for a batch: memory-mapped files, samplers, collation, in the training process."""
    chunk = generate_chunk(ListopsOptions(min_length=tokens // 4, max_length=tokens - 40), 0)
    with tempfile.TemporaryDirectory() as folder:
        splits = dict.fromkeys(("train", "val", "test"), chunk)
        write_store(Path(folder), splits, dataset="listops", options={}, classes=10, symbols=15, pads=True)
        served = SequenceDataset(Path(folder), "train", length=tokens, paired=False)
        loader = StreamDataModule(
            train=served,
            val=served,
            test=None,
            batch_size=batch,
            eval_batch_size=batch,
            seed=0,
            collate=PadBatch(positions=tokens, shift=1, padded=True),
        )
        batches = iter(loader.train_dataloader())
        next(batches)
        return statistics.median(seconds(lambda: next(batches)) for _ in range(20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--table-batch", type=int, default=2, help="batch of the table over lengths; 0 leaves the table out"
    )
    parser.add_argument("--table-steps", type=int, default=3)
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours, theirs = (training_step(kind, args.batch, args.tokens) for kind in ("published", "transformers"))
    mine, other = alternate(ours, theirs, args.pairs)
    ratios = [a / b for a, b in zip(mine, other, strict=True)]
    share = loading_seconds(args.batch, args.tokens) / statistics.median(mine)
    lines = [
        f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}, float32",
        "",
        f"Training step, batch {args.batch}, {args.tokens:,} tokens, 64 landmarks: {statistics.median(mine):.3f} s against "
        f"{statistics.median(other):.3f} s around transformers' attention; ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f} over {args.pairs} pairs).",
        f"Loading a batch takes {100 * share:.2f} % of a step.",
    ]
    if args.table_batch:
        kinds = ("published", "exact", "transformers", "softmax")
        lines += ["", f"Seconds a training step at batch {args.table_batch}:", "", f"| tokens | {' | '.join(kinds)} |"]
        lines.append("|---" * (len(kinds) + 1) + "|")
        for tokens in LENGTHS:
            steps = [training_step(kind, args.table_batch, tokens) for kind in kinds]
            for step in steps:
                step()
            medians = [statistics.median(seconds(step) for _ in range(args.table_steps)) for step in steps]
            lines.append(f"| {tokens:,} | {' | '.join(f'{value:.3f}' for value in medians)} |")
    report = "\n".join(lines) + "\n"
    print(report)
    if args.output is not None:
        args.output.write_text(report)


if __name__ == "__main__":
    main()
