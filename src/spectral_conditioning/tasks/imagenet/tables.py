"""Images in tables: local parquet files and data sets of the Hugging Face hub, both through `datasets`.

`datasets` keeps an Arrow file of its own in its cache folder (HF_HOME), which is memory-mapped and read by position, so the
first opening needs as much free disk as the data set is large.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]
from datasets.exceptions import DatasetsError
from numpy.typing import NDArray

from spectral_conditioning.errors import DataError, closest
from spectral_conditioning.tasks.imagenet.sources import ImageSource, split_files

FAILURES = (DatasetsError, OSError, ValueError, TypeError, KeyError)


class TableSource(ImageSource):
    """Rows of a table with an image column (encoded bytes, or a path) and an integer label column."""

    def __init__(self, rows: datasets.Dataset, *, origin: str, split: str, image: str, label: str) -> None:
        features = rows.features
        for column in (image, label):
            if column not in features:
                near = closest(column, features)
                raise DataError(
                    f"{origin} has no column {column!r}; its columns are {', '.join(features)}"
                    + (f"; closest {near!r}" if near else "")
                    + ". data.image_column and data.label_column name them"
                )
        try:
            self.rows = rows.select_columns([image, label]).cast_column(image, datasets.Image(decode=False))
        except FAILURES as error:
            raise DataError(
                f"{origin}: columns {image!r} ({features[image]}) and {label!r} ({features[label]}) "
                f"are no images and class numbers: {error}"
            ) from error
        self.image = image
        labels: NDArray[np.int64] = np.asarray(self.rows.data.column(label).to_numpy())
        if not np.issubdtype(labels.dtype, np.integer) or (len(labels) and labels.min() < 0):
            raise DataError(
                f"{origin}: column {label!r} of split {split!r} must hold class numbers from 0 in every row; "
                f"found {'negative ones' if np.issubdtype(labels.dtype, np.integer) else labels.dtype}"
            )
        names = getattr(features[label], "names", None)
        classes = names if names is not None else [str(k) for k in range(int(labels.max(initial=-1)) + 1)]
        super().__init__(origin=origin, split=split, classes=classes, labels=labels)
        sizes = pc.binary_length(pc.struct_field(self.rows.data.column(image), "bytes"))
        self._sizes = pc.fill_null(sizes, -1).to_numpy()

    def name(self, index: int) -> str:
        return f"in row {index} of split {self.split!r} (class {self.classes[self.labels[index]]!r})"

    def read(self, index: int) -> bytes:
        cell: dict[str, Any] | None = self.rows[index][self.image]
        if cell and cell["bytes"]:
            return bytes(cell["bytes"])
        try:
            return Path((cell or {})["path"]).read_bytes()
        except (OSError, KeyError, TypeError) as error:
            raise DataError(f"the image {self.name(index)} of {self.origin} is empty") from error

    def listing(self) -> Iterable[str]:
        return (f"{i}|{self._sizes[i]}|{self.labels[i]}" for i in range(len(self)))


def open_parquet(path: str, *, split: str, part: str, image: str, label: str) -> TableSource:
    """Open the local parquet files of one split."""
    files = [str(file) for file in split_files(path, split=split, part=part, suffix=".parquet")]
    try:
        rows = datasets.load_dataset("parquet", data_files={"rows": files}, split="rows")
    except FAILURES as error:
        cause = error.__cause__ or error
        raise DataError(
            f"{path}: the {len(files)} parquet files of {split!r} (first {files[0]}) cannot be read: {cause}"
        ) from error
    return TableSource(rows, origin=path, split=split, image=image, label=label)


def open_hub(name: str, *, split: str, part: str, image: str, label: str) -> TableSource:
    """Open one split of a data set on the hub, from the cache when there is no network."""
    try:
        rows = datasets.load_dataset(name, split=split)
    except FAILURES as error:
        raise DataError(
            f"data set {name!r}, split {split!r} (data.path and data.{part}_split), cannot be had from the hub or its cache: "
            f"{' '.join(str(error).split())}. A gated data set needs `hf auth login` first; local files need data.source=parquet"
        ) from error
    return TableSource(rows, origin=name, split=split, image=image, label=label)
