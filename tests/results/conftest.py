"""Synthetic run folders for the tests of results/: records whose every number is chosen by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.results import lambda_curve, probe_figures, spectra_figures, sweep_figure, training_curves

CONFIG = {"optim": {"lr": 0.001}, "task": {"name": "imagenet", "model": {"name": "vit"}}, "budget": {"steps": 400}}


def settings(correction: str = "identity", **changes: Any) -> dict[str, Any]:
    """Conditioning settings as `Conditioning.to_dict()` gives them."""
    return {
        "correction": correction, "lam": 10.0, "relative": False, "placement": "full", "targets": ["q", "k", "v"],
        "refresh_every": 0, "decay_toward": "correction", "preserve": "weight", "include": [], "exclude": [], "seed": 0,
        **changes,
    }  # fmt: skip


def record(
    value: float | None,
    *,
    seed: int = 0,
    lam: float = 0.0,
    conditioning: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A complete record of imagenet/small; `changes` replaces keys, dotted ones (`hashes__order`) inside a key."""
    if lam and conditioning is None:
        conditioning = settings(lam=lam)
    if conditioning:
        lam = float(conditioning["lam"])
        name = (
            f"{conditioning['correction']} λ={lam:g} ({conditioning['placement']}, {''.join(conditioning['targets'])})"
        )
    else:
        name = "baseline"
    built: dict[str, Any] = {
        "schema": 1, "status": "finished", "experiment": "imagenet/small", "task": "imagenet", "arm": name,
        "arm_id": f"{conditioning['correction']}-{lam:g}" if conditioning else "baseline",
        "seed": seed, "conditioning": conditioning, "lam": lam, "projections": 18 if conditioning else 0,
        "steps": 400, "samples_seen": 51200, "tokens_seen": None, "metrics": {"val/accuracy": value, "val/loss": 0.5},
        "primary": {"name": "val/accuracy", "mode": "max", "value": value, "step": 400, "weights": "raw", "rule": "last"},
        "chance": 0.1,
        "hashes": {"initial_weights": f"w{seed}", "order": f"o{seed}", "data": "d", "pair": "p"},
        "saturation": {"layers": [], "saturated": 0, "total": 6}, "diverged_at": None, "skipped_steps": 0,
        "scale": {"parameters": 300_000, "train_samples": 1297, "val_samples": 500}, "config": CONFIG,
        "versions": {"torch": "2.14.1"}, "code": {"sources": "s", "commit": "abc", "dirty": False}, "machine": {"name": "laptop"},
        "seconds": {"train": 30.0, "total": 35.0},
    }  # fmt: skip
    for key, changed in changes.items():
        outer, _, inner = key.partition("__")
        if inner:
            built[outer] = {**built[outer], inner: changed}
        else:
            built[outer] = changed
    return built


def write_run(root: Path, content: Mapping[str, Any], *, log: Sequence[Mapping[str, Any]] = (), name: str = "") -> Path:
    """Write a run folder as `spectral train` lays it out and return it."""
    folder = root / content["experiment"] / content["arm_id"] / (name or f"seed{content['seed']}")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def write(runs: Path) -> Callable[..., Path]:
    """write(value, seed=…, lam=…, …) puts one run folder below `runs`."""

    def writer(value: float | None, *, log: Sequence[Mapping[str, Any]] = (), name: str = "", **changes: Any) -> Path:
        return write_run(runs, record(value, **changes), log=log, name=name)

    return writer


@pytest.fixture
def make_record() -> Callable[..., dict[str, Any]]:
    return record


@pytest.fixture
def make_settings() -> Callable[..., dict[str, Any]]:
    return settings


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that the modules of figures would have saved."""
    figures: list[Any] = []

    def keep(figure: Any, path: Path) -> Path:
        figures.append(figure)
        return path

    for module in (lambda_curve, probe_figures, spectra_figures, sweep_figure, training_curves):
        monkeypatch.setattr(module, "save", keep)
    return figures
