"""Pretrained weights reach the backbone whole, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from mmengine.logging import HistoryBuffer
from timm.models.xcit import Xcit

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.conditioning.layouts import find_attention
from spectral_conditioning.errors import ConditioningError, DataError
from spectral_conditioning.tasks.coco.backbone import build_body
from spectral_conditioning.tasks.coco.config import ModelConfig
from spectral_conditioning.tasks.coco.detector import build_detector
from spectral_conditioning.tasks.coco.weights import load_body_weights
from spectral_conditioning.tasks.imagenet.config import ModelConfig as ClassifierConfig
from spectral_conditioning.tasks.imagenet.model import build_classifier

State = dict[str, torch.Tensor]


@pytest.fixture
def classifier(tiny: ModelConfig) -> Callable[..., Xcit]:
    """Build a classifier that the tiny backbone can start from."""

    def make(seed: int = 1, **changes: Any) -> Xcit:
        torch.manual_seed(seed)
        sizes = {"embed_dim": tiny.embed_dim, "depth": tiny.depth, "num_heads": tiny.num_heads, "num_classes": 5}
        built: Xcit = timm.create_model(tiny.name, **{**sizes, **changes})
        return built

    return make


@pytest.fixture
def file(tmp_path: Path) -> Callable[[State], str]:
    def save(state: State) -> str:
        path = tmp_path / "weights.pth"
        torch.save(state, path)
        return str(path)

    return save


def body(tiny: ModelConfig) -> Xcit:
    torch.manual_seed(0)
    return build_body(tiny)


def test_weights_of_a_classifier_survive_the_whole_build(
    tiny: ModelConfig, classifier: Callable[..., Xcit], file: Callable[[State], str]
) -> None:
    saved = classifier().state_dict()
    started = body(tiny)
    load_body_weights(started, file(saved))
    backbone = build_detector(tiny, started, classes=3).backbone
    found = backbone.body.state_dict()
    assert found
    assert all(torch.equal(value, saved[name]) for name, value in found.items())
    assert torch.equal(found["blocks.0.attn.qkv.weight"], saved["blocks.0.attn.qkv.weight"])
    dropped = set(saved) - set(found)
    assert {name.split(".")[0] for name in dropped} == {"cls_token", "cls_attn_blocks", "norm", "head"}


def test_original_names_are_understood(
    tiny: ModelConfig, classifier: Callable[..., Xcit], file: Callable[[State], str]
) -> None:
    """XCiT's own files call the positional encoding `pos_embeder` and lie under `model`."""
    saved = classifier().state_dict()
    original = {name.replace("pos_embed.", "pos_embeder."): value for name, value in saved.items()}
    started = body(tiny)
    load_body_weights(started, file({"model": original}))  # type: ignore[dict-item]
    name = "pos_embed.token_projection.weight"
    assert torch.equal(started.state_dict()[name], saved[name])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("blocks.2.attn.qkv.weight"), r"1 missing \(blocks\.2\.attn\.qkv\.weight\)"),
        (
            lambda s: s.update({"blocks.0.gamma1": torch.ones(3)}),
            r"1 of another shape \(blocks\.0\.gamma1 \(3,\) for \(16,\)",
        ),
        (lambda s: s.update({"blocks.9.gamma1": torch.ones(16)}), r"1 not in the model \(blocks\.9\.gamma1\)"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(
    tiny: ModelConfig,
    classifier: Callable[..., Xcit],
    file: Callable[[State], str],
    spoil: Callable[[State], Any],
    message: str,
) -> None:
    saved = classifier().state_dict()
    spoil(saved)
    started = body(tiny)
    before = {name: value.clone() for name, value in started.state_dict().items()}
    with pytest.raises(DataError, match=message):
        load_body_weights(started, file(saved))
    assert all(torch.equal(value, before[name]) for name, value in started.state_dict().items())


def test_sources_that_are_none_are_named(tiny: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"closest name 'xcit_small_12_p16_384\.fb_dist_in1k'"):
        load_body_weights(body(tiny), "xcit_small_12_p16_384.fb_dist")
    with pytest.raises(DataError, match=r"not a file, a run folder .* or a name in timm's hub"):
        load_body_weights(body(tiny), str(tmp_path / "nowhere.pth"))


def save_run(folder: Path, model: Xcit, *, settings: dict[str, Any], task: str = "imagenet") -> str:
    """Write what a finished run of the imagenet task leaves behind."""
    (folder / "checkpoints").mkdir(parents=True)
    torch.save({"model": model.state_dict(), "step": 1}, folder / "checkpoints" / "reported.ckpt")
    (folder / "config.yaml").write_text(yaml.safe_dump({"task": {"name": task, "model": settings}}))
    return str(folder)


@pytest.mark.parametrize("correction", [None, "identity", "polar"])
def test_a_run_of_our_own_gives_its_effective_weights(
    tiny: ModelConfig, tmp_path: Path, correction: str | None
) -> None:
    settings = ClassifierConfig(name=tiny.name, embed_dim=16, depth=4, num_heads=2, num_classes=5)
    torch.manual_seed(1)
    model = build_classifier(settings, outputs=5)
    if correction is not None:
        condition(model, Conditioning(correction=correction, lam=0.7))  # type: ignore[arg-type]
    effective = {item.name: item.projections["q"].effective() for item in find_attention(model)}
    run = save_run(tmp_path / "run", model, settings=dataclasses.asdict(settings))  # type: ignore[arg-type]
    for source in (run, f"{run}/checkpoints/reported.ckpt"):
        started = body(tiny)
        load_body_weights(started, source)
        attentions = [item for item in find_attention(started) if item.name.startswith("blocks")]
        assert len(attentions) == 4
        for item in attentions:
            assert torch.equal(item.projections["q"].stored(), effective[item.name])


def test_the_pretrained_function_is_kept_or_corrected_as_chosen(
    tiny: ModelConfig, classifier: Callable[..., Xcit], file: Callable[[State], str]
) -> None:
    """preserve=function: the detector starts as the plain one. preserve=weight: with W + C."""
    source = file(classifier().state_dict())
    images = torch.randn(1, 3, 64, 64)
    outputs = {}
    for preserve in (None, "function", "weight"):
        started = body(tiny)
        load_body_weights(started, source)
        torch.manual_seed(2)
        detector = build_detector(tiny, started, classes=3).eval()
        if preserve is not None:
            report = condition(detector, Conditioning(lam=0.5, preserve=preserve))  # type: ignore[arg-type]
            assert report.count == 3 * 4
        with torch.no_grad():
            outputs[preserve] = detector.backbone(images)[1]
    assert torch.allclose(outputs["function"], outputs[None], atol=1e-5)
    assert not torch.allclose(outputs["weight"], outputs[None], atol=1e-2)


def test_a_conditioned_run_is_not_corrected_twice(tiny: ModelConfig, tmp_path: Path) -> None:
    """From a run with λI, the same λI again must keep the function; adding it a second time is refused."""
    settings = ClassifierConfig(name=tiny.name, embed_dim=16, depth=4, num_heads=2, num_classes=5)
    model = build_classifier(settings, outputs=5)
    condition(model, Conditioning(lam=10))
    run = save_run(tmp_path / "run", model, settings=dataclasses.asdict(settings))  # type: ignore[arg-type]
    started = body(tiny)
    load_body_weights(started, run)
    detector = build_detector(tiny, started, classes=3)
    with pytest.raises(ConditioningError, match="seems to be conditioned already"):
        condition(detector, Conditioning(lam=10))
    condition(detector, Conditioning(lam=10, preserve="function"))
    own = {item.name: item for item in find_attention(model)}
    for item in find_attention(detector):
        source = own[item.name.removeprefix("backbone.body.")]
        for role in "qkv":
            assert torch.allclose(item.projections[role].stored(), source.projections[role].stored(), atol=2e-6)
            assert torch.allclose(item.projections[role].effective(), source.projections[role].effective(), atol=2e-6)


def test_objects_in_a_checkpoint_are_not_run_and_the_way_out_works(
    tiny: ModelConfig, classifier: Callable[..., Xcit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mmengine saves its log beside the weights, which torch's safe reading refuses."""
    monkeypatch.chdir(tmp_path)
    log = HistoryBuffer()
    log.update(1.0)
    saved = classifier().state_dict()
    torch.save({"meta": {"epoch": 1}, "state_dict": saved, "message_hub": {"log_scalars": {"loss": log}}}, "mm.pth")
    with pytest.raises(DataError, match="it holds objects beside its tensors") as caught:
        load_body_weights(body(tiny), "mm.pth")
    advice = str(caught.value).rpartition(": ")[2]
    eval(advice, {"torch": torch})
    started = body(tiny)
    load_body_weights(started, "weights.pth")
    assert torch.equal(started.state_dict()["blocks.0.attn.qkv.weight"], saved["blocks.0.attn.qkv.weight"])


@pytest.mark.parametrize("content", [b"", b"hello", b"no weights"])
def test_a_damaged_run_is_named(
    content: bytes, tiny: ModelConfig, tmp_path: Path, classifier: Callable[..., Xcit]
) -> None:
    run = save_run(tmp_path / "run", classifier(), settings={})
    (tmp_path / "run/checkpoints/reported.ckpt").write_bytes(content)
    with pytest.raises(DataError, match=r"/run cannot be read as a run: .*; copy it again"):
        load_body_weights(body(tiny), run)


def test_runs_of_other_tasks_are_refused(tiny: ModelConfig, tmp_path: Path, classifier: Callable[..., Xcit]) -> None:
    run = save_run(tmp_path / "run", classifier(), settings={}, task="lra")
    with pytest.raises(DataError, match="is a run of task 'lra'; it must be of 'imagenet'"):
        load_body_weights(body(tiny), run)
