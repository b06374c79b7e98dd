"""`spectral probe` from the shell: table, JSON, figures; models, weight files and runs; one-message errors."""

import json
import struct
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from spectral_conditioning.cli import dispatch
from spectral_conditioning.errors import ConfigError, DataError, SpectralError
from spectral_conditioning.results.probe_report import short

TINY = ["--tokens", "6", "--layers", "1"]


def png_size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def test_a_timm_model_gives_a_table_a_file_and_figures(tmp_path, capsys):
    out = tmp_path / "probe"
    assert dispatch(["probe", "timm:vit_tiny_patch16_224", *TINY, "--lam", "0,10", "--blocks", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    for expected in ("random initialisation (seed 0)", "china.jpg", "SATURATED", "12 of 12 layers are saturated",
                     "λ²√d = 800", "6 of 197 tokens", "random tokens", "J_K"):  # fmt: skip
        assert expected in shown
    found = json.loads((out / "probe.json").read_text())
    assert [point["lam"] for point in found["points"]] == [0, 10]
    assert found["model"] == "timm:vit_tiny_patch16_224"
    control = found["points"][1]["control"]["heads"][0]
    assert control["jacobian"]["kappa"] < 20
    for name in ("spectra.png", "layers.png", "saturation.png"):
        width, height = png_size(out / name)
        assert width > 900
        assert height > 400


def test_channel_attention_and_a_terminal_without_room(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "90")
    arguments = ["timm:xcit_nano_12_p16_224", "--tokens", "6", "--layers", "2", "--lam", "1", "--out", str(tmp_path)]
    assert dispatch(["probe", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "exempt" in shown
    assert shown.count("identity on q, k, v (full)") == 2
    assert not (tmp_path / "saturation.png").exists()


def test_a_file_of_weights_is_loaded_strictly(tmp_path, capsys):
    torch.manual_seed(1)
    model = timm.create_model("vit_tiny_patch16_224")
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    name = str(tmp_path / "w.safetensors")
    arguments = ["--arch", "timm:vit_tiny_patch16_224", *TINY, "--lam", "0", "--out", str(tmp_path / "out")]
    assert dispatch(["probe", name, *arguments]) == 0
    assert "w.safetensors" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "probe.json").read_text())
    q = model.blocks[0].attn.qkv.weight.detach()[:192].double()
    spectrum = found["points"][0]["spectra"][0]
    assert spectrum["sigma_max"] == pytest.approx(float(torch.linalg.matrix_norm(q, 2)), rel=1e-6)
    with pytest.raises(SpectralError, match="Nothing was loaded"):
        dispatch(["probe", name, "--arch", "timm:deit_tiny_distilled_patch16_224", *TINY, "--lam", "0"])


def test_a_finished_run_is_probed_as_it_was_trained(tmp_path, capsys):
    overrides = [
        "experiment=imagenet/small",
        "budget={steps: 2, epochs: null}",
        "conditioning=identity",
        "conditioning.lam=0.5",
    ]
    assert dispatch(["train", *overrides, f"paths.runs={tmp_path / 'runs'}"]) == 0
    (config,) = (tmp_path / "runs").rglob("config.yaml")
    assert dispatch(["probe", str(config.parent), "--layers", "1", "--out", str(tmp_path / "as-trained")]) == 0
    assert "as trained" in capsys.readouterr().out
    found = json.loads((tmp_path / "as-trained" / "probe.json").read_text())["points"]
    assert [point["lam"] for point in found] == [None]
    assert found[0]["conditioning"]["lam"] == 0.5
    assert found[0]["layers"][0]["gradients"]["q"] > 0
    again = ["--layers", "1", "--lam", "0,0.5", "--out", str(tmp_path / "again")]
    assert dispatch(["probe", str(config.parent), *again]) == 0
    plain, same = json.loads((tmp_path / "again" / "probe.json").read_text())["points"]
    kappas = [point["layers"][0]["heads"][0]["jacobian"]["kappa"] for point in (found[0], same, plain)]
    assert kappas[0] == pytest.approx(kappas[1], rel=1e-6)
    assert kappas[2] != pytest.approx(kappas[0], rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["timm:vit_bse"], ConfigError, r"no model 'vit_bse'; some that exist"),
        (["nowhere"], ConfigError, "allowed: timm:NAME"),
        (["weights.pth"], ConfigError, "--arch timm:NAME"),
        (["timm:vit_tiny_patch16_224", "--lam", "-1"], ConfigError, "at least 0"),
        (["timm:vit_tiny_patch16_224", "--layers", "0", "--tokens", "1"], ConfigError, "--layers is 0.*--tokens is 1"),
        (["timm:vit_tiny_patch16_224", "--device", "warp"], ConfigError, "allowed: cpu"),
        (["timm:vit_tiny_patch16_224", "--correction", "magic"], SpectralError, "magic"),
        (["timm:vit_tiny_patch16_224", "--data", "missing.jpg"], DataError, "does not exist"),
        (["timm:vit_tiny_patch16_224", "--data", "weights.pth"], DataError, "cannot be read as an image"),
        (["."], SpectralError, "config.yaml does not exist"),
    ],
)
def test_errors_name_the_thing_and_the_fix(arguments, error, message):
    Path("weights.pth").write_text("no weights")
    with pytest.raises(error, match=message):
        dispatch(["probe", *arguments])


def test_numbers_are_short_enough_for_a_terminal_of_100_columns():
    given = [1.25, 99.6, 810.4, 9999.4, 12_345.0, 4.2e6, 1e146, 1.6e-5, float("inf"), 0.0]
    shown = ["1.2", "1e2", "810", "9999", "1.2e4", "4.2e6", "1e146", "1.6e-5", "inf", "0"]
    assert [short(value) for value in given] == shown
