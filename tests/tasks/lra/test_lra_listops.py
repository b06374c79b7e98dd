"""ListOps: the generator against the benchmark's definition written out plainly, and the official files."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from scipy import stats

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra import listops
from spectral_conditioning.tasks.lra.listops_trees import CLOSE, SYMBOLS, ListopsOptions, generate_chunk
from spectral_conditioning.tasks.lra.preparation import prepare
from spectral_conditioning.tasks.lra.token_store import Ragged

# Short trees: acceptance is high and the same code runs.
SHORT = ListopsOptions(train=60, val=20, test=20, min_length=10, max_length=80, max_depth=5, max_args=5)


def plain_tree(rng: random.Random, options: ListopsOptions, depth: int = 1) -> list[str]:
    """One tree as its tokens, straight from the benchmark's description."""
    if depth >= options.max_depth or rng.random() > 0.25:
        return [str(rng.randrange(10))]
    arguments = [plain_tree(rng, options, depth + 1) for _ in range(rng.randint(2, options.max_args))]
    return [rng.choice(["[MIN", "[MAX", "[MED", "[SM"]), *(token for part in arguments for token in part), "]"]


def plain_sample(options: ListopsOptions, count: int, *, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    kept: list[list[str]] = []
    while len(kept) < count:
        tokens = plain_tree(rng, options)
        if options.min_length < len(tokens) < options.max_length:
            kept.append(tokens)
    return kept


def evaluate(tokens: list[str]) -> tuple[int, int]:
    """Return the value of an expression and its depth."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    deepest = 1
    for token in tokens:
        if token.startswith("["):
            stack.append((token, []))
            deepest = max(deepest, len(stack))
        elif token == "]":
            operator, values = stack.pop()
            compute = {"[MIN": min, "[MAX": max, "[MED": lambda v: int(median(v)), "[SM": lambda v: sum(v) % 10}[
                operator
            ]
            stack[-1][1].append(compute(values))
        else:
            stack[-1][1].append(int(token))
    assert len(stack) == 1
    (value,) = stack[0][1]
    return value, deepest


def expressions(part: Ragged) -> list[list[str]]:
    offsets = part.offsets
    return [[SYMBOLS[t] for t in part.tokens[offsets[i] : offsets[i + 1]]] for i in range(len(part.labels))]


@pytest.mark.parametrize("options", [ListopsOptions(), SHORT], ids=["benchmark", "short"])
def test_every_label_is_the_value_of_its_expression(options: ListopsOptions) -> None:
    part = generate_chunk(options, 3)
    for tokens, label in list(zip(expressions(part), part.labels, strict=True))[:400]:
        value, depth = evaluate(tokens)
        assert value == label
        assert depth <= options.max_depth
        assert options.min_length < len(tokens) < options.max_length


def describe(tokens: list[str]) -> dict[str, int]:
    value, depth = evaluate(tokens)
    counts = Counter(tokens)
    return {
        "length": len(tokens),
        "depth": depth,
        "label": value,
        **{op: counts[op] for op in ("[MIN", "[MAX", "[MED", "[SM")},
    }


@pytest.mark.parametrize(
    ("options", "count"),
    [(ListopsOptions(min_length=500, max_length=2000), 250), (SHORT, 3000)],
    ids=["benchmark", "short"],
)
def test_distribution_is_that_of_the_plain_generator(options: ListopsOptions, count: int) -> None:
    ours = [describe(t) for t in expressions(generate_chunk(options, 0))[:count]]
    plain = [describe(t) for t in plain_sample(options, count, seed=1)]
    for name in ours[0]:
        mine, theirs = ([entry[name] for entry in sample] for sample in (ours, plain))
        if name in ("label", "depth"):
            values = sorted(set(mine) | set(theirs))
            table = np.array([[sample.count(v) for v in values] for sample in (mine, theirs)]) + 0.5
            p_value = stats.chi2_contingency(table).pvalue
        else:
            p_value = stats.ks_2samp(mine, theirs).pvalue
        assert p_value > 1e-3, (name, p_value, np.mean(mine), np.mean(theirs))


def test_a_wrong_distribution_would_be_noticed() -> None:
    shifted = ListopsOptions(min_length=10, max_length=80, max_depth=5, max_args=6)
    ours = [len(t) for t in expressions(generate_chunk(shifted, 0))[:3000]]
    plain = [len(t) for t in plain_sample(SHORT, 3000, seed=1)]
    assert stats.ks_2samp(ours, plain).pvalue < 1e-6


def test_same_seed_same_trees_and_another_seed_others() -> None:
    first, again, other = (generate_chunk(o, 5) for o in (SHORT, SHORT, ListopsOptions(**{**vars(SHORT), "seed": 1})))
    assert first.tokens.tobytes() == again.tokens.tobytes()
    assert first.tokens.tobytes() != other.tokens.tobytes()
    assert first.tokens.tobytes() != generate_chunk(SHORT, 6).tokens.tobytes()


KNOWN = [
    "[MIN 8 0 1 ]",
    "[MED 3 5 1 1 ]",
    "[SM 3 6 9 8 ]",
    "[MIN 1 9 5 6 ]",
]


def test_known_trees_never_change() -> None:
    # Written down once: a change here means that every prepared folder changes, and GENERATOR must be raised.
    part = generate_chunk(ListopsOptions(min_length=4, max_length=9, max_depth=3, max_args=4), 0)
    assert [" ".join(t) for t in expressions(part)[:4]] == KNOWN


def test_the_hash_seed_of_python_changes_nothing(tmp_path: Path) -> None:
    """The benchmark's own generator goes over a set, in an order that changes with every process."""
    program = (
        "import sys; from pathlib import Path\n"
        "from spectral_conditioning.tasks.lra import listops\n"
        "from spectral_conditioning.tasks.lra.listops_trees import ListopsOptions\n"
        "from spectral_conditioning.tasks.lra.preparation import prepare\n"
        "sizes = ListopsOptions(train=40, val=5, test=5, min_length=10, max_length=60, max_depth=5, max_args=6)\n"
        "prepare(listops.generated(sizes), Path(sys.argv[1]))"
    )
    files = []
    for seed in ("0", "4242"):
        folder = tmp_path / seed
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, str(folder)], env=environment, check=True, timeout=120)
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(sequences(tmp_path / "0", "train")) == 40
    assert "manifest.json" in files[0]
    assert files[0] == files[1]


