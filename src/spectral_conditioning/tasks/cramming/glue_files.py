"""Read GLUE as it is distributed: folders of TSV files, or of parquet files, or the same tables from a hub.

GLUE's TSV files know no quoting: a quote is a character, and a sentence may hold one of a pair. Lines end at a newline and
nowhere else, while sentences contain other characters that Unicode counts as line ends. Test files carry no labels and are
never scored.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spectral_conditioning.errors import DataError, problems_message
from spectral_conditioning.tasks.cramming.glue_tasks import GlueTask

log = logging.getLogger(__name__)
SHOWN = 20
LOWEST, HIGHEST = 0.0, 5.0


@dataclasses.dataclass(frozen=True)
class Example:
    """One or two sentences and a class id or score. `part` tells validation sets apart (0 matched, 1 mismatched)."""

    sentences: tuple[str, ...]
    label: float
    part: int = 0


class BadRow(ValueError):
    """Why a row cannot be read."""


def parse_label(value: Any, task: GlueTask) -> float:
    """Turn a label as written into a class id or score. Raises BadRow for one that the task does not have, −1 included."""
    if task.regression:
        try:
            score = float(value)
        except (TypeError, ValueError) as error:
            raise BadRow(f"score {value!r} is not a number") from error
        if not (math.isfinite(score) and LOWEST <= score <= HIGHEST):
            raise BadRow(f"score {value} lies outside [{LOWEST:g}, {HIGHEST:g}]; a test row is not scored")
        return score
    if value in task.labels:
        return task.labels.index(value)
    text = str(value)
    if text.isdigit() and int(text) < len(task.labels):
        return int(text)
    hint = " (−1 marks a hidden label; test rows are not scored)" if text == "-1" else ""
    raise BadRow(f"label {value!r}; allowed: {', '.join(task.labels)} or 0 to {len(task.labels) - 1}{hint}")


def _columns(header: Sequence[str], task: GlueTask, name: str) -> tuple[list[str], str]:
    """Return the names of the sentence columns and of the label column in a table."""
    sentences = []
    for names in task.sentences:
        found = next((column for column in names if column in header), None)
        if found is None:
            raise DataError(
                f"{name}: no column {' or '.join(map(repr, names))} for {task.folder}; it has {', '.join(header)}"
            )
        sentences.append(found)
    label = next((column for column in task.label if column in header), None)
    if label is None:
        raise DataError(
            f"{name}: no label column {' or '.join(map(repr, task.label))}; it has {', '.join(header)}. "
            f"Files without labels (GLUE's test.tsv) cannot be scored"
        )
    return sentences, label


def tsv_rows(path: Path, task: GlueTask) -> Iterator[tuple[int, Mapping[str, str] | BadRow]]:
    """Yield (line number, row by column name) of a TSV file, or the reason why a line is no row."""
    text = path.read_bytes().decode("utf-8-sig")
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if not lines or not lines[0]:
        raise DataError(f"{path} is empty")
    header, start = lines[0].split("\t"), 1
    if task.header is not None and not set(task.header) <= set(header):
        headed = any(name in header for names in task.sentences for name in names)
        header, start = (header, 1) if headed else (list(task.header), 0)
    for number, line in enumerate(lines[start:], start=start + 1):
        if not line and number == len(lines):
            continue
        fields = line.split("\t")
        if len(fields) != len(header):
            yield number, BadRow(f"{len(fields)} fields, expected {len(header)}: {line[:60]!r}")
        else:
            yield number, dict(zip(header, fields, strict=True))


def table_rows(table: Any) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
    """Yield (row number, row) of a table read by `datasets`; class labels become their names where the table knows them."""
    names = {
        column: feature.names
        for column, feature in table.features.items()
        if getattr(feature, "names", None) is not None
    }
    for number, row in enumerate(table, start=1):
        values = dict(row)
        for column, labels in names.items():
            if isinstance(values[column], int) and 0 <= values[column] < len(labels):
                values[column] = labels[values[column]]
        yield number, values


def examples(
    rows: Iterator[tuple[int, Mapping[str, Any] | BadRow]],
    task: GlueTask,
    *,
    name: str,
    part: int = 0,
    skip_bad_rows: bool = False,
) -> list[Example]:
    """Turn rows into examples. Raises DataError that names every bad row, unless they are to be skipped with a warning."""
    found: list[Example] = []
    bad: list[str] = []
    columns: tuple[list[str], str] | None = None
    for number, row in rows:
        try:
            if isinstance(row, BadRow):
                raise row
            columns = columns or _columns(list(row), task, name)
            sentences = tuple(row[column] for column in columns[0])
            if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
                raise BadRow(f"an empty sentence: {sentences!r}")
            found.append(Example(sentences, parse_label(row[columns[1]], task), part))
        except BadRow as problem:
            bad.append(f"row {number}: {problem}")
    if bad:
        listed = bad if len(bad) <= SHOWN else [*bad[:SHOWN], f"and {len(bad) - SHOWN} more"]
        if not skip_bad_rows:
            raise DataError(
                problems_message(f"{name} has bad rows (data.skip_bad_rows=true goes on without them)", listed)
            )
        log.warning("%s", problems_message(f"{name}: rows skipped", listed))
    if not found:
        raise DataError(f"{name} has no labelled rows")
    return found


def task_folder(root: Path, key: str, task: GlueTask) -> Path:
    """Return where a task's files lie: GLUE's name or the table's name below `root`, or `root` itself."""
    for folder in (root / task.folder, root / key):
        if folder.is_dir():
            return folder
    if root.is_dir() and (any(root.glob("train*.tsv")) or any(root.rglob("train*.parquet"))):
        return root
    raise DataError(
        f"{root} holds neither {task.folder}/ nor {key}/ nor a train.tsv; give the folder that holds GLUE's tasks, or one task's"
    )


