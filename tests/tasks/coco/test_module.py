"""Losses, optimizer groups, schedule, evaluation and pictures of the Lightning module; runs through the one run path."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from pycocotools import mask as masks

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.errors import ConfigError
from spectral_conditioning.tasks.coco.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.coco.data import DetectionData
from spectral_conditioning.tasks.coco.detector import Float32HeadMaskRCNN, prepare_inputs
from spectral_conditioning.tasks.coco.module import DetectionModule
from spectral_conditioning.tasks.coco.pipeline import InstanceDataset, training_transforms
from spectral_conditioning.tasks.coco.task import TASK
from spectral_conditioning.tasks.optim import OptimConfig, build_optimizer, multistep_factor
from spectral_conditioning.training.callbacks import RecordOrder
from spectral_conditioning.training.compose import compose_run
from spectral_conditioning.training.record import read_lines
from spectral_conditioning.training.run import Outcome, run

Build = Callable[..., Float32HeadMaskRCNN]
TINY_RUN = [
    "experiment=coco/shapes",
    "task.model={embed_dim: 16, num_heads: 2, channels: 16, fc_channels: 16, mask_convs: 1, rpn_candidates: 40}",
    "task.model.roi_samples=16",
    "task.model.rpn_proposals=20",
    "data={shapes_train: 6, shapes_val: 3, shapes_size: 64, batch_size: 2, eval_batch_size: 2, pictures: 1}",
    "optim.warmup_steps=1",
    "budget={steps: 2, epochs: null, tokens: null}",
    "evaluate={every_steps: 1, every_epochs: null, spectra: 0}",
    "trainer.log_every=1",
    "trainer.progress=none",
]


def batch(data: DetectionData, indices: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    np.random.seed(0)
    return dict(data.collate([data.train[i] for i in indices]))


def validation(data: DetectionData, indices: list[int]) -> dict[str, Any]:
    return dict(data.collate([data.val[i] for i in indices]))


def test_the_loss_is_the_sum_of_mmdet_s_losses(module: DetectionModule, shapes: DetectionData) -> None:
    torch.manual_seed(0)
    losses = module.training_losses(batch(shapes))
    parts = [value for name, value in losses.items() if name != "loss"]
    assert set(losses) == {"loss", "loss_rpn_cls", "loss_rpn_bbox", "loss_cls", "loss_bbox", "loss_mask"}
    assert losses["loss"].item() == pytest.approx(sum(value.item() for value in parts), rel=1e-6)
    assert losses["loss"].requires_grad
    assert not any(value.requires_grad for value in parts)
    inputs, samples = prepare_inputs(module.model, batch(shapes), training=True)
    torch.manual_seed(0)
    total, _ = module.model.parse_losses(module.model.loss(inputs, samples))
    assert losses["loss"].item() == pytest.approx(total.item(), rel=1e-6)


def test_all_but_layer_norms_are_decayed(module: DetectionModule) -> None:
    optim = OptimConfig(lr=1e-4, weight_decay=0.05, decay_vectors=True, schedule="multistep", warmup_steps=0)
    optimizer, _ = build_optimizer(module, optim, total_steps=10, no_decay=module.no_decay())
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups}
    layer_norms = {
        f"{name}.{kind}"
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.LayerNorm)
        for kind in ("weight", "bias")
    }
    assert groups[0.0] == layer_norms
    assert groups[0.05] == set(names.values()) - layer_norms
    assert "model.backbone.body.blocks.0.gamma1" in groups[0.05]


def test_the_schedule_is_that_of_36_epochs() -> None:
    optim = compose_run(["experiment=coco/xcit_s", "data.path=nowhere"]).optim
    per_epoch = 7330
    rates = [optim.lr * multistep_factor(e * per_epoch, optim, 36 * per_epoch) for e in (1, 26.99, 27, 32.99, 33, 35.9)]
    assert rates == pytest.approx([1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-6])
    assert optim.lr * multistep_factor(0, optim, 36 * per_epoch) == pytest.approx(1e-7)
    assert optim.lr * multistep_factor(250, optim, 36 * per_epoch) == pytest.approx((1e-7 + 1e-4) / 2)


def test_fillers_do_not_count_and_every_figure_is_there(module: DetectionModule, shapes: DetectionData) -> None:
    module.eval()
    with torch.no_grad():
        module.evaluate_batch(validation(shapes, [0, 1]), torch.tensor([True, True]))
        module.evaluate_batch(validation(shapes, [2, 0]), torch.tensor([True, False]))
        first = module.evaluation_metrics()
        module.evaluate_batch(validation(shapes, [0, 1, 2]), torch.tensor([True, True, True]))
        again = module.evaluation_metrics()
    assert len(first) == 24
    assert str(first) == str(again)
    nothing = module.evaluation_metrics()
    assert nothing[TASK.reported(None).metric] == 0.0


def test_a_trained_detector_finds_what_it_learned(detector: Build, shapes: DetectionData) -> None:
    """Memorise one picture: its objects are found with confidence, in pixels of the original, boxes and masks alike."""
    model = detector(channels=32, fc_channels=64)
    module = DetectionModule(model, optim=OptimConfig(), total_steps=40, data=shapes)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    samples = learning_samples(shapes, [0])
    for _ in range(40):
        loss = module.training_losses(copy.deepcopy(samples))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    with torch.no_grad():
        found = module.predict_batch(validation(shapes, [0]))[0]
    truth = shapes.truth.objects[shapes.truth.images[0]["id"]]
    best = [item for item in found if item["score"] > 0.5]
    assert best
    for item in best:
        codes = [other["segmentation"] for other in truth]
        assert masks.iou([item["bbox"]], [other["bbox"] for other in truth], [0] * len(truth)).max() > 0.5
        assert masks.iou([item["segmentation"]], codes, [0] * len(truth)).max() > 0.5


def learning_samples(data: DetectionData, positions: list[int]) -> dict[str, Any]:
    """Return validation pictures as unaugmented training samples."""
    dataset = InstanceDataset(
        data.truth,
        data.val.read,  # type: ignore[attr-defined]
        training_transforms(DataConfig(augment=False, eval_short_side=64, max_side=64)),
        positions=positions,
        training=True,
        deterministic=True,
    )
    return dict(data.collate([dataset[i] for i in range(len(dataset))]))


def test_pictures_show_ground_truth_beside_predictions(module: DetectionModule, tmp_path: Path) -> None:
    files = module.eval().artifacts(tmp_path)
    sheet = cv2.imread(str(files["predictions"]))
    assert list(files) == ["predictions"]
    # Two rows of two pictures of 64 pixels, enlarged to 384.
    assert sheet.shape[0] > 2 * 384
    assert sheet.shape[1] == 2 * 384 + 8
    left, right = sheet[30:400, :384].astype(int), sheet[30:400, 392:].astype(int)
    assert (np.abs(left - right).max(axis=2) > 30).mean() > 0.01


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(
        compose_run(
            [*TINY_RUN, f"paths.runs={tmp_path_factory.mktemp('runs')}", "conditioning=polar", "evaluate.spectra=2"]
        )
    )


def test_a_run_leaves_a_record_pictures_and_plain_checkpoints(finished: Outcome) -> None:
    record = finished.record
    assert record["status"] == "finished"
    assert record["projections"] == 12
    assert record["primary"]["name"] == "val/bbox_mAP"
    assert math.isfinite(record["primary"]["value"])
    assert len(record["metrics"]) == 24
    assert (finished.folder / "predictions.png").stat().st_size > 1000
    # torch >= 2.6 reads only plain types by default.
    saved = torch.load(finished.folder / "checkpoints" / "reported.ckpt", weights_only=True)
    assert saved["step"] == 2
    assert any(name.startswith("backbone.body.blocks.0.attn.qkv") for name in saved["model"])


def test_spectra_of_the_backbone_are_recorded(finished: Outcome) -> None:
    spectra = [line for line in read_lines(finished.folder / "metrics.jsonl") if line["split"] == "spectra"]
    assert [line["step"] for line in spectra] == [0, 1, 2]
    for line in spectra:
        # Theorem 3.5 before the first step, little moved after two of them.
        assert all(1 <= line[f"kappa_w/{role}"] <= 2.1 for role in "qkv")
        assert line["kappa_j"] > 1
    assert 0 < finished.record["seconds"]["spectra"] < finished.record["seconds"]["train"]


def test_both_arms_start_from_the_same_weights_and_see_the_same_samples(tmp_path: Path, finished: Outcome) -> None:
    plain = run(compose_run([*TINY_RUN, f"paths.runs={tmp_path / 'runs'}"]))
    assert plain.record["hashes"] == finished.record["hashes"]
    assert plain.record["projections"] == 0


class Killed(BaseException):
    """Stands for a process that ends here."""


def test_a_killed_run_ends_as_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*TINY_RUN, "budget.steps=4", "trainer.checkpoint_every=2", "conditioning=identity", "conditioning.lam=0.1"]
    unbroken = run(compose_run([*words, f"paths.runs={tmp_path / 'unbroken'}"]))
    original = RecordOrder.on_train_batch_start

    def dying(self: RecordOrder, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == 3:
            raise Killed
        original(self, trainer, *rest)

    again = compose_run([*words, f"paths.runs={tmp_path / 'runs'}"])
    with monkeypatch.context() as patch:
        patch.setattr(RecordOrder, "on_train_batch_start", dying)
        with pytest.raises(Killed):
            run(again)
    resumed = run(again)
    # As written, where a figure without objects of its size is null: NaN would not equal itself.
    written = [json.loads((outcome.folder / "result.json").read_text()) for outcome in (resumed, unbroken)]
    assert written[0]["metrics"] == written[1]["metrics"]
    assert written[0]["hashes"] == written[1]["hashes"]
    assert (resumed.folder / "metrics.jsonl").read_text() == (unbroken.folder / "metrics.jsonl").read_text()


def test_conditioning_leaves_heads_alone(detector: Build) -> None:
    built = detector()
    before = {name: value.clone() for name, value in built.named_parameters()}
    report = condition(built, Conditioning(lam=10))
    assert report.count == 12
    assert all(row.layer.startswith("backbone.body.blocks.") for row in report.projections)
    assert all(torch.equal(value, before[name]) for name, value in built.named_parameters())


def test_settings_are_checked_together() -> None:
    wrong = [
        "experiment=coco/small", "task.model.taps=[0,1,2]", "task.model.embed_dim=65", "data.flip=2", "task.model.patch_size=4",
        "data.crop_sizes=[9,3]", "data.short_sides=[]", "task.model.name=vit_base_patch16_224",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as error:
        compose_run(wrong)
    for part in ("task.model.taps", "embed_dim is 65", "data.flip is 2", "patch_size is 4", "data.path is not given",
                 "data.crop_sizes", "data.short_sides", "'vit_base_patch16_224'"):  # fmt: skip
        assert part in str(error.value)


def test_defaults_are_the_paper_s() -> None:
    config = compose_run(["experiment=coco/xcit_s", "data.path=nowhere"])

    def plain(settings: Any) -> Any:
        return json.loads(json.dumps(dataclasses.asdict(settings)))

    assert plain(config.task.model) == plain(ModelConfig(num_classes=80))
    assert list(config.data.short_sides) == list(range(480, 801, 32))
    assert (config.data.batch_size, config.budget.epochs) == (16, 36)
