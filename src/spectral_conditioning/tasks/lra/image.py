"""Image: pictures read as a sequence of grey levels, row by row. Every value is data, black (0) included: nothing is padded.

The benchmark takes CIFAR-10 in grey, 1,024 tokens of 256 levels, 45,000 / 5,000 / 10,000 pictures.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectral_conditioning.errors import DataError
from spectral_conditioning.randomness import derive
from spectral_conditioning.tasks.lra.preparation import Recipe
from spectral_conditioning.tasks.lra.token_store import Ragged, sha256

# File → MD5 as published with the data set.
CIFAR_FILES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def pixels(images: NDArray[np.uint8], labels: NDArray[np.integer[Any]]) -> Ragged:
    """Flatten pictures (n, height, width) to sequences."""
    flat = images.reshape(len(images), -1)
    lengths = np.full(len(images), flat.shape[1], dtype=np.int64)
    return Ragged(np.ascontiguousarray(flat).reshape(-1), lengths, labels.astype(np.uint8))


def grey(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return ⌊255.5 (0.2989 r + 0.587 g + 0.114 b)⌋ with r, g, b in [0, 1], the benchmark's conversion; rgb: (..., 3)."""
    scaled = rgb.astype(np.float32) / np.float32(255)
    weights = np.array([0.2989, 0.587, 0.114], dtype=np.float32)
    return np.asarray((scaled @ weights * np.float32(255.5)).astype(np.uint8))


class _ArraysOnly(pickle.Unpickler):
    """Reads the containers and arrays of a CIFAR batch; any other class in the file is refused, not run."""

    allowed = frozenset({"_reconstruct", "ndarray", "dtype", "scalar", "encode", "_frombuffer"})

    def find_class(self, module: str, name: str) -> Any:
        if name in self.allowed and module.split(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it wants to load {module}.{name}")


def read_cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pictures (n, 32, 32, 3) and labels of one python batch of CIFAR-10."""
    try:
        entry = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        data, labels = np.asarray(entry["data"], dtype=np.uint8), np.asarray(entry["labels"], dtype=np.int64)
        images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        if len(images) != len(labels) or len(labels) == 0 or not 0 <= labels.min() <= labels.max() <= 9:
            raise ValueError(f"{len(images)} pictures and {len(labels)} labels")
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError, AttributeError) as error:
        raise DataError(f"{path} is not a python batch of CIFAR-10: {error}") from error
    return images, labels


def _cifar_job(path: Path) -> Ragged:
    images, labels = read_cifar_batch(path)
    return pixels(grey(images), labels)


def cifar(folder: Path, *, partial: bool = False) -> Recipe:
    """Return how to convert `cifar-10-batches-py`; the last tenth of the training batches validates.

    The benchmark cuts off a tenth of TFDS's own order, which the python batches do not have (inferred: any fixed tenth serves).
    partial: take files whose MD5 is not the published one.
    """
    paths = [folder / name for name in CIFAR_FILES]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)} (folder cifar-10-batches-py of cifar-10-python.tar.gz)")
    if not partial:
        bad = [
            p.name
            for p in paths
            if hashlib.md5(p.read_bytes(), usedforsecurity=False).hexdigest() != CIFAR_FILES[p.name]
        ]
        if bad:
            raise DataError(
                f"in {folder}, {', '.join(bad)} differ from the published MD5; unpack again, or pass --partial"
            )

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        *batches, test = parts
        train = Ragged.joined(batches)
        edge = len(train.labels) * 9 // 10
        return {
            "train": train.take(np.arange(edge)),
            "val": train.take(np.arange(edge, len(train.labels))),
            "test": test,
        }

    return Recipe(
        dataset="image",
        options={"origin": "cifar-10", "files": {path.name: sha256(path) for path in paths}},
        jobs=paths,
        make=_cifar_job,
        assemble=assemble,
        classes=10,
        symbols=256,
        pads=False,
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes in the IDX format of MNIST, gzipped or not."""
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115
    try:
        with opened as file:
            zero, kind, ranks = struct.unpack(">HBB", file.read(4))
            shape = struct.unpack(f">{ranks}I", file.read(4 * ranks))
            data = np.frombuffer(file.read(), dtype=np.uint8)
        if zero != 0 or kind != 8:
            raise ValueError("wrong magic number")
        return data.reshape(shape)
    except (ValueError, OSError, EOFError, struct.error) as error:
        raise DataError(f"{path} is not an IDX file of unsigned bytes: {error}") from error


def _idx_paths(folder: Path) -> dict[str, tuple[Path, Path]] | None:
    found = {}
    for split, names in IDX_FILES.items():
        paths = [next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None) for name in names]
        if paths[0] is None or paths[1] is None:
            return None
        found[split] = (paths[0], paths[1])
    return found


def _idx_job(job: tuple[Path, Path]) -> Ragged:
    images, labels = (read_idx(path) for path in job)
    if images.ndim != 3 or len(images) != len(labels):
        raise DataError(f"{job[0]} holds an array {images.shape}, {job[1]} {labels.shape}; they do not belong together")
    return pixels(images, labels)


def idx_images(paths: dict[str, tuple[Path, Path]]) -> Recipe:
    """Return how to convert Fashion-MNIST or MNIST as IDX files; the last tenth of train validates. A stand-in."""

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        train, test = parts
        edge = len(train.labels) * 9 // 10
        rest = np.arange(edge, len(train.labels))
        return {"train": train.take(np.arange(edge)), "val": train.take(rest), "test": test}

    return Recipe(
        dataset="image",
        options={"origin": "idx", "files": {path.name: sha256(path) for pair in paths.values() for path in pair}},
        jobs=list(paths.values()),
        make=_idx_job,
        assemble=assemble,
        classes=10,
        symbols=256,
        pads=False,
    )


def _digits_job(_: None) -> Ragged:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return pixels(digits.images.astype(np.uint8), digits.target)


def digits() -> Recipe:
    """Return how to use scikit-learn's digits: 1,797 pictures of 8×8 pixels and 17 levels, 1,197 / 300 / 300. A stand-in."""

    def assemble(parts: Iterator[Ragged]) -> dict[str, Ragged]:
        (everything,) = parts
        source = np.random.PCG64(derive(0, "lra digits", 0))
        order = np.argsort(source.random_raw(len(everything.labels)), kind="stable")
        edges = (0, len(order) - 600, len(order) - 300, len(order))
        return {s: everything.take(order[edges[i] : edges[i + 1]]) for i, s in enumerate(("train", "val", "test"))}

    return Recipe(
        dataset="image",
        options={"origin": "digits"},
        jobs=[None],
        make=_digits_job,
        assemble=assemble,
        classes=10,
        symbols=17,
        pads=False,
    )


def recipe(source: Path | None, *, partial: bool = False) -> Recipe:
    """Choose by what lies in `source`: CIFAR-10's python batches, IDX files, or nothing: scikit-learn's digits."""
    if source is None:
        return digits()
    for folder in (source, source / "cifar-10-batches-py"):
        if (folder / "test_batch").is_file():
            return cifar(folder, partial=partial)
    paths = _idx_paths(source)
    if paths is not None:
        return idx_images(paths)
    raise DataError(
        f"{source} holds neither data_batch_1 … test_batch (CIFAR-10, python version) nor train-images-idx3-ubyte[.gz] and its "
        f"companions (MNIST, Fashion-MNIST); without --input scikit-learn's digits are used"
    )
