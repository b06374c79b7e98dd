"""Images in tar shards in the WebDataset convention: <key>.jpg next to <key>.cls, read by position without unpacking."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.imagenet.sources import ImageSource, is_image, split_files

# (key, offset, size) of an image inside its tar
Member = tuple[str, int, int]


def index_shard(path: Path) -> tuple[list[Member], list[int]]:
    """Return where each image of a tar lies and its label. Raises DataError for a damaged tar or an image without a label."""
    images: dict[str, Member] = {}
    labels: dict[str, int] = {}
    try:
        # "r:" refuses compressed tars, in which nothing can be read by position.
        with tarfile.open(path, mode="r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                key = f"{folder}/{base.partition('.')[0]}"
                if is_image(member.name):
                    images[key] = (member.name, member.offset_data, member.size)
                elif member.name.endswith(".cls"):
                    content = tar.extractfile(member)
                    labels[key] = int(content.read()) if content else -1
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"shard {path} cannot be read as an uncompressed tar: {error}; copy it again") from error
    except ValueError as error:
        raise DataError(f"shard {path}: {member.name} must hold a class number: {error}") from error
    lost = [name for key, (name, _, _) in images.items() if labels.get(key, -1) < 0]
    if lost:
        raise DataError(f"shard {path}: image {lost[0]} has no .cls file with a class number ({len(lost)} such images)")
    return list(images.values()), [labels[key] for key in images]


class ShardSource(ImageSource):
    """The images of several tars, in the order of the tars. Opening it reads every tar's headers once."""

    def __init__(self, path: str, *, split: str, part: str) -> None:
        self.root = Path(path).expanduser()
        self.shards = split_files(path, split=split, part=part, suffix=".tar")
        members: list[Member] = []
        labels: list[int] = []
        owners: list[int] = []
        for number, shard in enumerate(self.shards):
            found, found_labels = index_shard(shard)
            members += found
            labels += found_labels
            owners += [number] * len(found)
        if not members:
            raise DataError(f"{path}: the {len(self.shards)} tars of {split!r} hold no images")
        super().__init__(origin=path, split=split, classes=[str(k) for k in range(max(labels) + 1)], labels=labels)
        self._owners = np.array(owners, dtype=np.int32)
        self._names = np.array([name.encode() for name, _, _ in members])
        self._places = np.array([(offset, size) for _, offset, size in members], dtype=np.int64)

    def _shard(self, index: int) -> Path:
        return self.shards[int(self._owners[index])]

    def name(self, index: int) -> str:
        shard = self._shard(index).relative_to(self.root).as_posix()
        return f"{bytes(self._names[index]).decode()} of {shard} (class {self.labels[index]})"

    def read(self, index: int) -> bytes:
        offset, size = (int(value) for value in self._places[index])
        try:
            # Opened for each image, so that workers share no file position.
            with self._shard(index).open("rb") as file:
                file.seek(offset)
                content = file.read(size)
        except OSError as error:
            raise DataError(f"{self._shard(index)} cannot be read: {error.strerror}") from error
        if len(content) < size:
            raise DataError(f"{self._shard(index)} ends within {self.name(index)}; copy it again")
        return content

    def listing(self) -> Iterable[str]:
        return (f"{self.name(i)}|{self._places[i, 1]}|{self.labels[i]}" for i in range(len(self)))
