"""Two processes on the CPU: DDP and fully_shard equal one process; FSDP1 is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

from spectral_conditioning import (
    Conditioning,
    ConditioningError,
    Refresher,
    attach_decay,
    condition,
    find_attention,
)


class Net(nn.Module):
    """Two encoder layers (MultiheadAttention reads its own weights) and a head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


SETTINGS = {
    "identity": Conditioning(lam=1.0, decay_toward="zero"),
    "polar": Conditioning(correction="polar", lam=1.0, refresh_every=1, decay_toward="zero"),
}


def built(settings: Conditioning) -> Net:
    torch.manual_seed(0)
    model = Net().double()
    condition(model, settings)
    return model


def wrapped(model: Net, wrapper: str) -> nn.Module:
    if wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model.encoder.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def trained(model: nn.Module, inner: Net, part: slice) -> list[float]:
    """Three steps of AdamW with decay of W + C; return the outputs' means."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    attach_decay(inner, optimizer)
    refresher = Refresher(inner)
    generator = torch.Generator().manual_seed(1)
    means = []
    for _ in range(3):
        x = torch.randn(4, 5, 16, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        outputs = model(x[part])
        outputs.square().mean().backward()
        optimizer.step()
        refresher.step()
        means.append(outputs.mean().item())
    return means


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        single = built(settings)
        trained(single, single, slice(None))
        expected = {key: value for key, value in single.state_dict().items() if value.is_floating_point()}
        for wrapper in ("ddp", "fully_shard"):
            inner = built(settings)
            outer = wrapped(inner, wrapper)
            trained(outer, inner, slice(rank * 2, rank * 2 + 2))
            state = inner.state_dict()
            found[f"{name} {wrapper}"] = max(
                float((whole(state[key]) - value).abs().max()) for key, value in expected.items()
            )
            layer = inner.encoder.layers[0].self_attn
            effective = whole(layer.effective_weight("in_proj_weight")).detach()
            difference = effective - single.encoder.layers[0].self_attn.effective_weight("in_proj_weight")
            found[f"{name} {wrapper} effective"] = float(difference.abs().max())
    full = StateDictOptions(full_state_dict=True)
    saved = get_model_state_dict(inner, options=full)
    set_model_state_dict(inner, saved, options=full)
    found["checkpoint keys"] = sorted(saved)
    found["other checkpoint"] = refusal(
        lambda: set_model_state_dict(inner, built(SETTINGS["identity"]).state_dict(), options=full)
    )
    attention = inner.encoder.layers[0].self_attn
    read = whole(attention.in_proj_weight.detach()) - whole(attention.trained_weight("in_proj_weight").detach())
    found["sharded read"] = float((read - attention.correction("in_proj_weight")).abs().max())
    attention._parameters["in_proj_weight"] = attention.trained_weight("in_proj_weight") * 1.0
    found["computed parameter"] = refusal(lambda: attention.effective_weight("in_proj_weight"))
    found["condition sharded"] = refusal(lambda: condition(wrapped(Net(), "fully_shard"), lam=1.0))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def refusal(action: Any) -> str:
    try:
        action()
    except ConditioningError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        differences = {key: value for key, value in found.items() if isinstance(value, float)}
        assert len(differences) == 9
        assert max(differences.values()) < 1e-9, differences
        assert found["checkpoint keys"] == sorted(built(SETTINGS["polar"]).state_dict())
        assert "checkpoint refused" in found["other checkpoint"]
        assert "took W + C for the parameter W" in found["computed parameter"]
        assert "condition before fully_shard" in found["condition sharded"]


def test_flattened_weights_are_refused() -> None:
    model = Net()
    layer = model.encoder.layers[0].self_attn
    layer.in_proj_weight = nn.Parameter(layer.in_proj_weight.detach().flatten())
    with pytest.raises(ConditioningError, match=r"shape \(768,\): a flattened weight \(FSDP1\)"):
        find_attention(model)
    conditioned = built(SETTINGS["identity"])
    attention = conditioned.encoder.layers[0].self_attn
    attention._parameters["in_proj_weight"] = nn.Parameter(torch.zeros(768))
    with pytest.raises(ConditioningError, match=r"a wrapper \(FSDP1\) flattened it"):
        conditioned(torch.randn(2, 5, 16).double())
    del attention.in_proj_weight  # FSDP1 puts views of its flat parameter where the parameters were
    with pytest.raises(ConditioningError, match=r"cannot be assigned a plain tensor \(FSDP1 does\)"):
        attention.in_proj_weight = torch.zeros(48, 16)
