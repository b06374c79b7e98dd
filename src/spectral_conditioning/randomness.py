"""The one place where randomness is seeded.

Every draw of a run is a pure function of (seed, stream, index): the initial weights of ("init", 0), the order of an epoch of
("order", epoch), one augmented sample of ("augment", draw), the dropout, drop path and mixup of a step of ("step", step).
Both arms of a pair therefore see the same draws, whatever else either of them computes, and an interrupted run needs no
generator state to go on exactly.
"""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def derive(seed: int, stream: str, index: int = 0) -> int:
    """Return a 63-bit integer that depends on every bit of (seed, stream, index)."""
    digest = hashlib.blake2b(f"{seed}|{stream}|{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, stream: str, index: int = 0) -> torch.Generator:
    """Return a CPU generator of its own for (seed, stream, index)."""
    return torch.Generator().manual_seed(derive(seed, stream, index))


def seed_all(seed: int, stream: str, index: int = 0) -> None:
    """Seed the global generators of python, numpy and torch (CPU and every CUDA device).

    Libraries draw from the global generators (dropout, timm's DropPath, mixup and RandAugment, torchvision's transforms);
    this is the only function that touches them. numpy is seeded when something has imported it.
    """
    value = derive(seed, stream, index)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(value)
