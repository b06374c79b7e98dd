"""A generator of Pathfinder pictures, many at once, by default with the published parameters of the hard 32×32 set.

After Linsley et al. (2018), drewlinsley/pathfinder: two snakes grow from seeds a fixed distance apart, turning at random and
keeping clear of what stands; shorter snakes distract; two markers sit on ends, of one snake (label 1) or of different
ones (label 0). A pair of snakes that cannot finish is thrown away; a distractor gets five tries. Single-paddle distractors
are off, as in the generator's script (inferred for the release).
"""

# A pictures grown side by side. Coordinates are (y, x).

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.lra.pathfinder_growth import (
    Bools,
    Canvas,
    Draws,
    Floats,
    Ints,
    extend,
    pick_start,
    seed_at,
    stamp_onto,
    whole_degrees,
)
from spectral_conditioning.tasks.lra.pathfinder_stamps import REACH, marker_at, stamps

TARGET_CONTRAST, DISTRACTOR_CONTRAST = 2 * 0.75, 2.0
SNAKE_TRIES = 5
ATTEMPTS = 1024
FULL = 0.01  # share of free pixels under which no distractor is tried
PADDING = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What is drawn; the defaults are the hard set (contour length 14).

    size: pixels a side, at most 32. contour: paddles of a target snake. distractors, distractor_length: number and paddles of
    the others. seed_distance: pixels between the seeds; the first lies at least twice that far from the edge.
    """

    size: int = 32
    contour: int = 14
    distractors: int = 5
    distractor_length: int = 4
    seed_distance: int = 7

    def __post_init__(self) -> None:
        room = self.size - 4 * self.seed_distance
        if (
            not 8 <= self.size <= 32
            or self.contour < 2
            or self.distractor_length < 2
            or self.distractors < 0
            or room < 4
        ):
            raise DataError(
                f"{self} cannot be drawn: size 8 to 32, contour and distractor_length at least 2, and size − 4 seed_distance "
                f"(here {room}) at least 4"
            )


@dataclasses.dataclass
class Targets:
    """Finished pairs of snakes: one picture per snake (A, 2, …), the zones taken, and the ends (A, 2, 2) at seed and tip."""

    snakes: Floats
    taken: Floats
    seeds: Ints
    tips: Ints


def _place_seeds(draws: Draws, scene: Scene) -> tuple[list[Ints], list[Floats], Bools]:
    """Return tails and orientations of both first paddles, and in which attempts they fit."""
    count, edge = ATTEMPTS, 2 * scene.seed_distance
    frame = np.ones((scene.size, scene.size), dtype=bool)
    frame[edge:-edge, edge:-edge] = False
    turns = [whole_degrees(draws, count) for _ in range(2)]
    first, alive = pick_start(np.broadcast_to(frame, (count, *frame.shape)), turns[0], draws)
    angle = np.radians(draws.below(360, count))
    away = scene.seed_distance * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return [first, np.round(first + away).astype(np.int64)], turns, alive


def _attempt_targets(draws: Draws, scene: Scene) -> Targets:
    """Try `ATTEMPTS` pairs of snakes and return those that reached their full length."""
    tails, turns, alive = _place_seeds(draws, scene)
    walls = np.pad(np.zeros((scene.size - 2 * PADDING,) * 2), PADDING, constant_values=1.0)
    taken = np.repeat(np.pad(walls, REACH)[None], ATTEMPTS, axis=0)
    canvases = [Canvas(np.zeros_like(taken), taken) for _ in range(2)]
    pair = []
    for tail, turn in zip(tails, turns, strict=True):
        snake, fits = seed_at(tail, turn, scene.size)
        alive = alive & fits
        pair.append(snake)
    rows = np.flatnonzero(alive)
    pair = [snake.where(alive) for snake in pair]
    for canvas, snake in zip(canvases, pair, strict=True):
        stamp_onto(canvas.image, rows, snake.place, stamps().line[snake.stamp] * TARGET_CONTRAST)
    for _ in range(scene.contour - 1):
        for i, canvas in enumerate(canvases):
            pair[i], grown = extend(canvas, rows, pair[i], TARGET_CONTRAST, draws)
            rows, pair = rows[grown], [snake.where(grown) for snake in pair]
    # As in the original, the zone of the second snake's last paddle is taken and the first one's is not.
    stamp_onto(taken, rows, pair[1].place, stamps().zone[pair[1].stamp])
    return Targets(
        snakes=np.stack([canvas.image[rows] for canvas in canvases], axis=1),
        taken=taken[rows],
        seeds=np.stack([tail[rows] for tail in tails], axis=1),
        tips=np.stack([snake.place for snake in pair], axis=1),
    )


def grow_targets(draws: Draws, count: int, scene: Scene) -> Targets:
    """Return `count` finished pairs."""
    found: list[Targets] = []
    while sum(len(t.seeds) for t in found) < count:
        found.append(_attempt_targets(draws, scene))
        if len(found) == 100 and sum(len(t.seeds) for t in found) < 5:
            raise DataError(
                f"{scene} leaves no room for two snakes: {100 * ATTEMPTS} attempts gave fewer than 5 pictures"
            )
    fields = [field.name for field in dataclasses.fields(Targets)]
    return Targets(*(np.concatenate([getattr(t, name) for t in found])[:count] for name in fields))


def _try_distractor(canvas: Canvas, rows: Ints, draws: Draws, scene: Scene) -> Bools:
    """Grow one distractor in each picture of `rows`; pictures where it cannot finish are left as they were."""
    trial = Canvas(canvas.image[rows], canvas.taken[rows])
    blocked = trial.taken[:, REACH:-REACH, REACH:-REACH] > 0.3
    roomy = (~blocked).mean(axis=(1, 2)) >= FULL
    blocked[:, [0, -1], :] = True
    blocked[:, :, [0, -1]] = True
    turn = whole_degrees(draws, len(rows))
    tail, free = pick_start(blocked, turn, draws)
    snake, fits = seed_at(tail, turn, scene.size)
    good = roomy & free & fits
    local, snake = np.flatnonzero(good), snake.where(good)
    stamp_onto(trial.image, local, snake.place, stamps().line[snake.stamp] * DISTRACTOR_CONTRAST)
    for _ in range(scene.distractor_length - 1):
        snake, grown = extend(trial, local, snake, DISTRACTOR_CONTRAST, draws)
        local, snake = local[grown], snake.where(grown)
    stamp_onto(trial.taken, local, snake.place, stamps().zone[snake.stamp])
    canvas.image[rows[local]], canvas.taken[rows[local]] = trial.image[local], trial.taken[local]
    done = np.zeros(len(rows), dtype=bool)
    done[local] = True
    return done


def _add_distractors(canvas: Canvas, draws: Draws, scene: Scene) -> None:
    for _ in range(scene.distractors):
        waiting = np.arange(len(canvas.image))
        for _ in range(SNAKE_TRIES):
            if len(waiting):
                waiting = waiting[~_try_distractor(canvas, waiting, draws, scene)]


@dataclasses.dataclass
class Pictures:
    """Finished pictures: uint8 (A, size, size), labels (A,), the markers' places (A, 2, 2) and what they were made from."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    markers: Ints
    targets: Targets


def draw_pictures(count: int, *, seed: int, chunk: int, scene: Scene) -> Pictures:
    """Return `count` pictures, a pure function of its arguments.

    Brightness is stretched so that each picture spans 0 to 255, as the original saves them.
    """
    draws = Draws(seed, chunk)
    labels, which = draws.below(2, count), draws.below(2, count)
    targets = grow_targets(draws, count, scene)
    canvas = Canvas(targets.snakes.max(axis=1), targets.taken.copy())
    _add_distractors(canvas, draws, scene)
    rows = np.arange(count)
    other = np.where(labels == 1, which, 1 - which)
    ends = np.stack([targets.seeds[rows, which], targets.tips[rows, other]], axis=1)
    marked = canvas.image[:, REACH:-REACH, REACH:-REACH].copy()
    for picture, pair in zip(marked, ends, strict=True):
        for y, x in pair:
            np.maximum(picture, marker_at(y, x, scene.size), out=picture)
    low, high = marked.min(axis=(1, 2), keepdims=True), marked.max(axis=(1, 2), keepdims=True)
    scaled = (marked - low) * (255 / (high - low))
    return Pictures((scaled + 0.5).astype(np.uint8), labels.astype(np.uint8), ends, targets)
