"""Laws of losses and metrics: references written out, every image counted once, odd batches mixed, evaluation without chance."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spectral_conditioning.randomness import seed_all
from spectral_conditioning.tasks.imagenet.config import DataConfig, ModelConfig
from spectral_conditioning.tasks.imagenet.model import build_classifier
from spectral_conditioning.tasks.imagenet.module import ClassificationModule, build_loss, build_mixup, mix
from spectral_conditioning.tasks.optim import OptimConfig
from spectral_conditioning.tasks.streams import CollateBatch, EvaluationBatches, SeededDataset

CLASSES = 7
SIZE = 23


def module(
    model: nn.Module, *, classes: int = CLASSES, smoothing: float = 0.0, loss: str = "cross_entropy", **data: float
) -> ClassificationModule:
    return ClassificationModule(
        model,
        optim=OptimConfig(),
        total_steps=10,
        settings=ModelConfig(smoothing=smoothing, loss=loss),
        data=DataConfig(**data),  # type: ignore[arg-type]
        classes=classes,
    )


@pytest.fixture
def pictures() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, 3, 4, 4, generator=draw), torch.randint(CLASSES, (SIZE,), generator=draw)


@pytest.fixture
def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))


def reference_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Plain numpy: log-sum-exp loss, and the rank of the right class."""
    z = logits.detach().double().numpy()
    right = z[np.arange(len(z)), labels.numpy()]
    loss = np.log(np.exp(z).sum(axis=1)) - right
    rank = (z > right[:, None]).sum(axis=1)
    return {"loss": loss.mean(), "accuracy": (rank < 1).mean(), "accuracy_top5": (rank < 5).mean()}


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [4, 100])
def test_each_image_counts_once_on_any_number_of_ranks(
    world_size: int,
    batch_size: int,
    pictures: tuple[Tensor, Tensor],
    linear: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = SeededDataset(TensorDataset(*pictures), seed=0, stream="validate")
    sums = []
    for rank in range(world_size):
        own = module(linear)
        order = EvaluationBatches(SIZE, batch_size=batch_size, rank=rank, world_size=world_size)
        for batch in DataLoader(served, batch_sampler=order, collate_fn=CollateBatch()):
            own.evaluate_batch(batch.samples, batch.counted)
        # Stands for the sum over ranks: note what this rank gives.
        monkeypatch.setattr(own, "reduce_sum", lambda value: sums.append(value) or value)
        own.evaluation_metrics()
    last = module(linear)
    monkeypatch.setattr(last, "reduce_sum", lambda value: torch.stack(sums).sum(dim=0))
    assert last.evaluation_metrics() == pytest.approx(reference_metrics(linear(pictures[0]), pictures[1]), rel=1e-6)


def test_metrics_start_anew_after_they_are_read(pictures: tuple[Tensor, Tensor], linear: nn.Module) -> None:
    own = module(linear)
    counted = torch.ones(SIZE, dtype=torch.bool)
    own.evaluate_batch((-pictures[0], pictures[1]), counted)
    own.evaluation_metrics()
    own.evaluate_batch(pictures, counted)
    assert own.evaluation_metrics() == pytest.approx(reference_metrics(linear(pictures[0]), pictures[1]), rel=1e-6)


def test_top5_is_left_out_where_it_means_nothing(pictures: tuple[Tensor, Tensor]) -> None:
    own = module(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), classes=5)
    own.evaluate_batch((pictures[0], pictures[1] % 5), torch.ones(SIZE, dtype=torch.bool))
    assert set(own.evaluation_metrics()) == {"loss", "accuracy"}


def test_logits_that_are_no_numbers_score_nothing(pictures: tuple[Tensor, Tensor]) -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.full((len(images), CLASSES), float("nan"))

    own = module(Broken())
    own.evaluate_batch((pictures[0], torch.zeros(SIZE, dtype=torch.long)), torch.ones(SIZE, dtype=torch.bool))
    found = own.evaluation_metrics()
    assert found["accuracy"] == found["accuracy_top5"] == 0.0
    assert np.isnan(found["loss"])


def test_evaluation_uses_the_averaged_model_when_given(pictures: tuple[Tensor, Tensor], linear: nn.Module) -> None:
    own = module(linear)
    average = copy.deepcopy(linear)
    nn.init.normal_(average[1].weight)  # type: ignore[index,arg-type]
    own.__dict__["evaluated_model"] = average
    own.evaluate_batch(pictures, torch.ones(SIZE, dtype=torch.bool))
    expected = reference_metrics(average(pictures[0]), pictures[1])
    assert own.evaluation_metrics() == pytest.approx(expected, rel=1e-6)
    assert expected["loss"] != pytest.approx(reference_metrics(linear(pictures[0]), pictures[1])["loss"], rel=1e-2)


def smoothed(labels: Tensor, smoothing: float) -> Tensor:
    return F.one_hot(labels, CLASSES).float() * (1 - smoothing) + smoothing / CLASSES


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_against_their_formulas(smoothing: float, pictures: tuple[Tensor, Tensor], linear: nn.Module) -> None:
    logits, labels = linear(pictures[0]), pictures[1]
    targets = smoothed(labels, smoothing)
    cross = -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
    binary = -(targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits)).mean()
    for name, expected in (("cross_entropy", cross), ("binary_cross_entropy", binary)):
        settings = ModelConfig(loss=name, smoothing=smoothing)
        assert build_loss(settings, mixed=False)(logits, labels).item() == pytest.approx(expected.item(), rel=1e-5)
        assert build_loss(settings, mixed=True)(logits, targets).item() == pytest.approx(expected.item(), rel=1e-5)
        assert module(linear, smoothing=smoothing, loss=name).training_losses(pictures)["loss"].item() == pytest.approx(
            expected.item(), rel=1e-5
        )


