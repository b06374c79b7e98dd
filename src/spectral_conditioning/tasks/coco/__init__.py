"""Mask R-CNN on COCO with an XCiT backbone, over mmdet.

mmdet imports `mmcv._ext`, the compiled half of mmcv, which has no wheels for current PyTorch. Importing this package appends a
finder that serves the module from `mmcv_ops`. It stands last, so a compiled mmcv is used where there is one, and nothing heavy is
imported until mmdet asks. The package is imported before any of its modules, hence always before mmdet.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PROVIDED = "mmcv._ext"


class OpsFinder(MetaPathFinder, Loader):
    """Finds `mmcv._ext` when no one else does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, origin=__name__) if fullname == PROVIDED else None

    def exec_module(self, module: ModuleType) -> None:
        ops = importlib.import_module(f"{__name__}.mmcv_ops")
        for name in (*ops.SERVED, "__getattr__"):
            setattr(module, name, getattr(ops, name))


if not any(isinstance(finder, OpsFinder) for finder in sys.meta_path):
    sys.meta_path.append(OpsFinder())
