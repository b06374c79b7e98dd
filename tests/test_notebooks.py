"""The notebooks run as committed, show what their text says, and their committed outputs are up to date and light."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
NAMES = ("condition_any_model", "compare_runs")
LARGEST = 300_000
# Asked of the notebooks' variables after their last cell.
QUESTIONS = {
    "condition_any_model": """{
        "kappa": {name: [float(np.median(values)), max(values)] for name, values in kappa.items()},
        "saturation": {arm: {f"{lam:g}": [mean(each, "entropy"), mean(each, "self_weight"), each.saturated, each.total]
                             for lam, each in zip(LAMBDAS, reports)} for arm, reports in measured.items()},
        "gradients": {name: value / gradients["plain"] for name, value in gradients.items()},
        "maps": {name: float(weights.diagonal().mean()) for name, weights in maps.items()},
        "counts": [report.count, own_report.count],
        "fold": [fold_difference, reload_difference], "unfolded": unfolded, "refusal": refusal,
    }""",
    "compare_runs": """{
        "demo": {arm: [number(row, "value") for row in members] for arm, members in by_arm(demo).items()},
        "differences": differences(demo), "studies": [*studies],
        "tables": [[arm.label, len(arm.runs), arm.differences] for arm in table.arms],
        "left": [len(again.unpaired), len(again.unfinished), len(again.tables[0].arms[0].pairs)],
    }""",
}


def executed(name: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Run a notebook in its own folder, in this environment, offline; return it with its outputs and its answers."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    question = f"import json, sys\nprint(json.dumps([sys.executable, {QUESTIONS[name]}]))"
    notebook.cells.append(new_code_cell(question))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)
        for key in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
            patch.setenv(key, str(folder / key))
        for key in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
            patch.setenv(key, "1")
        client = NotebookClient(
            notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}}
        )
        client.execute()  # A cell that raises is an error here.
    python, answers = json.loads(text_of(notebook.cells.pop()))
    assert python == sys.executable
    return notebook, answers


@pytest.fixture(scope="module", params=NAMES)
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, dict[str, Any]]:
    return request.param, *executed(request.param, tmp_path_factory.mktemp("jupyter"))


def text_of(cell: Any) -> str:
    """What a cell printed."""
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_every_cell_runs_and_what_is_said_holds(fresh: tuple[str, Any, dict[str, Any]]) -> None:
    name, notebook, answers = fresh
    kinds = [output.output_type for cell in code_of(notebook) for output in cell.outputs]
    assert kinds.count("display_data") == 3
    assert "error" not in kinds
    {"condition_any_model": check_conditioning, "compare_runs": check_comparison}[name](answers)
    if name == "compare_runs":
        # Made from committed results: what is shown must be what they hold (jupyter execute --inplace makes it anew).
        committed = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        pairs = list(zip(code_of(committed), code_of(notebook), strict=True))
        assert [text_of(old) for old, _ in pairs[:6]] == [text_of(new) for _, new in pairs[:6]]


def check_conditioning(found: dict[str, Any]) -> None:
    assert found["counts"] == [18, 3]
    kappa = found["kappa"]
    assert kappa["W"][0] > 100
    assert kappa["identity λ=10"][1] < 1.2  # (λ + σ)/(λ − σ) with σ near 0.5
    assert kappa["polar λ=1"][1] <= 2.0001
    saturated = {arm: {lam: values[2:] for lam, values in row.items()} for arm, row in found["saturation"].items()}
    assert saturated["identity on Q, K, V"]["10"] == [6, 6]
    assert saturated["identity, fused"]["10"] == saturated["polar (λ in σ_max)"]["1"] == [0, 6]
    assert all(row["0"] == [0, 6] for row in saturated.values())
    entropy, self_weight, *_ = found["saturation"]["identity on Q, K, V"]["10"]
    assert (entropy, self_weight) == (pytest.approx(0.38, abs=0.01), pytest.approx(0.3, abs=0.02))
    assert found["gradients"]["identity on Q, K, V, λ=10"] < 1e-3
    assert found["gradients"]["identity, fused, λ=10"] > 1
    assert found["gradients"]["polar (λ in σ_max), λ=1"] > 1
    assert found["maps"]["identity λ=10"] > 0.999
    assert max(found["maps"]["plain"], found["maps"]["polar λ=1"]) < 0.1
    assert max(found["fold"]) < 1e-5
    assert found["unfolded"] is True
    assert "blocks.0.attn.qkv._extra_state" in found["refusal"]


def check_comparison(found: dict[str, Any]) -> None:
    with open(ROOT / "experiments/imagenet/demo/results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        values.setdefault(row["arm"], {})[row["seed"]] = float(row["value"])
    assert found["demo"] == {arm: list(seeds.values()) for arm, seeds in values.items()}
    baseline = values.pop("baseline")
    at_chance = {(row["arm"], row["seed"]) for row in rows if row["at_chance"] == "True"}
    for arm, seeds in values.items():
        expected = [100 * (value - baseline[seed]) for seed, value in seeds.items() if (arm, seed) not in at_chance]
        assert found["differences"][arm] == pytest.approx(expected)
    assert found["studies"][0] == "demo"
    ((label, runs, differences),) = found["tables"]
    assert (label, runs, len(differences)) == ("identity λ=1 (full, qkv)", 2, 2)
    assert found["left"] == [1, 1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_light_and_complete(name: str) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    assert path.stat().st_size < LARGEST
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|Users|work)/|site-packages", text)
    cells = code_of(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
