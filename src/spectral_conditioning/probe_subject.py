"""What `spectral probe` looks at: a timm model, a checkpoint of one, or a finished run, with a real input to run it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spectral_conditioning.errors import ConfigError, DataError
from spectral_conditioning.randomness import seed_all

FORMS = (
    "timm:NAME (such as timm:vit_base_patch16_224), the folder of a finished run, or a file of weights (.pth, .safetensors) "
    "with --arch timm:NAME"
)
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True)
class Subject:
    """A model, how to run a copy of it on the input, and what has to be said about both."""

    title: str
    model: nn.Module
    run: Callable[[nn.Module], Any]
    loss: Callable[[nn.Module], Tensor]
    input: str
    layouts: Mapping[Any, Any] | None = None
    notes: list[str] = field(default_factory=list)
    is_run: bool = False


def load_subject(name: str, *, arch: str | None, data: Path | None, seed: int, device: torch.device) -> Subject:
    """Return the subject that the command line names. Raises ConfigError or DataError, saying what is allowed."""
    if name.startswith("timm:"):
        return _timm_subject(name.removeprefix("timm:"), None, data=data, seed=seed, device=device)
    path = Path(name)
    if path.is_dir():
        return _run_subject(path, data=data, device=device)
    if path.is_file():
        if arch is None or not arch.startswith("timm:"):
            raise ConfigError(f"{name} is a file of weights; say whose: --arch timm:NAME")
        return _timm_subject(arch.removeprefix("timm:"), path, data=data, seed=seed, device=device)
    raise ConfigError(f"{name!r} is no model, file or folder; allowed: {FORMS}")


def _timm_subject(name: str, weights: Path | None, *, data: Path | None, seed: int, device: torch.device) -> Subject:
    import timm

    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:3]
        hint = f"; some that exist: {', '.join(near)}" if near else ""
        raise ConfigError(f"timm has no model {name!r}{hint}")
    pretrained = weights is None and _is_cached(name)
    seed_all(seed, "init")
    model: nn.Module = timm.create_model(name, pretrained=pretrained).eval()
    if weights is not None:
        from spectral_conditioning.tasks.imagenet.weights import load_initial_weights

        load_initial_weights(model, weights)
        note = f"Weights: {weights}."
    elif pretrained:
        note = "Weights: timm's pretrained ones, from the local cache."
    else:
        note = f"Weights: random initialisation (seed {seed}); no pretrained weights of this model are on this machine."
    image, origin = _image(model, data)
    image = image.to(device)
    return Subject(
        f"timm:{name}", model.to(device), lambda variant: variant(image), _first_class_loss(image), origin, notes=[note]
    )


def _run_subject(folder: Path, *, data: Path | None, device: torch.device) -> Subject:
    from spectral_conditioning.training.prepare import load_run_model, prepare
    from spectral_conditioning.training.storage import read_config

    if data is not None:
        raise ConfigError("--data is for timm models; a run is probed on the first samples of its own training set")
    config = read_config(folder / "config.yaml")
    model = load_run_model(folder).to(device)
    prepared = prepare(config)
    samples = _moved(prepared.loader.first_samples(2), device)
    module = prepared.module.to(device).eval()

    def within(variant: nn.Module, call: Callable[[Any], Any]) -> Any:
        module.model = variant
        module.__dict__["evaluated_model"] = variant
        return call(samples)

    return Subject(
        title=f"{config.name} ({folder.name})",
        model=model,
        run=lambda variant: within(variant, module.example_forward),
        loss=lambda variant: within(variant, module.training_losses)["loss"],
        input="first two training samples of the run",
        layouts=prepared.task.layouts(model),
        notes=["Weights: those the run reports. The loss is the run's own training loss."],
        is_run=True,
    )


def _is_cached(name: str) -> bool:
    """Whether timm's pretrained weights of a model are in the local Hugging Face cache; nothing is downloaded."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    settings = timm.get_pretrained_cfg(name)
    if settings is None or not settings.hf_hub_id:
        return False
    repository = settings.hf_hub_id + (name if settings.hf_hub_id.endswith("/") else "")
    files = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(repository, file), str) for file in files)


def _image(model: nn.Module, data: Path | None) -> tuple[Tensor, str]:
    """Return one image as the model's own evaluation transform gives it, (1, 3, H, W), and where it is from."""
    from PIL import Image, UnidentifiedImageError
    from timm.data import create_transform, resolve_model_data_config

    if data is None:
        from sklearn.datasets import load_sample_image

        picture, origin = Image.fromarray(load_sample_image("china.jpg")), "china.jpg of scikit-learn"
    else:
        path = _first_image(data)
        try:
            picture, origin = Image.open(path).convert("RGB"), str(path)
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"--data: {path} cannot be read as an image: {error}") from error
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    image: Tensor = transform(picture)
    return image[None], origin


def _first_image(data: Path) -> Path:
    if data.is_file():
        return data
    if not data.is_dir():
        raise DataError(f"--data: {data} does not exist; give an image or a folder of images")
    for path in sorted(data.rglob("*")):
        if path.suffix.lower() in _IMAGES:
            return path
    raise DataError(f"--data: {data} holds no image ({', '.join(_IMAGES)})")


def _first_class_loss(image: Tensor) -> Callable[[nn.Module], Tensor]:
    """Cross-entropy against class 0; half the mean square of the features where the model has no classifier."""

    def loss(model: nn.Module) -> Tensor:
        output = model(image)
        if output.ndim == 2 and getattr(model, "num_classes", 0) > 1:
            return nn.functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long, device=output.device))
        value: Tensor = output.square().mean() / 2
        return value

    return loss


def _moved(samples: Any, device: torch.device) -> Any:
    if isinstance(samples, Tensor):
        return samples.to(device)
    if isinstance(samples, dict):
        return {key: _moved(value, device) for key, value in samples.items()}
    if isinstance(samples, list | tuple):
        moved = [_moved(value, device) for value in samples]
        return type(samples)(*moved) if hasattr(samples, "_fields") else type(samples)(moved)
    return samples
