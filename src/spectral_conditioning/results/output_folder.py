"""A folder of generated files that remembers which of them it wrote: a later comparison removes those, and no other file.

`.spectral-compare.json` lists every file with a hash of its content. A file that was changed since, or is not listed, belongs to
somebody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path
from types import TracebackType

from spectral_conditioning.errors import RecordError
from spectral_conditioning.files import write_atomically

MANIFEST = ".spectral-compare.json"


def make_folder(path: Path, what: str) -> None:
    """Create a folder and prove that files can be written into it. Raises RecordError, saying `what` goes there."""
    if path.exists() and not path.is_dir():
        raise RecordError(f"{path} is a file, and {what} goes into a folder. Choose another with --out.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise RecordError(f"cannot write {what} to {path}: {error}. Choose another folder with --out.") from error


class OutputFolder:
    """Collects what is written; leaving the `with` block removes what an earlier one wrote here and this one did not.

    After an exception nothing is removed, and both lots stay listed. removed, kept: names of earlier files that were
    removed, and that stay because they were changed since.
    """

    def __init__(self, path: Path, what: str) -> None:
        make_folder(path, what)
        self.path = path
        self.removed: list[str] = []
        self.kept: list[str] = []
        self._earlier = _listed(path)
        self._written: set[str] = set()

    def write(self, name: str, text: str) -> Path:
        """Write a text file and list it."""
        (self.path / name).write_text(text, encoding="utf-8")
        return self.add(self.path / name)

    def add(self, path: Path) -> Path:
        """List a file that was written directly into the folder."""
        self._written.add(path.name)
        return path

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        written = {name: _hash(self.path / name) for name in sorted(self._written) if (self.path / name).is_file()}
        if kind is not None:
            with contextlib.suppress(RecordError):
                self._list(self._earlier | written)
            return
        for name, content in self._earlier.items():
            path = self.path / name
            if name in written or path.is_symlink() or not path.is_file():
                continue
            if _hash(path) == content:
                path.unlink()
                self.removed.append(name)
            else:
                self.kept.append(name)
        self._list(written)

    def _list(self, files: dict[str, str]) -> None:
        text = json.dumps({"written by": "spectral compare", "files": files}, indent=1, sort_keys=True)
        write_atomically(self.path / MANIFEST, f"{text}\n".encode())


def _listed(folder: Path) -> dict[str, str]:
    """Return {name: hash} of an earlier list; a list that cannot be read claims no file, nor may one claim files elsewhere."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(name): str(content) for name, content in files.items() if Path(name).name == name}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _hash(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