def test_trees_are_different_across_all_splits(tmp_path: Path) -> None:
    tight = ListopsOptions(train=300, val=50, test=50, min_length=3, max_length=6, max_depth=2, max_args=2)
    prepare(listops.generated(tight), tmp_path / "d")
    seen = [token.tobytes() for split in ("train", "val", "test") for token in sequences(tmp_path / "d", split)]
    assert len(seen) == 400 == len(set(seen))


def sequences(folder: Path, split: str) -> list[np.ndarray]:
    tokens, offsets = np.load(folder / f"{split}.tokens.npy"), np.load(folder / f"{split}.offsets.npy")
    return [tokens[a:b] for a, b in itertools.pairwise(offsets)]


def test_too_few_different_trees_is_an_error(tmp_path: Path) -> None:
    # 4 operators × 100 pairs of digits are all there is.
    impossible = ListopsOptions(train=500, val=1, test=1, min_length=3, max_length=5, max_depth=2, max_args=2)
    with pytest.raises(DataError, match="only 400 different trees"):
        prepare(listops.generated(impossible), tmp_path / "d")
    assert not (tmp_path / "d" / "manifest.json").exists()


@pytest.mark.parametrize(
    "wrong", [{"min_length": 50, "max_length": 51}, {"train": 0}, {"max_depth": 1}, {"max_args": 1}, {"min_length": -1}]
)
def test_impossible_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(DataError):
        ListopsOptions(**wrong)


