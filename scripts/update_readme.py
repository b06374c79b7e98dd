"""Regenerate the README's blocks: `python scripts/update_readme.py [runs/demo/compare]`.

With the folder that `spectral demo` wrote, its table, figures and values are copied to experiments/imagenet/demo first;
without it the blocks are made anew from there. A test fails when README and those files differ.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from spectral_conditioning.conditioning import families

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "experiments" / "imagenet" / "demo"
COPIED = {
    "compare.csv": "results.csv",
    "compare.md": "table.md",
    "imagenet-small-lambda.png": "lambda.png",
    "imagenet-small-training.png": "training.png",
}


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
    for name, block in {"demo": demo_block(), "families": families_block()}.items():
        pattern = re.compile(f"<!-- {name}:start -->.*<!-- {name}:end -->", re.DOTALL)
        if not pattern.search(readme):
            raise SystemExit(f"README.md has no markers for the block {name!r}")
        readme = pattern.sub(lambda _, n=name, b=block: f"<!-- {n}:start -->\n{b}\n<!-- {n}:end -->", readme)
    return readme


def main(argv: list[str]) -> None:
    """Copy a demo's outputs if given, then rewrite README.md."""
    if argv:
        DEMO.mkdir(parents=True, exist_ok=True)
        for source, target in COPIED.items():
            shutil.copyfile(Path(argv[0]) / source, DEMO / target)
    path = ROOT / "README.md"
    path.write_text(regenerated(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
