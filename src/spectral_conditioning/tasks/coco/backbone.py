"""XCiT as a backbone of four levels (El-Nouby et al. 2021, section 4.4 and the paper's detection code)."""

# B images, C channels, H, W height and width.

from __future__ import annotations

import timm
from mmdet.registry import MODELS
from mmengine.model import BaseModule
from timm.models.xcit import Xcit
from torch import Tensor, nn

from spectral_conditioning.errors import ConfigError, closest
from spectral_conditioning.tasks.coco.config import ModelConfig

ARCHITECTURE = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "eta", "drop_path_rate")


def build_body(model: ModelConfig) -> Xcit:
    """Return timm's XCiT with random weights and without a classifier.

    Raises ConfigError for a name that timm does not know or arguments that do not fit together.
    """
    if model.name not in timm.list_models("xcit_*"):
        near = closest(model.name, timm.list_models("xcit_*"))
        raise ConfigError(
            f"task.model.name is {model.name!r}, which timm does not know" + (f"; closest {near!r}" if near else "")
        )
    given = {key: getattr(model, key) for key in ARCHITECTURE if getattr(model, key) is not None}
    try:
        body: Xcit = timm.create_model(model.name, pretrained=False, num_classes=0, **given)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"timm cannot build {model.name!r} with {given}: {error}") from error
    if model.taps[-1] >= len(body.blocks):
        raise ConfigError(
            f"task.model.taps ends at block {model.taps[-1]} but {model.name!r} has {len(body.blocks)} blocks, from 0"
        )
    return body


def pyramid(width: int, *, patch_size: int) -> nn.ModuleList:
    """Return what brings features of stride `patch_size` to strides 4, 8, 16 and 32."""

    def double() -> nn.Module:
        return nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)

    levels: dict[int, list[nn.Module]] = {
        16: [
            nn.Sequential(double(), nn.BatchNorm2d(width), nn.GELU(), double()),
            double(),
            nn.Identity(),
            nn.MaxPool2d(2),
        ],
        8: [double(), nn.Identity(), nn.MaxPool2d(2), nn.MaxPool2d(4)],
    }
    return nn.ModuleList(levels[patch_size])


@MODELS.register_module()
class XcitPyramid(BaseModule):  # type: ignore[misc]
    """Features of an XCiT after four blocks, at strides 4, 8, 16 and 32.

    body: a timm XCiT, of which class token, class attention, final norm and blocks past the last tap are dropped: they would be
    parameters without a gradient, which distributed training refuses. Neither blocks nor levels are normalised at the end.
    """

    def __init__(self, body: Xcit, taps: tuple[int, ...]) -> None:
        super().__init__()
        patch_size = body.feature_info[0]["reduction"]
        body.prune_intermediate_layers(list(taps), prune_norm=True, prune_head=True)
        self.body, self.taps = body, list(taps)
        self.pyramid = pyramid(body.embed_dim, patch_size=patch_size)

    def init_weights(self) -> None:
        """Leave the weights as they were built or loaded; mmengine calls this on every part of a detector."""

    def forward(self, images_BCHW: Tensor) -> tuple[Tensor, ...]:
        features: list[Tensor] = self.body.forward_intermediates(
            images_BCHW, indices=self.taps, intermediates_only=True
        )
        return tuple(level(feature) for level, feature in zip(self.pyramid, features, strict=True))


def synchronise_batch_norm(backbone: nn.Module) -> nn.Module:
    """Return the backbone with batch statistics over all ranks; parameters stay the same objects under the same names."""
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(backbone)  # type: ignore[no-untyped-call]
    return converted
