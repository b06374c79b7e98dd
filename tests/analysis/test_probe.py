"""The probe of small models over λ, against the functions it is made of, and the summaries that training logs."""

import json

import pytest
import timm
import torch
from torch import nn

from spectral_conditioning import Conditioning, condition
from spectral_conditioning.analysis.capture import capture_inputs
from spectral_conditioning.analysis.condition_number import condition_number
from spectral_conditioning.analysis.heads import bind_head
from spectral_conditioning.analysis.jacobian import SoftmaxJacobian
from spectral_conditioning.analysis.jacobian_summary import jacobian_summary
from spectral_conditioning.analysis.probe import ProbeSettings, affordable_tokens, probe
from spectral_conditioning.conditioning import find_attention, separate

IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def vit(**changes: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 5, **changes}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


def loss(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(IMAGE), torch.tensor([0]))


@pytest.fixture(scope="module")
def report():
    return probe(vit(), lambda model: model(IMAGE), lams=[0, 10], loss=loss, settings=ProbeSettings(blocks=True))


def test_layers_are_the_first_the_middle_and_the_last(report):
    for point in report.points:
        assert [layer.name for layer in point.layers] == ["blocks.0.attn", "blocks.2.attn", "blocks.3.attn"]
        assert len(point.spectra) == 12
    assert report.notes == []


def test_lambda_ten_is_well_conditioned_and_saturated(report):
    """The trap the probe exists for: κ(W) and κ(J) small, attention the identity, no gradient in W_Q and W_K."""
    plain, conditioned = report.points
    for before, after in zip(plain.layers, conditioned.layers, strict=True):
        assert after.heads[0].jacobian.kappa < before.heads[0].jacobian.kappa / 10
        assert after.saturation.saturated
        assert not before.saturation.saturated
        assert after.heads[0].norms["q"] < 1e-12 < before.heads[0].norms["q"]
        assert after.gradients["q"] < 1e-3 * before.gradients["q"]
        assert after.gradients["v"] > 1e-6
    assert conditioned.spectrum("blocks.2.attn", "k").kappa < 1.1
    assert conditioned.spectrum("blocks.2.attn", "k").kappa <= conditioned.weyl["blocks.2.attn"]["k"]
    assert conditioned.expected_logit == pytest.approx(400)
    assert (plain.saturated, conditioned.saturated) == (0, 4)
    assert plain.weyl == {}


def test_the_control_runs_the_same_weights_on_independent_tokens():
    """There λ = 10 gives the small κ(J) of the theory, and a Jacobian of W_Q that vanishes."""
    wide = vit(embed_dim=256, num_heads=2, depth=1)
    report = probe(wide, lambda model: model(IMAGE), lams=[0, 10], settings=ProbeSettings(max_tokens=8))
    plain, conditioned = (point.control for point in report.points)
    assert (plain.name, plain.independent, plain.gradients) == ("blocks.0.attn", True, {})
    assert conditioned.heads[0].jacobian.kappa < 10 < plain.heads[0].jacobian.kappa
    assert conditioned.heads[0].norms["q"] < 1e-20
    assert (plain.saturation.saturated, conditioned.saturation.saturated) == (False, True)
    assert conditioned.saturation.self_weight > 0.99


def test_a_head_is_what_the_functions_say(report):
    model = vit()
    condition(model, lam=10)
    attention = find_attention(model)[2]
    captured = capture_inputs(model, [attention], lambda: model(IMAGE))[attention.name]
    expected = condition_number(SoftmaxJacobian(bind_head(attention, captured, head=0)))
    found = report.points[1].layers[1].heads[0]
    assert found.jacobian.kappa == pytest.approx(expected.kappa, rel=1e-9)
    assert found.jacobian.kappa <= found.valid.gram * (1 + 1e-9)
    assert found.blocks["v"].sigma_max == pytest.approx(found.norms["v"], rel=1e-6)


def test_report_is_json(report):
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    first = values["points"][0]["layers"][0]["heads"][0]
    assert first["jacobian"]["rank"] == 17 * 16
    assert first["published"]["value"] > first["jacobian"]["kappa"]


def test_the_model_is_left_alone_and_progress_reaches_the_end():
    model = vit().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []
    probe(
        model,
        lambda model: model(IMAGE),
        lams=[0.5, 1],
        settings=ProbeSettings(layers=1, max_tokens=5),
        progress=lambda what, done, total: seen.append((done, total)),
    )
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert type(model.blocks[0].attn.qkv) is nn.Linear
    assert seen == [(done, 8) for done in range(8)]


