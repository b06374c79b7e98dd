"""Looking at a model without changing it: evaluation mode, no gradient, random generators as they were, hooks removed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def observing(model: nn.Module, *, gradient: bool = False) -> Iterator[None]:
    """Run the body with the model in eval mode (and under no_grad), then restore its modes and every random generator.

    In eval mode nothing is dropped out and no batch statistics move. Generators of python, numpy, torch's CPU and CUDA
    are restored.
    """
    modes = {module: module.training for module in model.modules()}
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(), torch.set_grad_enabled(gradient):
            model.eval()
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        for module, mode in modes.items():
            module.training = mode
