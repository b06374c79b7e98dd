"""Random ListOps trees of the benchmark's distribution, grown level by level, many at once.

A node at depth < 10 is an operator with probability ¼ and else a digit; an operator is MIN, MAX, MED (integer part of the median)
or SM (sum modulo 10) and has 2 to 10 arguments; a node at depth 10 is a digit
(google-research/long-range-arena, lra_benchmarks/data/listops.py).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from spectral_conditioning.errors import DataError
from spectral_conditioning.randomness import derive
from spectral_conditioning.tasks.lra.token_store import Ragged

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
# Stored values: digits 0 to 9, then the operators, then "]"; a token id is one more, since 0 pads.
SYMBOLS = (*"0123456789", *OPERATORS, "]")
CLOSE = len(SYMBOLS) - 1
CLASSES = 10
CANDIDATES = 16384
GENERATOR = 1  # raised whenever the same seed would give other trees

Int = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListopsOptions:
    """What the generated files depend on; the defaults are the benchmark's.

    train, val, test: samples. A length is kept when min_length < length < max_length. max_depth: of a node, the root has 1.
    """

    train: int = 96000
    val: int = 2000
    test: int = 2000
    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.train, self.val, self.test) < 1:
            raise DataError(f"listops needs at least 1 sample per split, got {self.train}/{self.val}/{self.test}")
        if not 0 <= self.min_length < self.max_length - 1:
            raise DataError(
                f"no length lies strictly between min_length {self.min_length} and max_length {self.max_length}"
            )
        if self.max_depth < 2 or not 2 <= self.max_args <= 100:
            raise DataError(f"max_depth is {self.max_depth} (at least 2), max_args {self.max_args} (2 to 100)")


@dataclasses.dataclass
class Level:
    """All nodes of one depth, in the order of their parents.

    tree: number of the tree. arity: arguments, 0 at a digit. symbol: the digit, or the operator's number.
    """

    tree: Int
    arity: Int
    symbol: Int

    def of_trees(self, kept: NDArray[np.bool_]) -> Level:
        chosen = kept[self.tree]
        return Level(self.tree[chosen], self.arity[chosen], self.symbol[chosen])


def _draw(source: np.random.PCG64, tree: Int, *, leaves: bool, max_args: int) -> Level:
    """Draw one node for each entry of `tree` from 64 random bits: 2 for its kind, 2 the operator, 30 the arity, 30 the digit.

    Raw bits, since their stream is the same in every numpy; a 30-bit fraction misses equal shares by less than 1e-7.
    """
    bits = source.random_raw(len(tree))
    digit = ((bits & 0x3FFFFFFF) * 10 >> 30).astype(np.int64)
    if leaves:
        return Level(tree, np.zeros(len(tree), np.int64), digit)
    is_operator = bits >> 62 == 0
    arity = (2 + ((bits >> 30 & 0x3FFFFFFF) * (max_args - 1) >> 30)).astype(np.int64)
    operator = (bits >> 60 & 3).astype(np.int64)
    return Level(tree, np.where(is_operator, arity, 0), np.where(is_operator, operator, digit))


def _grow(source: np.random.PCG64, options: ListopsOptions) -> list[Level]:
    """Grow `CANDIDATES` trees and return the levels of those whose length fits.

    A tree stops growing once the nodes it is bound to have make it too long; digits of the last level, which change no
    length, are drawn for kept trees only. Neither changes the distribution of what is kept.
    """
    levels: list[Level] = []
    tree = np.arange(CANDIDATES)
    length = np.ones(CANDIDATES, np.int64)  # nodes drawn or due, and a "]" for each operator
    for _ in range(options.max_depth - 1):
        level = _draw(source, tree, leaves=False, max_args=options.max_args)
        levels.append(level)
        # An operator adds its "]" and its arguments to what is due.
        length += np.bincount(tree, weights=level.arity + (level.arity > 0), minlength=CANDIDATES).astype(np.int64)
        operators = level.arity > 0
        tree = np.repeat(level.tree[operators], level.arity[operators])
        tree = tree[length[tree] < options.max_length]
    kept = (length > options.min_length) & (length < options.max_length)
    levels = [level.of_trees(kept) for level in levels]
    levels.append(_draw(source, tree[kept[tree]], leaves=True, max_args=options.max_args))
    return levels


def _median(values: Int, starts: Int, arity: Int) -> Int:
    """Return the integer part of the median of each segment."""
    column = np.arange(arity.max(initial=0))
    inside = column < arity[:, None]
    table = np.where(inside, values[np.where(inside, starts[:, None] + column, 0)], CLASSES)
    table.sort(axis=1)
    row = np.arange(len(arity))
    return np.asarray((table[row, (arity - 1) // 2] + table[row, arity // 2]) // 2, dtype=np.int64)


def _evaluate(level: Level, child_values: Int, starts: Int, operators: Int) -> Int:
    """Return the value of each node from its children's; starts: first child of each operator."""
    values = level.symbol.copy()
    if len(operators) == 0:
        return values
    kind, arity = level.symbol[operators], level.arity[operators]
    results = np.stack(
        [
            np.minimum.reduceat(child_values, starts),
            np.maximum.reduceat(child_values, starts),
            np.zeros(len(operators), np.int64),
            np.add.reduceat(child_values, starts) % 10,
        ]
    )
    medians = np.flatnonzero(kind == 2)
    results[2, medians] = _median(child_values, starts[medians], arity[medians])
    values[operators] = results[kind, np.arange(len(operators))]
    return values


def _measure(levels: list[Level]) -> tuple[list[Int], Int]:
    """Return the length of every subtree, level by level, and the value of every tree, both from the leaves up."""
    lengths: list[Int] = [np.ones(len(levels[-1].tree), np.int64)]
    values = levels[-1].symbol
    for level in reversed(levels[:-1]):
        operators = np.flatnonzero(level.arity)
        starts = np.cumsum(level.arity[operators]) - level.arity[operators]
        length = np.ones(len(level.tree), np.int64)
        if len(operators):
            length[operators] = 2 + np.add.reduceat(lengths[0], starts)
        values = _evaluate(level, values, starts, operators)
        lengths.insert(0, length)
    return lengths, values


def _write_tokens(levels: list[Level], lengths: list[Int]) -> NDArray[np.uint8]:
    """Lay the trees out in reading order: operator, arguments, "]"."""
    position = np.cumsum(lengths[0]) - lengths[0]
    tokens = np.empty(int(lengths[0].sum()), np.uint8)
    for depth, level in enumerate(levels):
        operators = np.flatnonzero(level.arity)
        tokens[position] = np.where(level.arity > 0, CLASSES + level.symbol, level.symbol)
        if len(operators) == 0:
            break
        tokens[position[operators] + lengths[depth][operators] - 1] = CLOSE
        arity = level.arity[operators]
        child_lengths = lengths[depth + 1]
        before = np.cumsum(child_lengths) - child_lengths
        first = np.cumsum(arity) - arity
        position = np.repeat(position[operators] + 1 - before[first], arity) + before
    return tokens


def generate_chunk(options: ListopsOptions, chunk: int) -> Ragged:
    """Return the trees that fit among the `CANDIDATES` of chunk `chunk`, a pure function of (options, chunk)."""
    source = np.random.PCG64(derive(options.seed, "listops", chunk))
    levels = _grow(source, options)
    lengths, values = _measure(levels)
    return Ragged(_write_tokens(levels, lengths), lengths[0], values.astype(np.uint8))
