"""Snakes of Pathfinder pictures: how one grows, paddle by paddle, in many pictures at once."""

# A pictures grown side by side, K places a next paddle can end at. Coordinates are (y, x).

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from spectral_conditioning.randomness import derive
from spectral_conditioning.tasks.lra.pathfinder_stamps import MARGIN, PADDLE_LENGTH, REACH, STAMP, stamps

CONTINUITY = 1.0
PADDLE_TRIES = 3

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.uint32]


class Draws:
    """Uniform numbers from raw bits, the same in every numpy."""

    def __init__(self, seed: int, chunk: int) -> None:
        self.source = np.random.PCG64(derive(seed, "pathfinder", chunk))

    def uniform(self, count: int) -> Floats:
        """Return `count` numbers in [0, 1)."""
        return np.asarray((self.source.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def below(self, limit: int | Ints, count: int) -> Ints:
        """Return `count` whole numbers from 0 to limit − 1."""
        return np.floor(self.uniform(count) * limit).astype(np.int64)


@dataclasses.dataclass
class Canvas:
    """Pictures and the zones taken in them, both (A, size + 2 REACH, size + 2 REACH): a frame keeps stamps in the array."""

    image: Floats
    taken: Floats

    @property
    def size(self) -> int:
        return int(self.image.shape[1]) - 2 * REACH


_patch_y, _patch_x = np.ogrid[0:STAMP, 0:STAMP]


def _patch(rows: Ints, place: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the index of the stamp-sized patch around each place, (A, STAMP, STAMP)."""
    return rows[:, None, None], place[:, 0, None, None] + _patch_y, place[:, 1, None, None] + _patch_x


def stamp_onto(layer: Floats, rows: Ints, place: Ints, stamp: Floats) -> None:
    """Set the patches of `layer` to the larger of themselves and `stamp`, inside the picture only."""
    index = _patch(rows, place)
    size = layer.shape[1] - 2 * REACH
    inside = [(i >= REACH) & (i < size + REACH) for i in index[1:]]
    layer[index] = np.maximum(layer[index], stamp * (inside[0] & inside[1]))


def _translate(place: Ints, orientation: Floats, distance: float) -> Ints:
    step = np.stack([np.sin(orientation), np.cos(orientation)], axis=-1) * distance
    return np.ceil(place + step).astype(np.int64)


def _in_picture(size: int, *places: Ints) -> Bools:
    inside = np.stack([((place >= 0) & (place < size)).all(axis=-1) for place in places])
    return np.asarray(inside.all(axis=0))


def _ring() -> tuple[Ints, Floats]:
    """Return where a paddle can end, (K, 2) from its pivot, and the orientation of each."""
    radius = PADDLE_LENGTH + MARGIN
    angle = np.arange(0, 2 * np.pi, 1 / radius)
    places = np.unique(np.floor(radius * np.stack([np.sin(angle), np.cos(angle)], axis=-1)).astype(np.int64), axis=0)
    return places, np.arctan2(places[:, 0], places[:, 1])


RING, RING_ORIENTATION = _ring()
RING_STAMP = stamps().of(RING_ORIENTATION - np.pi)


@dataclasses.dataclass
class Snakes:
    """Growing ends: pivot and orientation of the last paddle, and that paddle's place and stamp, not yet taken."""

    pivot: Ints
    orientation: Floats
    place: Ints
    stamp: Ints

    def where(self, kept: Bools) -> Snakes:
        return Snakes(self.pivot[kept], self.orientation[kept], self.place[kept], self.stamp[kept])


def _weights(canvas: Canvas, rows: Ints, pivot: Ints, orientation: Floats) -> Floats:
    """Return how likely each place of the ring is next, (A, K), not normalised: (1 − taken) cos² of the turn, ahead only."""
    places = pivot[:, None] + RING
    padded = places + REACH
    around = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    limit = canvas.size + 2 * REACH - 1
    near = [
        canvas.taken[rows[:, None], (padded[..., 0] + y).clip(0, limit), (padded[..., 1] + x).clip(0, limit)]
        for y, x in around
    ]
    turn = np.abs(RING_ORIENTATION - orientation[:, None])
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * CONTINUITY, np.pi / 2)
    free = (1 - np.max(near, axis=0)) * _in_picture(canvas.size, places)
    return np.asarray(free * np.cos(turn) ** 2)


def extend(canvas: Canvas, rows: Ints, snakes: Snakes, contrast: float, draws: Draws) -> tuple[Snakes, Bools]:
    """Add one paddle to each snake; rows: the picture of each. Returns the new ends and which snakes could grow.

    The last paddle's zone becomes taken only now, so that the next paddle may touch it.
    """
    pivot = _translate(snakes.pivot, snakes.orientation, PADDLE_LENGTH + 2 * MARGIN)
    weights = _weights(canvas, rows, pivot, snakes.orientation)
    total = weights.sum(axis=1)
    grown = total >= 1e-4
    shares = np.cumsum(weights / np.where(grown, total, 1)[:, None], axis=1)
    chosen = np.zeros(len(rows), dtype=np.int64)
    open_ = grown.copy()
    zones = stamps().zone
    for _ in range(PADDLE_TRIES):
        tried = np.argmax(shares > draws.uniform(len(rows))[:, None], axis=1)
        place = pivot + RING[tried]
        index = _patch(rows, np.where(open_[:, None], place, 0))
        clear = (canvas.taken[index] + zones[RING_STAMP[tried]]).max(axis=(1, 2)) < 1.8
        chosen = np.where(open_, tried, chosen)
        open_ &= ~clear
    grown &= ~open_
    new = Snakes(pivot, RING_ORIENTATION[chosen], pivot + RING[chosen], RING_STAMP[chosen])
    drawn = new.where(grown)
    stamp_onto(canvas.image, rows[grown], drawn.place, stamps().line[drawn.stamp] * contrast)
    last = snakes.where(grown)
    stamp_onto(canvas.taken, rows[grown], last.place, zones[last.stamp])
    return new, grown


def _blocked_starts(blocked: Rows, stamp: Ints) -> Rows:
    """Return the pixels at which a first paddle would meet a blocked one, as one bit per pixel, (A, size).

    The paddle's zone, where it is full, is laid over every pixel (one pixel off centre, as in the original).
    """
    side = 2 * (PADDLE_LENGTH + MARGIN) + 1
    shape = stamps().zone[stamp, :side, :side] >= 1
    size = blocked.shape[1]
    result = np.zeros_like(blocked)
    for y in range(side):
        rows = np.zeros_like(blocked)
        shift_y = y - side // 2
        rows[:, max(0, -shift_y) : size - max(0, shift_y)] = blocked[:, max(0, shift_y) : size + min(0, shift_y)]
        for x in range(side):
            shift_x = x - side // 2
            moved = rows >> np.uint32(shift_x) if shift_x >= 0 else rows << np.uint32(-shift_x)
            result |= np.where(shape[:, y, x, None], moved, np.uint32(0))
    return result


def _bits(cells: Bools) -> Rows:
    """Pack (A, size, size), size at most 32, into one word per row; column x is bit x."""
    count, size, _ = cells.shape
    packed = np.zeros((count, size, 4), dtype=np.uint8)
    packed[..., : -(-size // 8)] = np.packbits(cells, axis=-1, bitorder="little")
    return packed.view(np.uint32)[..., 0]


def _cells(rows: Rows) -> Bools:
    """Undo `_bits`."""
    size = rows.shape[1]
    octets = np.ascontiguousarray(rows)[..., None].view(np.uint8)
    return np.unpackbits(octets, axis=-1, bitorder="little")[..., :size].astype(bool)


def pick_start(blocked: Bools, orientation: Floats, draws: Draws) -> tuple[Ints, Bools]:
    """Return a start for a first paddle in each picture, evenly drawn from where it meets no blocked pixel, and whether any is.

    blocked: (A, size, size).
    """
    count, size, _ = blocked.shape
    free = ~_cells(_blocked_starts(_bits(blocked), stamps().of(orientation))).reshape(count, -1)
    available = free.sum(axis=1, dtype=np.int64)
    wanted = draws.below(available, count) + 1
    position = np.argmax(np.cumsum(free, axis=1, dtype=np.int64) >= wanted[:, None], axis=1)
    return np.stack(np.divmod(position, size), axis=-1), available > 0


def whole_degrees(draws: Draws, count: int) -> Floats:
    """Return orientations in radians, whole degrees from −180 to 179."""
    return np.radians(draws.below(360, count) - 180)


def seed_at(tail: Ints, orientation: Floats, size: int) -> tuple[Snakes, Bools]:
    """Return first paddles that start at `tail`, and whether head and pivot lie in the picture."""
    head = _translate(tail, orientation, PADDLE_LENGTH)
    pivot = _translate(head, orientation - np.pi, PADDLE_LENGTH + MARGIN)
    return Snakes(pivot, orientation, tail, stamps().of(orientation)), _in_picture(size, head, pivot)