def test_a_conditioned_model_as_it_is_and_at_another_lambda():
    model = vit()
    condition(model, lam=3.0)
    settings = ProbeSettings(layers=1, max_tokens=5)
    as_it_is = probe(model, lambda model: model(IMAGE), lams=None, settings=settings).points[0]
    again = probe(vit(), lambda model: model(IMAGE), lams=[3.0], settings=settings).points[0]
    assert as_it_is.lam is None
    assert as_it_is.conditioning == again.conditioning == Conditioning(lam=3.0).to_dict()
    assert as_it_is.layers[0].heads[0].jacobian.kappa == pytest.approx(again.layers[0].heads[0].jacobian.kappa)
    other = probe(model, lambda model: model(IMAGE), lams=[0], settings=settings).points[0]
    assert other.conditioning is None
    assert other.spectrum("blocks.0.attn", "q").kappa > as_it_is.spectrum("blocks.0.attn", "q").kappa


def test_attention_without_a_closed_form_is_reported():
    report = probe(vit(qk_norm=True), lambda model: model(IMAGE), lams=[0], settings=ProbeSettings(layers=1))
    head = report.points[0].layers[0].heads[0]
    assert head.jacobian is None
    assert "q_norm" in head.reason
    assert any("q_norm" in note for note in report.notes)


def test_every_head_of_channel_and_class_attention():
    model = timm.create_model("xcit_nano_12_p16_224", img_size=48, num_classes=3, depth=1)
    image = torch.randn(1, 3, 48, 48)
    report = probe(model, lambda model: model(image), lams=[0, 10], settings=ProbeSettings(layers=None, heads=None))
    for point in report.points:
        assert point.layers[0].family == "timm XCiT (XCA)"
        for layer in point.layers:
            assert [head.head for head in layer.heads] == [0, 1, 2, 3]
            assert all(head.jacobian.exact for head in layer.heads)
    channel, class_attention = report.points[1].layers[:2]
    assert channel.saturation.exempt
    assert channel.heads[0].published is None
    assert class_attention.heads[0].jacobian.size == 32


def test_tokens_that_the_gram_limit_allows():
    attention = find_attention(vit(embed_dim=768, num_heads=12, depth=1))[0]
    captured = capture_inputs(nn.Identity(), [], lambda: None)
    assert captured == {}

    def limit(tokens: int, width: int) -> int | None:
        from spectral_conditioning.analysis.capture import AttentionInput

        x = torch.empty(1, tokens, width)
        return affordable_tokens(attention, AttentionInput(12, x, x))

    assert limit(197, 768) == 203
    assert limit(4096, 64) is None


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.W_q, self.W_k, self.W_v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.W_q, self.W_k, self.W_v))
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_more_tokens_than_features_through_a_layout():
    torch.manual_seed(0)
    model = Sequence()
    x = nn.functional.layer_norm(torch.randn(2, 90, 16), (16,))
    report = probe(
        model, lambda model: model(x), lams=[0], layouts={Sequence: separate("W_q", "W_k", "W_v", heads="heads")}
    )
    found = report.points[0].layers[0].heads[0].jacobian
    # Layer-normed tokens span 15 of 16 features; the query bias breaks 8 of the 64 symmetries.
    assert (found.side, found.rank, found.exact) == ("columns", 3 * 15 * 8 - 56, True)


def test_summary_for_training():
    model = vit().train()
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    summary = jacobian_summary(model, lambda: model(IMAGE), layers=2, max_tokens=6)
    assert torch.equal(torch.random.get_rng_state(), state)
    attentions = find_attention(model)
    model.eval()
    captured = capture_inputs(model, attentions, lambda: model(IMAGE))
    kappas = [
        condition_number(SoftmaxJacobian(bind_head(attentions[i], captured[attentions[i].name], max_tokens=6))).kappa
        for i in (0, 3)
    ]
    assert summary["kappa_jacobian"] == pytest.approx(sum(kappas) / 2)
    assert summary["kappa_jacobian_bounds"] == 0
    assert 0.9 < summary["attention_entropy"] <= 1
    assert set(summary) == {
        "kappa_jacobian", "kappa_jacobian_median", "kappa_jacobian_bounds",
        "norm_jacobian/q", "norm_jacobian/k", "norm_jacobian/v",
        "attention_entropy", "attention_self_weight", "attention_sensitivity",
    }  # fmt: skip


def test_summary_is_empty_where_nothing_has_a_closed_form():
    model = vit(qk_norm=True)
    assert jacobian_summary(model, lambda: model(IMAGE)) == {}
