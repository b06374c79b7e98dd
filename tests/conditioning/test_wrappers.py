"""Copies, averages, functional calls, compilation, checkpointing, autocast: W + C is what computes in all of them."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from spectral_conditioning import condition, conditioned_layers, refresh, stacked, strip

EVERY = [{"lam": 1.0}, {"correction": "polar", "lam": 1.0, "refresh_every": 1}]


@pytest.fixture(params=EVERY, ids=["identity", "polar"])
def model(vit: nn.Module, request: pytest.FixtureRequest) -> nn.Module:
    condition(vit, **request.param)
    return vit


def step(model: nn.Module, images: Tensor, optimizer: torch.optim.Optimizer) -> None:
    model(images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_deepcopy_and_pickle_are_independent_and_equal(model: nn.Module, images: Tensor) -> None:
    outputs = model(images)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        assert len(conditioned_layers(other)) == 2
        assert torch.equal(other(images), outputs)
        with torch.no_grad():
            other.blocks[0].attn.qkv.trained_weight().zero_()
    assert torch.equal(model(images), outputs)


def test_ema_of_decay_zero_equals_the_live_model(model: nn.Module, images: Tensor) -> None:
    """W is averaged, C is copied: after a step, a refresh and an update the average computes what the model does."""
    timm_ema = pytest.importorskip("timm.utils").ModelEmaV3
    averages = [
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.0)),
        timm_ema(model, decay=0.0),
    ]
    step(model, images, torch.optim.SGD(model.parameters(), lr=0.1))
    refresh(model)
    averages[0].update_parameters(model)
    averages[0].update_parameters(model)  # the first update copies, the second averages
    averages[1].update(model)
    for average in averages:
        copied = average.module
        assert len(conditioned_layers(copied)) == 2
        refresh(copied)
        torch.testing.assert_close(copied(images), model(images), rtol=1e-5, atol=1e-6)
        other = copy.deepcopy(model)
        other.load_state_dict(copied.state_dict())
        assert torch.equal(other(images), copied(images))


def test_functional_call_and_gradients_of_functions(model: nn.Module, images: Tensor) -> None:
    parameters = dict(model.named_parameters())
    assert torch.equal(functional_call(model, parameters, (images,)), model(images))
    gradients = grad(lambda p: functional_call(model, p, (images,)).square().sum())(parameters)
    model(images).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-4)


def test_derivative_in_the_weight_is_the_identity() -> None:
    module = nn.MultiheadAttention(8, 2)
    condition(module, lam=3.0)
    weight = module.trained_weight("in_proj_weight").detach()
    direction = torch.randn_like(weight)

    def read(value: Tensor) -> Tensor:
        module._parameters["in_proj_weight"] = value  # what functional_call does
        return module.effective_weight("in_proj_weight")

    value, tangent = jvp(read, (weight,), (direction,))
    assert torch.equal(value, weight + module.correction("in_proj_weight"))
    assert torch.equal(tangent, direction)


def test_ensemble_by_vmap() -> None:
    models = [nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3)]
    for member in models:
        condition(member, lam=2.0)
    x = torch.randn(2, 4, 8)
    base = copy.deepcopy(models[0]).to("meta")
    parameters, buffers = stack_module_state(models)
    outputs = vmap(lambda p, b: functional_call(base, (p, b), (x, x, x))[0])(parameters, buffers)
    torch.testing.assert_close(outputs, torch.stack([member(x, x, x)[0] for member in models]))


def test_compile_without_graph_breaks(model: nn.Module, images: Tensor) -> None:
    """One graph for the model, for changing batch sizes and after refreshes."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for batch in (images, images[:2]):
        torch.testing.assert_close(compiled(batch), model(batch), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        refresh(model)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", EVERY)
def test_compiled_gradients(stacked_attention: type[nn.Module], settings: dict[str, Any]) -> None:
    torch._dynamo.reset()
    module = stacked_attention(8, 2)
    condition(module, layouts={stacked_attention: stacked("qkv", heads="heads")}, **settings)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 8)
    expected = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    found = torch.autograd.grad(compiled(x).square().sum(), list(module.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(model: nn.Module, images: Tensor, reentrant: bool) -> None:
    plain = copy.deepcopy(model)
    images = images.requires_grad_()

    def run(net: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(net, x, use_reentrant=reentrant)

    run(model, images).square().sum().backward()
    plain(images).square().sum().backward()
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-5)


def test_sum_is_formed_in_float32_before_the_autocast_cast(stacked_attention: type[nn.Module]) -> None:
    module = stacked_attention(64, 2)
    layouts = {stacked_attention: stacked("qkv", heads="heads")}
    condition(module, lam=10.0, layouts=layouts)
    x = torch.randn(5, 64)
    exact = module.qkv.trained_weight() + module.qkv.correction()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.qkv(x)
    expected = nn.functional.linear(x.bfloat16(), exact.bfloat16(), module.qkv.bias.bfloat16())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    assert module.qkv.weight.dtype == torch.float32


def test_conversions(model: nn.Module, images: Tensor) -> None:
    expected = model(images)
    double = copy.deepcopy(model).double()
    torch.testing.assert_close(double(images.double()).float(), expected, rtol=1e-4, atol=1e-4)
    half = copy.deepcopy(model).bfloat16()
    assert half(images.bfloat16()).dtype == torch.bfloat16
    assert half.blocks[0].attn.qkv.effective_weight().dtype == torch.bfloat16


def test_data_parallel_replicas(model: nn.Module) -> None:
    """nn.DataParallel puts plain tensors where parameters were."""
    layer = model.blocks[0].attn.qkv
    replica = layer._replicate_for_data_parallel()
    replica.weight, replica.bias = layer.trained_weight() * 1.0, layer.bias * 1.0
    torch.testing.assert_close(replica.weight, layer.weight)
    x = torch.randn(2, 32)
    torch.testing.assert_close(replica(x), layer(x))


def test_lightning_module(model: nn.Module, images: Tensor, tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Tensor) -> Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.05)

    task = Task()
    trainer = lightning.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, torch.utils.data.DataLoader(images, batch_size=1, collate_fn=torch.stack))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    state = torch.load(tmp_path / "run.ckpt", weights_only=True)["state_dict"]
    expected = model(images)
    with torch.no_grad():
        model.head.weight.zero_()
    task.load_state_dict(state)
    assert torch.equal(model(images), expected)


def test_live_in_train_eval_no_grad_and_inference(model: nn.Module, images: Tensor) -> None:
    plain = copy.deepcopy(model)
    strip(plain)
    expected = model(images)
    assert (expected - plain(images)).abs().max() > 0.1
    model.train()
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)


def test_import_needs_only_torch() -> None:
    """The library loads nothing but torch and itself, in at most 0.3 s of its own."""
    script = (
        "import sys, time, torch\n"
        "before = set(sys.modules)\n"
        "start = time.process_time()\n"
        "from spectral_conditioning import condition\n"
        "seconds = time.process_time() - start\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(seconds, *sorted(loaded - set(sys.stdlib_module_names)))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, *loaded = result.stdout.split()
    assert loaded == ["spectral_conditioning"]
    assert float(seconds) <= 0.3
