"""What is exported works without this package and gives the run's own numbers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file

from spectral_conditioning.cli import dispatch
from spectral_conditioning.errors import RecordError
from spectral_conditioning.launch.export import untied

Train = Callable[..., Any]


@pytest.mark.parametrize("arm", ["none", "identity", "identity_fused", "polar"])
def test_exported_weights_load_in_timm_and_give_the_recorded_accuracy(arm: str, train: Train, tiny: Callable[..., Any]):
    from spectral_conditioning.tasks.registry import load_task

    outcome = train(f"conditioning={arm}")
    assert dispatch(["export", str(outcome.folder)]) == 0
    out = outcome.folder / "export"
    described = json.loads((out / "model.json").read_text())
    model = timm.create_model(**described["call"]["arguments"])
    model.load_state_dict(load_file(out / "model.safetensors"), strict=True)
    data = load_task("imagenet").load_data(tiny()).val
    images, labels = zip(*(data[i] for i in range(len(data))), strict=True)
    with torch.no_grad():
        hits = model.eval()(torch.stack(images)).argmax(1) == torch.tensor([int(label) for label in labels])
    assert float(hits.double().mean()) == outcome.record["primary"]["value"]
    assert described["folded_layers"] == (0 if arm == "none" else 1)


@pytest.mark.parametrize("norm_layer", ["null", "none"])
def test_the_card_runs_and_says_what_was_done(norm_layer: str, train: Train):
    outcome = train("conditioning=identity", "conditioning.lam=3", f"task.model.norm_layer={norm_layer}")
    dispatch(["export", str(outcome.folder), "--out", "card"])
    card = Path("card/README.md").read_text()
    assert '"lam": 3.0' in card
    assert outcome.record["hashes"]["data"] in card
    code = card.split("```python")[1].split("```")[0]
    script = f"{code}\nimport sys; assert 'spectral_conditioning' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd="card", check=True, timeout=120)


def test_exporting_twice_gives_the_same_files_and_leaves_the_run(train: Train):
    outcome = train("conditioning=polar")
    kept = (outcome.folder / "checkpoints" / "reported.ckpt").read_bytes()
    contents = []
    for _ in range(2):
        dispatch(["export", str(outcome.folder)])
        contents.append((outcome.folder / "export" / "model.safetensors").read_bytes())
    assert contents[0] == contents[1]
    assert (outcome.folder / "checkpoints" / "reported.ckpt").read_bytes() == kept


def test_what_is_no_finished_run_is_refused(train: Train, tmp_path: Path):
    with pytest.raises(RecordError, match=r"no result\.json"):
        dispatch(["export", str(tmp_path)])
    with pytest.raises(RecordError, match="diverged"):
        dispatch(["export", str(train("optim.lr=1e30").folder)])


@pytest.mark.parametrize("damage", ["cut short", "changed", "gone"])
def test_damaged_weights_are_named_with_the_way_out(damage: str, train: Train):
    outcome = train()
    path = outcome.folder / "checkpoints" / "reported.ckpt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(content) if damage == "changed" else bytes(content[:-200]))
    with pytest.raises(
        RecordError, match=r"checkpoints/reported\.ckpt: .*move the folder .* repeat its spectral train"
    ):
        dispatch(["export", str(outcome.folder)])
    assert not (outcome.folder / "export").exists()


def test_tied_tensors_are_saved_once_and_named():
    weight = torch.randn(3, 3)
    kept, ties = untied({"embed.weight": weight, "head.weight": weight, "row": weight[:1]})
    assert set(kept) == {"embed.weight", "row"}
    assert ties == {"head.weight": "embed.weight"}