def test_tokens_keep_brackets_and_drop_parentheses() -> None:
    assert [SYMBOLS[t] for t in listops.tokenize(b"( ( ( [MAX 4 ) 3 ) ] )")] == ["[MAX", "4", "3", "]"]
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 15
    assert SYMBOLS[CLOSE] == "]"
    assert listops.tokenize(b"[MAX 1 [MIN 2 3 ] ]") != listops.tokenize(b"[MAX 1 [MIN 2 ] 3 ]")
    for operator in ("MIN", "MAX", "MED", "SM"):
        assert SYMBOLS[listops.tokenize(f"[{operator} 1 2 ]".encode())[0]] == f"[{operator}"


@pytest.mark.parametrize(
    "text", ["[FIRST 1 2 ]", "[MAX 10 2 ]", "[MAX 1, 2 ]", "[MAX a 2 ]", "[MAX\n 1 2 ]", "MAX 1 2", "[MAX1 2 ]"]
)
def test_unknown_symbols_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not one of the symbols"):
        listops.tokenize(text.encode())


def parenthesised(tokens: list[str]) -> str:
    """Write an expression as the benchmark does: a pair of parentheses around each application."""
    token = tokens.pop(0)
    if not token.startswith("["):
        return token
    text = token
    while tokens[0] != "]":
        text = f"( {text} {parenthesised(tokens)} )"
    tokens.pop(0)
    return f"( {text} ] )"


def write_official(
    folder: Path, options: ListopsOptions, count: int, *, newline: str = "\r\n"
) -> dict[str, list[list[str]]]:
    folder.mkdir()
    written = {}
    for number, split in enumerate(("train", "val", "test")):
        samples = plain_sample(options, count, seed=number)
        lines = ["Source\tTarget", *(f"{parenthesised(list(t))}\t{evaluate(t)[0]}" for t in samples)]
        (folder / f"basic_{split}.tsv").write_bytes((newline.join(lines) + newline).encode())
        written[split] = samples
    return written


def test_official_files_give_the_tokens_of_their_expressions(tmp_path: Path) -> None:
    options = ListopsOptions(min_length=500, max_length=2000)
    written = write_official(tmp_path / "tsv", options, 4)
    prepare(listops.official(tmp_path / "tsv", options), tmp_path / "d")
    for split, samples in written.items():
        stored = sequences(tmp_path / "d", split)
        assert [[SYMBOLS[t] for t in s] for s in stored] == samples
        assert np.load(tmp_path / "d" / f"{split}.labels.npy").tolist() == [evaluate(t)[0] for t in samples]
        assert all(500 < len(s) < 2000 for s in stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("Source\tTarget", "Text\tLabel"), "starts with"),
        (lambda text: text.replace("[M", "[X", 1), r"line \d+: .*is not one of the symbols"),
        (lambda text: text[: text.rindex("\t") + 1] + "12\r\n", r"line \d+: value 12 is not a digit"),
        (lambda text: text + "( ( ( [MAX 4 ) 3 ) ] )\t4\r\n", r"line \d+: 4 tokens, not between 10 and 80"),
        (lambda text: "Source\tTarget\r\n", "holds no expression"),
    ],
)
def test_damaged_official_files_name_the_line(tmp_path: Path, change: object, message: str) -> None:
    write_official(tmp_path / "tsv", SHORT, 5)
    path = tmp_path / "tsv" / "basic_val.tsv"
    path.write_bytes(change(path.read_bytes().decode()).encode())  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        prepare(listops.official(tmp_path / "tsv", SHORT), tmp_path / "d")


def test_missing_official_file_is_named(tmp_path: Path) -> None:
    write_official(tmp_path / "tsv", SHORT, 2)
    (tmp_path / "tsv" / "basic_test.tsv").unlink()
    with pytest.raises(DataError, match=r"one file \*_test.tsv"):
        listops.official(tmp_path / "tsv", SHORT)
