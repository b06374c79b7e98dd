"""Start the XCiT body from weights that were trained elsewhere: a file, a timm hub name, or a run of our own ImageNet task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm
import torch
import yaml
from timm.models.xcit import Xcit, checkpoint_filter_fn
from torch import Tensor, nn

from spectral_conditioning.conditioning import Conditioning, condition, fold
from spectral_conditioning.conditioning.state import EXTRA_STATE, decode
from spectral_conditioning.errors import DataError, SpectralError, closest
from spectral_conditioning.tasks.imagenet.config import ModelConfig as ClassifierConfig
from spectral_conditioning.tasks.imagenet.model import build_classifier
from spectral_conditioning.tasks.imagenet.weights import mismatches, read_weights

REPORTED = Path("checkpoints") / "reported.ckpt"
# Parts of a classifier that the backbone drops.
CLASSIFIER_ONLY = ("cls_token", "cls_attn_blocks.", "norm.", "head.")
HEAD = "head."


def load_body_weights(body: Xcit, source: str) -> None:
    """Load pretrained weights into a plain XCiT, before it is conditioned.

    source: a run folder of the imagenet task or its reported.ckpt, a .pth or .safetensors file, or a name in timm's hub such as
    `xcit_small_12_p16_384.fb_dist_in1k`. A conditioned run gives its effective weights W + C, so `conditioning.preserve=function`
    keeps the pretrained function and `weight` adds the correction to it. Apart from the classifier every tensor must be there
    with its shape. Raises DataError that lists what is not; then nothing was changed.
    """
    weights = _read(source)
    try:
        weights = checkpoint_filter_fn(weights, body)
    except (AttributeError, KeyError, RuntimeError, ValueError) as error:
        raise DataError(f"init.weights {source} is no checkpoint of an XCiT: {error}. Nothing was loaded") from error
    weights = {name: value for name, value in weights.items() if not name.startswith(HEAD)}
    wanted = body.state_dict()
    ignored = {name for name in (*weights, *wanted) if name.startswith(CLASSIFIER_ONLY)}
    kept = {name: value for name, value in weights.items() if name not in ignored}
    problems = mismatches({name: value for name, value in wanted.items() if name not in ignored}, kept)
    if problems:
        raise DataError(f"init.weights {source} does not fit the backbone: {'; '.join(problems)}. Nothing was loaded")
    body.load_state_dict({**wanted, **kept}, strict=True)


def _read(source: str) -> dict[str, Tensor]:
    path = Path(source).expanduser()
    for folder in (path, path.parent.parent):
        if (folder / REPORTED).is_file() and path in (folder, folder / REPORTED):
            return run_weights(folder)
    if path.is_file():
        return read_weights(path)
    name = source.removeprefix("timm/")
    known = timm.list_pretrained("xcit_*")
    if name in known:
        return hub_weights(name)
    near = closest(name, known)
    raise DataError(
        f"init.weights {source} is not a file, a run folder with {REPORTED}, or a name in timm's hub"
        + (f"; closest name {near!r}" if near else "")
    )


def hub_weights(name: str) -> dict[str, Tensor]:
    """Return a pretrained classifier's weights from timm's hub (downloaded once)."""
    try:
        classifier: nn.Module = timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever the network or the hub raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"init.weights {name}: timm could not fetch it ({reason}); give a local file") from error
    return classifier.state_dict()


def run_weights(folder: Path) -> dict[str, Tensor]:
    """Return the effective weights of a finished run of the imagenet task, conditioned or not."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        saved: dict[str, Any] = torch.load(folder / REPORTED, map_location="cpu", weights_only=True)["model"]
    except (OSError, EOFError, LookupError, RuntimeError, UnpicklingError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0] or "it is empty"
        raise DataError(
            f"init.weights {folder} cannot be read as a run: {reason}; copy it again, or train it anew"
        ) from error
    if config["task"]["name"] != "imagenet":
        raise DataError(f"init.weights {folder} is a run of task {config['task']['name']!r}; it must be of 'imagenet'")
    payloads = [decode(value) for name, value in saved.items() if name.endswith(EXTRA_STATE)]
    settings = next((payload["settings"] for payload in payloads if payload is not None), None)
    if settings is None:
        return saved
    names = {field.name for field in dataclasses.fields(ClassifierConfig)}
    values = {key: value for key, value in config["task"]["model"].items() if key in names}
    try:
        classifier = build_classifier(ClassifierConfig(**values), outputs=len(saved["head.bias"]))
        condition(classifier, Conditioning.from_dict(settings))
        classifier.load_state_dict(saved)
    except SpectralError as error:
        raise DataError(f"init.weights {folder}: {error}") from error
    fold(classifier)
    return classifier.state_dict()
