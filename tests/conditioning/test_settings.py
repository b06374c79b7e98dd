"""Conditioning validates itself, all at once, and goes through dictionaries."""

from __future__ import annotations

import math

import pytest
from torch import nn

from spectral_conditioning import Conditioning, ConditioningError, condition


def test_defaults_are_the_papers() -> None:
    settings = Conditioning()
    assert (settings.correction, settings.lam, settings.placement) == ("identity", 10.0, "full")
    assert settings.targets == ("q", "k", "v")
    assert not settings.is_baseline
    assert Conditioning(lam=0).is_baseline


@pytest.mark.parametrize("correction", ["identity", "polar", "svd", "scaled_identity", "orthogonal"])
def test_lam_left_out_is_the_one_of_the_configuration_files(correction: str) -> None:
    from omegaconf import OmegaConf

    from spectral_conditioning.training.compose import config_directory

    file = OmegaConf.load(config_directory() / "conditioning" / f"{correction}.yaml")
    settings = Conditioning(correction=correction)
    assert settings.lam == file.lam
    assert settings.to_dict()["lam"] == file.lam
    assert Conditioning.from_dict(settings.to_dict()) == settings
    assert Conditioning(correction=correction, lam=3).lam == 3.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lam": math.nan}, r"lam=nan is not finite"),
        ({"lam": math.inf}, r"lam=inf is not finite"),
        ({"lam": -1.0}, r"lam=-1.0 is not finite and ≥ 0"),
        ({"lam": "10"}, r"lam='10' is not a number"),
        ({"lam": True}, r"lam=True is not a number"),
        ({"correction": "polr"}, r"'polr' is not one of identity, polar.*closest 'polar'"),
        ({"placement": "stacked"}, r"placement='stacked' is not one of full, per_head, fused"),
        ({"targets": ()}, r"targets=\[\]"),
        ({"targets": ("q", "q")}, r"name each of q, k, v at most once"),
        ({"targets": ("q", "o")}, r"targets=\['q', 'o'\]"),
        ({"refresh_every": -1, "correction": "polar", "lam": 1.0}, r"refresh_every=-1"),
        ({"refresh_every": 5}, r"refresh_every=5 has no effect on 'identity'"),
        ({"correction": "polar", "relative": True}, r"relative=True has no meaning for 'polar'"),
        ({"decay_toward": "origin"}, r"decay_toward='origin' is not one of correction, zero"),
        ({"preserve": "weights"}, r"closest 'weight'"),
        ({"include": (3,)}, r"include=\[3\] must hold shell patterns"),
        ({"seed": 1.5}, r"seed=1.5 is not an integer"),
        ({"relative": "yes"}, r"relative='yes' is not true or false"),
    ],
)
def test_refusals_name_setting_value_and_choices(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConditioningError, match=message):
        Conditioning(**values)  # type: ignore[arg-type]


def test_all_problems_in_one_message() -> None:
    with pytest.raises(ConditioningError, match=r"3 problems") as caught:
        Conditioning(lam=math.nan, correction="lambda", targets=("x",))
    assert all(word in str(caught.value) for word in ("lam=nan", "correction='lambda'", "targets=['x']"))


def test_round_trip_and_order() -> None:
    settings = Conditioning(correction="polar", lam=1, targets=("v", "q"), refresh_every=3, include=["a.*"])  # type: ignore
    assert settings.targets == ("q", "v")
    assert settings.to_dict()["include"] == ["a.*"]
    assert Conditioning.from_dict(settings.to_dict()) == settings
    assert hash(settings) == hash(Conditioning.from_dict(settings.to_dict()))
    assert Conditioning(targets="k").targets == ("k",)  # type: ignore[arg-type]


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConditioningError, match=r"unknown setting 'lamda'; closest 'lam'"):
        Conditioning.from_dict({"lamda": 1})


def test_settings_as_keywords_or_object() -> None:
    settings = Conditioning(correction="polar", lam=1.0)
    assert condition(nn.MultiheadAttention(8, 2), settings, targets=("q",)).settings == Conditioning(
        correction="polar", lam=1.0, targets=("q",)
    )
    with pytest.raises(ConditioningError, match="unknown setting 'lamb'; closest 'lam'"):
        condition(nn.MultiheadAttention(8, 2), lamb=1.0)
    with pytest.raises(ConditioningError, match="settings is a dict"):
        condition(nn.MultiheadAttention(8, 2), {"lam": 1.0})  # type: ignore[arg-type]
