"""Regenerate the README's blocks: `python scripts/update_readme.py [COMPARE_FOLDER TARGET]`.

With a folder that `spectral compare` or `spectral demo` wrote, its tables and figures are copied to TARGET first, e.g.

    python scripts/update_readme.py runs/demo/compare experiments/imagenet/demo

then the blocks are made anew from what lies under experiments/. A test fails when README and those files differ.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import evidence

from spectral_conditioning.conditioning import families

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "experiments" / "imagenet" / "demo"
COPIED = {"compare.csv": "results.csv", "compare.md": "table.md", "compare_sweep.csv": "sweep.csv"}


def record(source: Path, target: Path) -> None:
    """Copy the rows, the tables and every figure of a comparison; what all figures' names begin with is left out."""
    target.mkdir(parents=True, exist_ok=True)
    for name, kept in COPIED.items():
        if (source / name).exists():
            shutil.copyfile(source / name, target / kept)
    figures = sorted(source.glob("*.png"))
    shared = os.path.commonprefix([figure.name for figure in figures]).rpartition("-")  # noqa: RUF071  (characters)
    names = [figure.name.removeprefix(shared[0] + shared[1]) for figure in figures]
    for figure, name in zip(figures, names, strict=True):
        shutil.copyfile(figure, target / name)
    others = sorted({path.name for path in target.glob("*.png")} - set(names))
    if others:
        print(f"{target} also holds pictures that are not of this comparison: {', '.join(others)}")


def demo_block() -> str:
    """Return the demo's table with its remarks, and the training curves."""
    lines = (DEMO / "table.md").read_text().strip().splitlines()
    table = "\n".join(line for line in lines if not line.startswith("### "))
    picture = f"![Training curves of the demo]({(DEMO / 'training.png').relative_to(ROOT)})"
    return f"{table.strip()}\n\n{picture}"


def families_block() -> str:
    """Return the table of attention families."""
    rows = ["| family | classes | stored rows |", "| --- | --- | --- |"]
    for family in families():
        classes = ", ".join(f"`{name.rpartition('.')[2]}`" for name in family.classes)
        rows.append(f"| {family.name} | {classes} | {' or '.join(layout.describe() for layout in family.layouts)} |")
    return "\n".join(rows)


def regenerated(readme: str) -> str:
    """Return the README with every block between its markers made anew."""
    blocks = {"demo": demo_block(), "evidence": evidence.block(), "families": families_block()}
    for name, block in blocks.items():
        pattern = re.compile(f"<!-- {name}:start -->.*<!-- {name}:end -->", re.DOTALL)
        if not pattern.search(readme):
            raise SystemExit(f"README.md has no markers for the block {name!r}")
        readme = pattern.sub(lambda _, n=name, b=block: f"<!-- {n}:start -->\n{b}\n<!-- {n}:end -->", readme)
    return readme


def main(argv: list[str]) -> None:
    """Copy a comparison if one is given, then rewrite README.md."""
    if len(argv) not in (0, 2):
        raise SystemExit("usage: update_readme.py [COMPARE_FOLDER TARGET]")
    if argv:
        record(Path(argv[0]), Path(argv[1]))
    path = ROOT / "README.md"
    path.write_text(regenerated(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