def _file(folder: Path, names: tuple[str, ...]) -> Path | list[Path] | None:
    """Return the TSV file, or the parquet files, of a split."""
    for name in names:
        tsv = folder / f"{name}.tsv"
        if tsv.is_file():
            return tsv
        tables = sorted([*folder.rglob(f"{name}.parquet"), *folder.rglob(f"{name}-*.parquet")])
        if tables:
            return tables
    return None


def read_folder(root: str, key: str, task: GlueTask, *, skip_bad_rows: bool) -> tuple[list[Example], list[Example]]:
    """Read the training and validation examples of a task from a local folder."""
    folder = task_folder(Path(root), key, task)

    def read(names: tuple[str, ...], part: int) -> list[Example] | None:
        source = _file(folder, names)
        if source is None:
            return None
        if isinstance(source, Path):
            rows: Any = tsv_rows(source, task)
        else:
            import datasets

            files = [str(path) for path in source]
            rows = table_rows(datasets.load_dataset("parquet", data_files=files, split="train"))
        name = str(source if isinstance(source, Path) else source[0])
        return examples(rows, task, name=name, part=part, skip_bad_rows=skip_bad_rows)

    train = read(("train",), 0)
    if train is None:
        raise DataError(f"{folder} has no train.tsv and no train-*.parquet")
    return train, _validation(read, task, str(folder))


def read_hub(name: str, key: str, task: GlueTask, *, skip_bad_rows: bool) -> tuple[list[Example], list[Example]]:
    """Read a task from a Hugging Face data set that has a configuration per task, e.g. nyu-mll/glue."""
    import datasets

    try:
        tables = datasets.load_dataset(name, key)
    except Exception as error:
        raise DataError(f"data set {name} ({key}) cannot be read: {str(error).splitlines()[0]}") from error

    def read(names: tuple[str, ...], part: int) -> list[Example] | None:
        split = next((split for split in names if split in tables), None)
        if split is None:
            return None
        rows = table_rows(tables[split])
        return examples(rows, task, name=f"{name} {key} {split}", part=part, skip_bad_rows=skip_bad_rows)

    train = read(("train",), 0)
    if train is None:
        raise DataError(f"data set {name} ({key}) has no split 'train'; it has {', '.join(tables)}")
    return train, _validation(read, task, name)


def _validation(read: Any, task: GlueTask, name: str) -> list[Example]:
    parts = [read(names, number) for number, names in enumerate(task.validation.values())]
    if parts[0] is None:
        raise DataError(f"{name} has none of {', '.join(next(iter(task.validation.values())))} for {task.folder}")
    return [example for part in parts if part is not None for example in part]
