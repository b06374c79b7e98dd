"""`spectral probe`: singular values, κ(W), κ(J), bounds and saturation of a model's attention on a real input, over λ."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.probe_subject import FORMS, Subject, load_subject

if TYPE_CHECKING:
    from spectral_conditioning.analysis.probe import ProbeSettings

DEFAULT_LAMS = (0.0, 0.1, 1.0, 10.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral probe`."""
    parser.add_argument("model", help=FORMS)
    parser.add_argument("--arch", metavar="timm:NAME", help="whose weights a weight file holds")
    parser.add_argument("--data", type=Path, metavar="PATH", help="an image, or a folder whose first image is taken")
    parser.add_argument("--lam", type=_numbers, metavar="A,B,…", default=None,
                        help="values of λ, 0 for the plain model (default: 0,0.1,1,10; a run: as it was trained)")  # fmt: skip
    parser.add_argument("--correction", default="identity", help="identity, polar, svd, … (default: %(default)s)")
    parser.add_argument("--placement", default="full", help="full, per_head or fused (default: %(default)s)")
    parser.add_argument("--targets", default="qkv", help="any of q, k and v (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3, metavar="N",
                        help="layers whose κ(J) is taken, first to last (default: %(default)s)")  # fmt: skip
    parser.add_argument("--heads", type=_indices, default=(0,), metavar="A,B,…", help="heads, from 0 (default: 0)")
    parser.add_argument("--all", action="store_true", help="every layer and every head; hours for a large model")
    parser.add_argument(
        "--blocks", action="store_true", help="also κ of J_Q, J_K and J_V alone (two to three times as long)"
    )
    parser.add_argument("--tokens", type=int, default=None, metavar="N",
                        help="tokens that attend, evenly spaced (default: all that a Gram matrix of 13,000 allows)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of random initial weights (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="where probe.json and figures go (default: outputs/probe/<model>)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Probe, print, write. Returns 0."""
    from spectral_conditioning.analysis.probe import probe
    from spectral_conditioning.conditioning import Conditioning
    from spectral_conditioning.results.probe_report import print_report, write_report

    started = time.perf_counter()
    settings = _settings(args)
    template = Conditioning(correction=args.correction, placement=args.placement, targets=tuple(args.targets), lam=1.0)
    subject = load_subject(args.model, arch=args.arch, data=args.data, seed=args.seed, device=_device(args.device))
    lams = args.lam if args.lam is not None else None if subject.is_run else list(DEFAULT_LAMS)
    with _progress() as advance:
        report = probe(
            subject.model, subject.run, loss=subject.loss, lams=lams, template=template,
            settings=settings, layouts=subject.layouts, progress=advance,
        )  # fmt: skip
    seconds = time.perf_counter() - started
    notes = [*subject.notes, f"Input: {subject.input}.", f"Took {seconds:.0f} s."]
    print_report(report, title=_title(subject, args), notes=notes)
    out = args.out or Path("outputs") / "probe" / re.sub(r"[^\w.-]+", "-", subject.title).strip("-")
    facts = {"schema": 1, "model": subject.title, "input": subject.input, "subject_notes": subject.notes,
             "settings": {**vars(settings), "correction": args.correction, "placement": args.placement,
                          "targets": args.targets, "seed": args.seed}, "seconds": seconds}  # fmt: skip
    print("Written: " + ", ".join(str(path) for path in write_report(report, out, facts=facts)))
    return 0


def _settings(args: argparse.Namespace) -> ProbeSettings:
    from spectral_conditioning.analysis.probe import ProbeSettings

    problems = [
        f"--{name} is {value}; it must be at least {least}"
        for name, value, least in (("layers", args.layers, 1), ("tokens", args.tokens, 2))
        if value is not None and value < least
    ]
    problems += [f"--lam holds {lam:g}; λ must be at least 0" for lam in args.lam or () if lam < 0]
    if problems:
        raise ConfigError("; ".join(problems))
    layers, heads = (None, None) if args.all else (args.layers, args.heads)
    return ProbeSettings(layers=layers, heads=heads, max_tokens=args.tokens, blocks=args.blocks)


def _title(subject: Subject, args: argparse.Namespace) -> str:
    if args.lam is None and subject.is_run:
        return f"{subject.title}, as trained"
    return f"{subject.title}, {args.correction} on {', '.join(args.targets)} ({args.placement})"


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"--device {name}: no GPU is visible; allowed here: cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is not known; allowed: cpu, cuda, cuda:N") from error


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar with the step at hand on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("probing", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,0.1,1,10") from None


def _indices(text: str) -> Sequence[int]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of heads such as 0,5") from None