def constant_pictures(count: int) -> Tensor:
    """Image i holds the value i + 1 everywhere, so what was mixed can be read off."""
    return torch.arange(1.0, count + 1)[:, None, None, None].expand(count, 3, 8, 8).clone()


def shares(images: Tensor, count: int) -> Iterator[tuple[int, int, float]]:
    """Yield (i, partner, share of partner) as the pixels of each mixed image tell them."""
    for i in range(count):
        partner = count - 1 - i
        mean = images[i].mean().item()
        yield i, partner, (mean - (i + 1)) / (partner - i)


@pytest.mark.parametrize("count", [6, 7])
@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_labels_are_mixed_as_the_pixels_are(count: int, mode: str, mixup: float, cutmix: float) -> None:
    settings = DataConfig(mixup=mixup, cutmix=cutmix, mix_mode=mode)
    mixing = build_mixup(settings, smoothing=0.1, classes=CLASSES)
    assert mixing is not None
    labels = torch.arange(count)
    seed_all(0, "step", 3)
    original = constant_pictures(count)
    images, targets = mix(mixing, original, labels)
    even = count - count % 2
    lone = smoothed(labels, 0.1)
    mixed_at_all = False
    for i, partner, share in shares(images, even):
        expected = (1 - share) * lone[i] + share * lone[partner]
        assert torch.allclose(targets[i], expected, atol=1e-5)
        mixed_at_all |= 0.01 < share < 0.99
    assert mixed_at_all
    # The odd one out is left as it is, and the caller's batch always.
    assert torch.equal(images[even:], constant_pictures(count)[even:])
    assert torch.allclose(targets[even:], lone[even:])
    assert torch.equal(original, constant_pictures(count))


def test_an_odd_image_draws_nothing() -> None:
    mixing = build_mixup(DataConfig(mixup=0.8, cutmix=1.0), smoothing=0.0, classes=CLASSES)
    assert mixing is not None
    found = []
    for count in (6, 7):
        seed_all(0, "step", 1)
        images, targets = mix(mixing, constant_pictures(7)[:count], torch.arange(count))
        found.append((images[:6], targets[:6], np.random.rand()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_one_image_alone_trains(pictures: tuple[Tensor, Tensor], linear: nn.Module) -> None:
    own = module(linear, mixup=0.8, smoothing=0.1)
    alone = (pictures[0][:1], pictures[1][:1])
    expected = -(smoothed(alone[1], 0.1) * linear(alone[0]).log_softmax(dim=1)).sum()
    assert own.training_losses(alone)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_step_draws_depend_on_the_seed_of_the_step_alone(pictures: tuple[Tensor, Tensor]) -> None:
    """Mixing, drop path and dropout of a step are equal whatever was drawn before: both arms see the same."""
    torch.manual_seed(0)
    settings = ModelConfig(
        name="vit_tiny_patch16_224", img_size=4, patch_size=2, embed_dim=16, depth=3, num_heads=2,
        drop_path_rate=0.5, drop_rate=0.2,
    )  # fmt: skip
    model = build_classifier(settings, outputs=CLASSES)
    own = module(model, mixup=0.8, cutmix=1.0)

    def loss(step: int, wasted: int) -> float:
        np.random.rand(wasted)
        torch.rand(wasted)
        seed_all(4, "step", step)
        return own.training_losses(pictures)["loss"].item()

    assert loss(1, 5) == loss(1, 77)
    assert loss(1, 5) != loss(2, 5)


FLAT = {"embed_dim": 24, "depth": 2, "num_heads": 2}
STAGED = {"embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vit_tiny_patch16_224", FLAT),
        ("beit_base_patch16_224", FLAT),
        ("xcit_nano_12_p16_224", FLAT),
        ("swin_tiny_patch4_window7_224", STAGED),
    ],
)
def test_no_dropout_in_evaluation(name: str, sizes: dict[str, object]) -> None:
    """Attention dropout is off in evaluation, with the fused kernel and without (once a fault of timm's BEiT)."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, img_size=32, num_classes=CLASSES, attn_drop_rate=0.5, **sizes)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for parameter in model.parameters():  # small layer scales would hide attention
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.train()
    assert (model(images) - model(images)).abs().max() > 1e-3
    model.eval()
    fused = model(images)
    assert torch.equal(fused, model(images))
    switched = [module for module in model.modules() if hasattr(module, "fused_attn")]
    assert switched
    for module in switched:
        module.fused_attn = False  # type: ignore[assignment]
    torch.testing.assert_close(model(images), fused, rtol=1e-5, atol=1e-5)


def test_parameters_that_timm_spares_from_decay() -> None:
    small = ModelConfig(name="vit_tiny_patch16_224", img_size=4, patch_size=2, embed_dim=16, depth=1, num_heads=2)
    vit = module(build_classifier(small, outputs=CLASSES))
    swin = module(build_classifier(ModelConfig(name="swin_tiny_patch4_window7_224"), outputs=CLASSES))
    assert {"model.pos_embed", "model.cls_token"} <= vit.no_decay()
    tables = {name for name, _ in swin.named_parameters() if name.endswith("relative_position_bias_table")}
    assert len(tables) == 12
    assert tables <= swin.no_decay()
