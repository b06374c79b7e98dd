"""The bench times what it says it times, and its counts do not depend on the machine."""

import json
from pathlib import Path

import pytest
import torch

from spectral_conditioning.cli import dispatch
from spectral_conditioning.errors import ConfigError
from spectral_conditioning.launch import bench
from spectral_conditioning.launch.paired_timing import Ratio


def ratio(value: float) -> Ratio:
    return Ratio(value, value, value, 1.0, 1)


def test_a_refresh_every_n_steps_is_the_share_of_one_every_step():
    steps = {"polar once": ratio(1.01), "polar every step": ratio(1.51)}
    assert bench.shared_refreshes(steps) == pytest.approx(
        {"polar every 10 steps": 1.06, "polar every 100 steps": 1.015}
    )
    assert bench.shared_refreshes({"polar once": ratio(1.0)}) == {}


def test_an_unknown_model_or_device_is_refused_by_name():
    with pytest.raises(ConfigError, match="closest 'vit_base_patch16_224'"):
        dispatch(["bench", "vit_base_patch16_22"])
    with pytest.raises(ConfigError, match="--rounds is 0"):
        dispatch(["bench", "vit_tiny_patch16_224", "--rounds", "0"])


@pytest.mark.slow
def test_every_figure_lands_in_the_file(capsys: pytest.CaptureFixture[str]):
    model = "test_vit"
    assert (
        dispatch(
            [
                "bench",
                model,
                "--batch",
                "1",
                "--rounds",
                "1",
                "--only",
                "identity λ=10",
                "--json",
                "b.json",
                "--flush-denormal",
            ]
        )
        == 0
    )
    assert torch.tensor(1e-39) * 1 > 0  # flushed there only
    found = json.loads(Path("b.json").read_text())
    assert set(found["training_step"]) == {"plain", "identity λ=10"}
    assert set(found["inference"]) == {"plain", "conditioned", "folded"}
    assert found["training_step"]["plain"]["ratio"] == 1.0
    assert found["counts"]["added_matmul_flops"] == 0
    assert found["counts"]["added_additions"] == found["counts"]["expected_additions"]
    assert found["run_path"]["rounds"] == 1
    assert found["flush_denormal"]
    assert "Batch 1 is small" in capsys.readouterr().out.replace("\n", " ")
