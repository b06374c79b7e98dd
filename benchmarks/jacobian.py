"""Time and memory of κ(J) of one attention head, closed form against torch.func.jacrev with an SVD of the whole Jacobian.

    python benchmarks/jacobian.py                       the table below, about a quarter of an hour on two idle cores
    python benchmarks/jacobian.py --only 197x768x64     one size
    python benchmarks/jacobian.py --write benchmarks/jacobian.md

Heads are those of a plain initialisation (weights of standard deviation 0.02, layer-normed Gaussian tokens, scale 1/√d). Every
measurement runs in a process of its own; memory is the peak of that process above what it held before. The whole Jacobian is
formed only where it stays below --limit gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

SIZES = (
    *((tokens, 64, 32) for tokens in (64, 256, 1024, 4096)),
    *((tokens, 768, 64) for tokens in (8, 16, 32, 64, 128, 197)),
)
HEADER = ("N × D × d", "J: rows × columns", "κ(J)", "rank", "Gram", "seconds", "CPU s", "peak GB",
          "jacrev + SVD: seconds", "CPU s", "peak GB", "κ(J) differs by")  # fmt: skip


def measure(tokens: int, width: int, head_dim: int, *, dense: bool) -> dict[str, float | int | str]:
    """Return κ(J), time and memory of one method at one size. Run in a fresh process."""
    import torch
    from torch.func import jacrev

    from spectral_conditioning.analysis.attention_inputs import SoftmaxHead
    from spectral_conditioning.analysis.condition_number import condition_number
    from spectral_conditioning.analysis.jacobian import SoftmaxJacobian

    draws = torch.Generator().manual_seed(0)
    tokens_ND = torch.nn.functional.layer_norm(
        torch.randn(tokens, width, generator=draws, dtype=torch.float64), (width,)
    )
    weights = [0.02 * torch.randn(head_dim, width, generator=draws, dtype=torch.float64) for _ in range(3)]
    head = SoftmaxHead(tokens_ND, *weights, scale=head_dim**-0.5)
    torch.linalg.svdvals(torch.randn(64, 64))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, busy = time.perf_counter(), time.process_time()
    if dense:

        def output(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return SoftmaxHead(tokens_ND, q, k, v, scale=head_dim**-0.5).output_No

        blocks = jacrev(output, argnums=(0, 1, 2))(*weights)
        sigma = torch.linalg.svdvals(torch.cat([block.flatten(2).flatten(0, 1) for block in blocks], dim=1))
        rank = SoftmaxJacobian(head).generic_rank()
        found = {"kappa": float(sigma[0] / sigma[rank - 1])}
    else:
        condition = condition_number(SoftmaxJacobian(head))
        found = {"kappa": condition.kappa, "rank": condition.rank, "size": condition.size}
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**found, "seconds": seconds, "cpu": busy, "gigabytes": (peak - before) / 2**20}


def in_process(size: tuple[int, int, int], method: str) -> dict[str, float]:
    """Run `measure` in a process of its own."""
    name = "x".join(map(str, size))
    command = [sys.executable, __file__, "--measure", name, "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def row(size: tuple[int, int, int], *, limit: float) -> list[str]:
    """Measure one size with both methods, the second only where the Jacobian itself stays below `limit` gigabytes."""
    tokens, width, head_dim = size
    rows, columns = tokens * head_dim, 3 * width * head_dim
    closed = in_process(size, "closed")
    cells = [
        f"{tokens} × {width} × {head_dim}", f"{rows:,} × {columns:,}", f"{closed['kappa']:.4g}", f"{closed['rank']:,}",
        f"{closed['size']:,}²", f"{closed['seconds']:.1f}", f"{closed['cpu']:.1f}", f"{closed['gigabytes']:.2f}",
    ]  # fmt: skip
    gigabytes = rows * columns * 8 / 1e9
    if gigabytes > limit:
        return [*cells, f"J alone is {gigabytes:.1f} GB", "", "", ""]
    dense = in_process(size, "dense")
    difference = abs(dense["kappa"] / closed["kappa"] - 1)
    return [
        *cells, f"{dense['seconds']:.1f}", f"{dense['cpu']:.1f}", f"{dense['gigabytes']:.2f}", f"{difference:.0e}",
    ]  # fmt: skip


def machine() -> str:
    """Describe the processor in words; no host name."""
    name = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    threads = int(os.environ.get("OMP_NUM_THREADS", cores))
    return f"{cores} cores {name}, no GPU, {threads} thread{'s' if threads > 1 else ''} a process"


def table(rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [HEADER, ["---"] + ["---:"] * (len(HEADER) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NxDxd", help="sizes instead of the default ones")
    parser.add_argument(
        "--limit", type=float, default=1.3, metavar="GB", help="largest J to form (default: %(default)s)"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--remark", default="", help="a sentence to write below the table")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--method", choices=("closed", "dense"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        tokens, width, head_dim = map(int, args.measure.split("x"))
        print(json.dumps(measure(tokens, width, head_dim, dense=args.method == "dense")))
        return
    sizes = [tuple(map(int, name.split("x"))) for name in args.only] if args.only else list(SIZES)
    rows = []
    for size in sizes:
        rows.append(row(size, limit=args.limit))
        print(" | ".join(rows[-1]), flush=True)
    text = table(rows)
    print(text)
    if args.write:
        remark = f"\n{args.remark}\n" if args.remark else ""
        args.write.write_text(f"{PREFACE.format(machine=machine())}\n{text}\n{remark}", encoding="utf-8")


PREFACE = """# κ(J) of one attention head

Written by `python benchmarks/jacobian.py --write benchmarks/jacobian.md` on {machine}. Plain initialisation, layer-normed
Gaussian tokens, float64. "Gram" is the order of the matrix taken, J Jᵀ or JᵀJ in the coordinates of the tokens' span; CPU
seconds hardly depend on what else ran, wall seconds do; memory is above what Python and torch held before. First sizes of the
Long Range Arena, then a ViT-B head over N; the last row is ViT-B/16, with the limit of 90 s and 6 GB on two cores.
"""


if __name__ == "__main__":
    main()
