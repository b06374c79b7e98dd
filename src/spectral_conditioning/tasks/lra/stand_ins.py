"""Small data sets that are generated, or come with an installed package: for runs in minutes on two cores.

A configuration names one as `data.stand_in`; it is written on first use. Their numbers are not the benchmark's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spectral_conditioning.tasks.lra import image, listops, pathfinder, text
from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions
from spectral_conditioning.tasks.lra.pathfinder_snakes import Scene
from spectral_conditioning.tasks.lra.preparation import Recipe, prepare
from spectral_conditioning.tasks.lra.token_store import read_manifest

SMALL_LISTOPS = ListopsOptions(train=20000, val=1000, test=2000, min_length=15, max_length=64, max_depth=4, max_args=6)
SMALL_SCENE = Scene(size=16, contour=4, distractors=1, distractor_length=2, seed_distance=3)

RECIPES: dict[str, Callable[[], Recipe]] = {
    "listops": lambda: listops.generated(SMALL_LISTOPS),
    "text": text.installed_imdb,
    "image": image.digits,
    "pathfinder": lambda: pathfinder.generated(samples=6000, scene=SMALL_SCENE),
}


def ensure(name: str, folder: Path) -> None:
    """Write a small data set to `folder`, or verify what is there; runs that start together wait for the first."""
    if name == "text" and read_manifest(folder) is not None:
        return  # The package that the reviews came from need not be installed any more; the loader verifies the files.
    prepare(RECIPES[name](), folder)
