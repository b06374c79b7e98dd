"""`spectral prepare listops | text | retrieval | image | pathfinder`: generate, convert and verify the benchmark's data."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra import image, listops, pathfinder, retrieval, text
from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions
from spectral_conditioning.tasks.lra.pathfinder_snakes import Scene
from spectral_conditioning.tasks.lra.preparation import Recipe, prepare, report
from spectral_conditioning.tasks.lra.stand_ins import RECIPES

NAMES = ("listops", "text", "retrieval", "image", "pathfinder")
# Options that only some data sets know: argument → data sets.
SPECIFIC = {
    "seed": ("listops", "pathfinder"),
    "samples": ("listops", "pathfinder"),
    "min_length": ("listops",),
    "max_length": ("listops",),
    "max_depth": ("listops",),
    "max_args": ("listops",),
    "length": ("text", "retrieval"),
    "partial": ("text", "image"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all five data sets; `run` refuses one that the chosen data set does not know."""
    root = Path(os.environ.get("SPECTRAL_DATA", "data"))
    parser.add_argument(
        "--input", type=Path, help="folder or file of the original data; without it: generated or installed data"
    )
    parser.add_argument("--output", type=Path, help=f"folder to write (default: {root}/lra/NAME)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes; the files do not depend on it"
    )
    parser.add_argument(
        "--small", action="store_true", help="the small stand-in that experiment=lra/small_NAME trains on"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--seed", type=int, help="listops, pathfinder: seed of the generator (default 0)")
    parser.add_argument(
        "--samples",
        type=int,
        nargs="+",
        metavar="N",
        help="listops: TRAIN VAL TEST (default 96000 2000 2000); pathfinder: one number (default 200000)",
    )
    parser.add_argument("--min-length", type=int, help="listops: lengths above this (default 500)")
    parser.add_argument("--max-length", type=int, help="listops: lengths below this (default 2000)")
    parser.add_argument("--max-depth", type=int, help="listops: depth of a tree (default 10)")
    parser.add_argument("--max-args", type=int, help="listops: arguments of an operator (default 10)")
    parser.add_argument("--length", type=int, help="text, retrieval: bytes of a document that are kept (default 4000)")
    parser.add_argument("--partial", action="store_true", help="text, image: accept an incomplete or altered original")


def _listops(args: argparse.Namespace) -> Recipe:
    given = {key: getattr(args, key) for key in ("min_length", "max_length", "max_depth", "max_args", "seed")}
    if args.samples is not None:
        if len(args.samples) != 3:
            raise DataError(f"--samples for listops takes three numbers, TRAIN VAL TEST; got {len(args.samples)}")
        given.update(zip(("train", "val", "test"), args.samples, strict=True))
    options = ListopsOptions(**{key: value for key, value in given.items() if value is not None})
    return listops.generated(options) if args.input is None else listops.official(args.input, options)


def _pathfinder(args: argparse.Namespace) -> Recipe:
    if args.input is not None:
        return pathfinder.official(args.input)
    if args.samples is not None and len(args.samples) != 1:
        raise DataError(f"--samples for pathfinder takes one number; got {len(args.samples)}")
    samples = pathfinder.RELEASED if args.samples is None else args.samples[0]
    return pathfinder.generated(samples=samples, seed=args.seed or 0, scene=Scene())


def chosen_recipe(name: str, args: argparse.Namespace) -> Recipe:
    """Return what the arguments ask for. Raises DataError for an option that the data set does not know."""
    given = [key for key in SPECIFIC if getattr(args, key) not in (None, False)]
    unknown = [f"--{key.replace('_', '-')}" for key in given if name not in SPECIFIC[key]]
    if unknown:
        raise DataError(f"{', '.join(unknown)} mean nothing for {name}; leave them out")
    if args.input is not None and not args.input.exists():
        raise DataError(f"--input {args.input} does not exist")
    if args.small:
        if name not in RECIPES or args.input is not None:
            raise DataError(f"--small writes a stand-in and takes no --input; there is one for: {', '.join(RECIPES)}")
        return RECIPES[name]()
    length = args.length or text.LENGTH
    if name == "listops":
        return _listops(args)
    if name == "text":
        return text.recipe(args.input, length=length, partial=args.partial)
    if name == "retrieval":
        return retrieval.recipe(args.input, length=length)
    if name == "image":
        return image.recipe(args.input, partial=args.partial)
    return _pathfinder(args)


def run(args: argparse.Namespace) -> int:
    """Prepare the data set `args.name` and print where it is and what it holds."""
    recipe = chosen_recipe(args.name, args)
    root = Path(os.environ.get("SPECTRAL_DATA", "data"))
    folder = args.output or root / "lra" / (f"small_{args.name}" if args.small else args.name)
    if args.workers < 1:
        raise DataError(f"--workers is {args.workers}; it must be at least 1")
    prepared = prepare(recipe, folder, workers=args.workers, progress=not args.quiet)
    print(report(folder, prepared))
    return 0
