"""`spectral export RUN`: the reported weights of a run with every correction folded in, for use without this package."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.conditioning import conditioned_layers, fold
from spectral_conditioning.errors import RecordError
from spectral_conditioning.files import write_atomically
from spectral_conditioning.tasks.registry import load_task
from spectral_conditioning.training.prepare import prepare
from spectral_conditioning.training.record import RunFolder, write_json
from spectral_conditioning.training.selection import load_reported
from spectral_conditioning.training.storage import read_config

# Folding adds W and C before the product instead of within it; float32 rounding of that stays far below this, relative to
# the largest output.
TOLERANCE = 1e-4
COMPARED_SAMPLES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of `spectral export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/export)")


def run(args: argparse.Namespace) -> int:
    """Write model.safetensors, model.json and a model card (README.md); refuse if folded and conditioned outputs differ."""
    folder = RunFolder(args.run)
    record = folder.read_result()
    if record is None:
        raise RecordError(
            f"{args.run} holds no result.json, so it is not a finished run; finish it with the same spectral train"
        )
    if record["status"] != "finished":
        raise RecordError(
            f"the run in {args.run} ended as {record['status']!r}; there are no reported weights to export"
        )
    config = read_config(folder.config)
    prepared = prepare(config)
    module, model = prepared.module, prepared.module.model
    model.load_state_dict(load_reported(args.run)["model"])
    module.eval()
    samples = prepared.loader.first_samples(COMPARED_SAMPLES)
    layers = len(conditioned_layers(model))
    with torch.no_grad():
        before = module.example_forward(samples)
        fold(model)
        difference = largest_difference(before, module.example_forward(samples))
    if not difference <= TOLERANCE:
        raise RecordError(
            f"folding changes the outputs by {difference:.1e} of their size, more than {TOLERANCE:.0e}; nothing was written"
        )
    out = args.out or args.run / "export"
    call = load_task(config.task.name).plain_call(config, prepared.data)
    write_export(out, model, record, call, layers=layers, difference=difference)
    print(
        f"Written: {out}/model.safetensors ({layers} layers folded, outputs differ by {difference:.0e} of their size)"
    )
    return 0


def largest_difference(one: Any, other: Any) -> float:
    """Return the largest difference between two outputs (tensors, or sequences or mappings of them), relative to their size."""
    if isinstance(one, Tensor):
        scale = one.abs().max().clamp_min(torch.finfo(one.dtype).tiny) if one.is_floating_point() else 1
        return float((one - other).abs().max() / scale)
    pairs = zip(one.values(), other.values(), strict=True) if hasattr(one, "values") else zip(one, other, strict=True)
    return max((largest_difference(a, b) for a, b in pairs if isinstance(a, Tensor | list | tuple | dict)), default=0.0)


def write_export(
    out: Path, model: nn.Module, record: dict[str, Any], call: dict[str, Any] | None, *, layers: int, difference: float
) -> None:
    """Write the three files, each whole or not at all; tied tensors are saved once, and named in model.json."""
    from safetensors.torch import save

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error.strerror}; choose another folder with --out") from error
    tensors, ties = untied(model.state_dict())
    write_atomically(out / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    description = {"call": call, "ties": ties, "folded_layers": layers, "record": record}
    write_json(out / "model.json", description)
    write_atomically(out / "README.md", model_card(record, call, layers=layers, difference=difference).encode())


def untied(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors to save, contiguous, and {name left out: name that holds the same tensor}."""
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    kept: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and key in seen:
            ties[name] = seen[key]
            continue
        seen[key] = name
        kept[name] = tensor.detach().cpu().contiguous()
    return kept, ties


def model_card(record: dict[str, Any], call: dict[str, Any] | None, *, layers: int, difference: float) -> str:
    """Return the model card: what the weights are, how they were made and how to load them."""
    primary, conditioned = record["primary"], record["conditioning"]
    lines = [
        f"# {record['experiment']}, {record['arm']}, seed {record['seed']}",
        "",
        f"- {primary['name']}: {primary['value']:.4f} at step {primary['step']} ({primary['weights']} weights, "
        f"rule: {primary['rule']})",
        *(f"- {name}: {value:.4f}" for name, value in record["metrics"].items() if value is not None),
        f"- scale: {record['scale']['parameters']:,} parameters, {record['scale']['train_samples']:,} training samples, "
        f"{record['steps']} steps",
        f"- data hash: `{record['hashes']['data']}`; initial weights: `{record['hashes']['initial_weights']}`",
        f"- conditioning: {json.dumps(conditioned, ensure_ascii=False) if conditioned else 'none (baseline)'}",
        f"- {layers} conditioned layers were folded: each weight below is W + C. Outputs agree with the conditioned model to "
        f"{difference:.0e} of their size. Do not condition these weights again.",
    ]
    if call is not None:
        classes = {key for key, value in call["arguments"].items() if str(value).startswith("torch.")}
        arguments = ", ".join(
            f"{key}={value if key in classes else repr(value)}" for key, value in call["arguments"].items()
        )
        packages = [call["function"].split(".")[0], *(["torch"] if classes else [])]
        lines += [
            "", "```python", *(f"import {package}" for package in packages), "from safetensors.torch import load_file", "",
            f"model = {call['function']}({arguments})",
            'model.load_state_dict(load_file("model.safetensors"), strict=True)', "```",
        ]  # fmt: skip
    return "\n".join([*lines, ""])
