"""Where the images of a split lie: one interface, and its two plainest forms, a folder of classes and a zip of classes.

Nothing is unpacked or copied. Sources hold flat arrays rather than a Python object per image (a list of a million strings grows
in every loader process, as reference counts touch its memory) and open archives once per process, so they serve workers.
"""

from __future__ import annotations

import abc
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from timm.data.readers import get_img_extensions

from spectral_conditioning.errors import DataError

LAYOUT = "<split>/<class>/<image>, e.g. train/daisy/1.jpg and val/daisy/2.jpg"
# (name relative to the data set, size in bytes)
Entry = tuple[str, int]


class ImageSource(abc.ABC):
    """The encoded images of one split and their labels, by position.

    classes: names, in the order of the labels. labels: (n,) positions in `classes`. origin: path or name, for messages.
    """

    def __init__(
        self, *, origin: str, split: str, classes: Sequence[str], labels: Sequence[int] | NDArray[np.int64]
    ) -> None:
        self.origin, self.split, self.classes = origin, split, tuple(classes)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return what a message calls image `index`; its class is part of it."""

    @abc.abstractmethod
    def read(self, index: int) -> bytes:
        """Return the encoded image. Raises DataError that names it when it cannot be read."""

    @abc.abstractmethod
    def listing(self) -> Iterable[str]:
        """Yield lines that change when an image, its size or its label changes, in an order of their own."""


def fingerprint(sources: Iterable[ImageSource]) -> str:
    """Hash the listings of all splits: names, sizes and labels, not the pixels, so that it stays cheap."""
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        for line in [f"{source.split}|{'|'.join(source.classes)}", *sorted(source.listing())]:
            digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def is_image(name: str) -> bool:
    """Say whether a file counts as an image: an extension that timm knows, not hidden."""
    base = name.rsplit("/", 1)[-1]
    return not base.startswith(".") and os.path.splitext(base)[1].lower() in get_img_extensions(as_set=True)


class FileSource(ImageSource):
    """Files that lie in one folder per class."""

    def __init__(self, *, origin: str, split: str, folders: Mapping[str, Sequence[Entry]]) -> None:
        classes = sorted(folders)
        empty = [name for name in classes if not folders[name]]
        if empty:
            raise DataError(
                f"{origin}: class folder {split}/{empty[0]} holds no image; add images or remove the folder"
            )
        if len(classes) < 2:
            raise DataError(
                f"{origin}: split {split!r} holds {len(classes)} class folders{_quoted(classes)}; "
                f"at least 2 are needed, as {LAYOUT}"
            )
        counts = [len(folders[name]) for name in classes]
        super().__init__(origin=origin, split=split, classes=classes, labels=np.repeat(np.arange(len(classes)), counts))
        entries = [entry for name in classes for entry in sorted(folders[name])]
        self._names = np.array([name.encode() for name, _ in entries])
        self._sizes = np.array([size for _, size in entries], dtype=np.int64)

    def name(self, index: int) -> str:
        return bytes(self._names[index]).decode()

    def listing(self) -> Iterable[str]:
        return (f"{self.name(i)}|{self._sizes[i]}" for i in range(len(self)))


def _quoted(names: Sequence[str]) -> str:
    return f" ({', '.join(repr(name) for name in names[:8])}{', …' if len(names) > 8 else ''})" if names else ""


def missing_split(origin: str, split: str, found: Sequence[str], *, part: str) -> DataError:
    """Say that a split is not there, what is, and which setting names it."""
    return DataError(
        f"{origin} holds no {split!r} folder; found{_quoted(sorted(found)) or ' nothing'}. Expected {LAYOUT}; "
        f"data.{part}_split names the folder"
    )


class FolderSource(FileSource):
    """A folder of classes on disk: <path>/<split>/<class>/<image>."""

    def __init__(self, path: Path, *, split: str, part: str) -> None:
        if not (path / split).is_dir():
            raise missing_split(str(path), split, [item.name for item in path.iterdir() if item.is_dir()], part=part)
        folders = {
            item.name: [
                (f"{split}/{item.name}/{image.name}", image.stat().st_size)
                for image in os.scandir(item.path)
                if is_image(image.name) and image.is_file()
            ]
            for item in os.scandir(path / split)
            if item.is_dir() and not item.name.startswith(".")
        }
        self.path = path
        super().__init__(origin=str(path), split=split, folders=folders)

    def read(self, index: int) -> bytes:
        try:
            return (self.path / self.name(index)).read_bytes()
        except OSError as error:
            raise DataError(f"{self.path / self.name(index)} cannot be read: {error.strerror}") from error


class ZipSource(FileSource):
    """A zip of classes, read without unpacking: <split>/<class>/<image> inside."""

    def __init__(self, path: Path, *, split: str, part: str) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        self._process = -1
        folders: dict[str, list[Entry]] = {}
        found = set()
        for item in self._open().infolist():
            parts = item.filename.split("/")
            found.add(parts[0])
            if len(parts) < 3 or parts[0] != split:
                continue
            entries = folders.setdefault(parts[1], [])
            if len(parts) == 3 and is_image(item.filename):
                entries.append((item.filename, item.file_size))
        if split not in found:
            raise missing_split(str(path), split, sorted(found), part=part)
        super().__init__(origin=str(path), split=split, folders=folders)

    def _open(self) -> zipfile.ZipFile:
        # A file position shared with the parent process would mix up the reads of several workers.
        if self._archive is None or self._process != os.getpid():
            try:
                self._archive, self._process = zipfile.ZipFile(self.path), os.getpid()
            except (OSError, zipfile.BadZipFile) as error:
                raise DataError(f"{self.path} cannot be opened as a zip: {error}") from error
        return self._archive

    def read(self, index: int) -> bytes:
        name = self.name(index)
        try:
            return self._open().read(name)
        except (
            OSError,
            KeyError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise DataError(
                f"{name} in {self.path} cannot be read: {error}; the zip is damaged, copy it again"
            ) from error

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_archive": None}


def open_images(path: str, *, split: str, part: str) -> FileSource:
    """Open a folder or a zip of classes. `part` ("train" or "val") says which setting named the split."""
    where = Path(path).expanduser()
    if where.is_dir():
        return FolderSource(where, split=split, part=part)
    if where.is_file():
        if not zipfile.is_zipfile(where):
            raise DataError(f"data.path {where} is neither a folder nor a zip; expected {LAYOUT} in one of the two")
        return ZipSource(where, split=split, part=part)
    raise DataError(f"data.path {where} does not exist; expected a folder or a zip with {LAYOUT}")


def split_files(path: str, *, split: str, part: str, suffix: str) -> list[Path]:
    """Return the files below `path` that end in `suffix` and have the word `split` in their relative name, sorted.

    `train` is a word of train-00000-of-00294.parquet, data/train/0.parquet and imagenet1k-train-0001.tar. Raises DataError.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise DataError(f"data.path {root} is not a folder; expected one with {suffix} files for each split")
    files = sorted(root.rglob(f"*{suffix}"))
    word = re.compile(rf"(?<![a-zA-Z]){re.escape(split)}(?![a-zA-Z])")
    chosen = [file for file in files if word.search(file.relative_to(root).as_posix())]
    if not chosen:
        names = ", ".join(file.relative_to(root).as_posix() for file in files[:5]) or f"no {suffix} file at all"
        raise DataError(
            f"{root} holds no {suffix} file named after {split!r}; found {names}. data.{part}_split gives the word"
        )
    return chosen
