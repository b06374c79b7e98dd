"""paper.csv against the paper's numbers, typed here a second time, and the choice of the row beside an experiment."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from spectral_conditioning.errors import RecordError
from spectral_conditioning.results.metric import Metric
from spectral_conditioning.results.published import COLUMNS, experiments_folder, read_published, reference_for

# family → {(row, metric): (baseline, std, conditioned, std)}
PAPER = {
    "imagenet": {
        ("ViT-B", "accuracy"): (80.7, 0.41, 81.7, 0.38),
        ("DeiT-B", "accuracy"): (81.6, 0.30, 82.6, 0.32),
        ("Swin-B", "accuracy"): (83.4, 0.28, 84.1, 0.25),
        ("XCiT-M", "accuracy"): (82.6, 0.39, 83.5, 0.35),
        ("DaViT-B", "accuracy"): (84.3, 0.26, 84.9, 0.21),
    },
    "coco": {
        ("Mask R-CNN XCiT-S", "AP_box"): (44.9, None, 45.6, None),
        ("Mask R-CNN XCiT-S", "AP_box_50"): (66.1, None, 66.7, None),
        ("Mask R-CNN XCiT-S", "AP_mask"): (40.1, None, 40.5, None),
    },
    "lra": {
        ("ListOps", "accuracy"): (37.1, None, 37.8, None),
        ("Text", "accuracy"): (63.8, None, 64.8, None),
        ("Retrieval", "accuracy"): (79.8, None, 80.6, None),
        ("Image", "accuracy"): (39.9, None, 40.2, None),
        ("Pathfinder", "accuracy"): (72.9, None, 73.7, None),
    },
    "cramming": {
        ("GLUE", "average"): (78.6, None, 79.4, None),
        ("CoLA", "matthews"): (48.9, None, 51.7, None),
        ("QNLI", "accuracy"): (90.1, None, 91.0, None),
        ("SST-2", "accuracy"): (92.3, None, 92.7, None),
    },
    "runtime": {("ViT", "training_time"): (29 * 60 + 29, None, 29 * 60 + 33, None)},
}  # fmt: skip
BASELINE_ONLY = {"MNLI": 83.8, "RTE": 55.1, "QQP": 87.3, "MRPC": 85.0}


def lines() -> list[dict[str, str]]:
    folder = experiments_folder()
    assert folder is not None
    found = []
    for path in sorted(folder.glob("*/paper.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            assert reader.fieldnames == COLUMNS
            found += [{**line, "folder": path.parent.name} for line in reader]
    return found


def test_files_hold_the_papers_numbers() -> None:
    found: dict[str, dict[tuple[str, str], tuple[float | None, ...]]] = {}
    for row in read_published():
        values = (row.baseline, row.baseline_std, row.conditioned, row.conditioned_std)
        found.setdefault(row.family, {})[row.row, row.metric] = values
    assert found == PAPER
    single = {line["row"]: float(line["value"]) for line in lines() if line["row"] in BASELINE_ONLY}
    assert single == BASELINE_ONLY


def test_runtime_ratios_follow_from_the_times() -> None:
    value = {(line["metric"], line["arm"]): float(line["value"]) for line in lines() if line["family"] == "runtime"}
    assert value["training_time", "svd_every_step"] == 41 * 60 + 38
    for arm in ("conditioned", "svd_every_step"):
        ratio = value["training_time", arm] / value["training_time", "baseline"]
        assert value["time_ratio", arm] == pytest.approx(ratio, abs=5e-4)


def test_every_line_is_of_its_folder_and_says_where_it_is_from() -> None:
    for line in lines():
        assert line["family"] == line["folder"]
        assert line["source"]
        assert line["value"] or "unknown" in line["note"]


@pytest.mark.parametrize(
    ("experiment", "metric", "model", "rows", "exact", "gain"),
    [
        ("imagenet/vit_b", "val/accuracy", "", ["ViT-B"], True, 1.0),
        ("imagenet/swin_b", "val/top1", "", ["Swin-B"], True, 0.7),
        ("imagenet/small", "val/accuracy", "vit_small", ["ViT-B"], False, 1.0),
        ("imagenet/small", "val/accuracy", "resnet", [row for row, _ in PAPER["imagenet"]], False, 0.84),
        ("lra/listops_small", "test/accuracy", "", ["ListOps"], True, 0.7),
        ("coco/mask_rcnn_xcit_s", "val/AP_box", "", ["Mask R-CNN XCiT-S"], True, 0.7),
        ("cramming/cola", "val/matthews", "", ["CoLA"], True, 2.8),
        ("coco/xcit_s", "val/AP_mask", "", ["Mask R-CNN XCiT-S"], True, 0.4),
        ("coco/small", "val/AP_box", "", ["Mask R-CNN XCiT-S"], False, 0.7),
        ("lra/skyformer_image", "test/accuracy", "", ["Image"], True, 0.3),
        ("cramming/sst2", "val/accuracy", "", ["SST-2"], True, 0.4),
        ("imagenet/vit_base", "val/accuracy", "vit_base_patch16_224", ["ViT-B"], False, 1.0),
    ],
)
def test_row_beside_an_experiment(
    experiment: str, metric: str, model: str, rows: list[str], exact: bool, gain: float
) -> None:
    reference = reference_for(experiment, Metric(metric, "max"), read_published(), model=model)
    assert reference is not None
    assert [row.row for row in reference.rows] == rows
    assert reference.exact == exact
    assert reference.gain == pytest.approx(gain)


@pytest.mark.parametrize(
    ("experiment", "metric"),
    [("cramming/pretrain", "val/loss"), ("mine/vit_b", "val/accuracy"), ("lra/text", "val/loss")],
)
def test_no_row_of_another_metric_or_family(experiment: str, metric: str) -> None:
    assert reference_for(experiment, Metric(metric, "min"), read_published()) is None


def test_wrong_columns_and_values_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "paper.csv"
    path.parent.mkdir()
    path.write_text("family,row\nmine,x\n")
    with pytest.raises(RecordError, match=r"expected \['family'"):
        read_published(tmp_path)
    path.write_text(",".join(COLUMNS) + "\nmine,x,accuracy,baseline,much,,,a,\nmine,x,accuracy,conditioned,1,,,a,\n")
    with pytest.raises(RecordError, match=r"row 'x', metric 'accuracy'.*'much'"):
        read_published(tmp_path)
