"""Synthetic run folders for the tests of results/: records whose every number is chosen by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spectral_conditioning.results import lambda_curve, probe_figures, spectra_figures, sweep_figure, training_curves
from spectral_conditioning.results.compare import compare
from spectral_conditioning.results.summary import Table

Write = Callable[..., Path]

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


def full_log(final: float, lam: float) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in (100, 200, 400):
        lines.append({"step": step, "split": "train", "loss": 2.0 - step / 300})
        lines.append({"step": step, "split": "val", "accuracy": final * step / 400})
        spectra = {f"sigma_min/{role}": 0.01 + lam for role in "qkv"} | {
            f"kappa_w/{role}": 100 / (1 + lam) for role in "qkv"
        }
        lines.append({"step": step, "split": "spectra", **spectra, "kappa_j": 1e4})
    return lines


@pytest.fixture
def few(write: Write, runs: Path, make_settings: Callable[..., dict[str, Any]]) -> Table:
    """Baseline, identity at two λ (one seed at chance, one diverged), and polar, whose λ has another unit."""
    for seed, base in enumerate((0.90, 0.92, 0.91)):
        write(base, seed=seed, log=full_log(base, 0))
        write(base + 0.01, seed=seed, lam=1.0, log=full_log(base + 0.01, 1))
        write(base + 0.02, seed=seed, conditioning=make_settings("polar", lam=1.0), log=full_log(base, 1))
    write(0.08, seed=0, lam=10.0, log=full_log(0.08, 10))
    write(0.50, seed=1, lam=10.0, log=full_log(0.50, 10))
    write(None, seed=2, lam=10.0, status="diverged", diverged_at=200, log=full_log(0.3, 10))
    return compare([runs]).tables[0]


@pytest.fixture
def many(write: Write, runs: Path, make_settings: Callable[..., dict[str, Any]]) -> Table:
    """Twelve series: more than one figure can hold."""
    write(0.9, log=full_log(0.9, 0))
    for lam in (0.1, 1.0, 10.0):
        for placement, targets in [(p, "qkv") for p in ("full", "per_head", "fused")] + [
            ("full", t) for t in ("q", "k", "v", "qk", "qv")
        ]:
            settings = make_settings(lam=lam, placement=placement, targets=list(targets))
            name = f"{placement}-{targets}-{lam}"
            write(0.9 + lam / 1000, conditioning=settings, name=name, log=full_log(0.9, lam))
    for correction in ("polar", "svd", "scaled_identity", "orthogonal"):
        write(0.91, conditioning=make_settings(correction, lam=1.0), log=full_log(0.91, 1))
    return compare([runs]).tables[0]
