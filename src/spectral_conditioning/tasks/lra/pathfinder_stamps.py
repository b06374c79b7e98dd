"""The drawn pieces of a Pathfinder picture: paddles, the zones they keep clear, and round markers, antialiased.

All numbers are those published for the 32×32, contour length 14 set (google-research/long-range-arena, data/pathfinder.py).
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

PADDLE_LENGTH = 2
MARGIN = 1
ANTIALIAS = 2
LINE_WIDTH = 1  # 0.5 pixels, twice enlarged
MARKER_RADIUS = 1.5
# A stamp reaches this far from the pixel that it is placed at.
REACH = PADDLE_LENGTH + 1 + MARGIN
STAMP = 2 * REACH + 1

Floats = NDArray[np.float64]


def _shrink(large: NDArray[np.uint8], size: int) -> Floats:
    small = Image.fromarray(large).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(small, dtype=np.float64) / 255


def _disc(radius: int) -> NDArray[np.bool_]:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return np.asarray(y**2 + x**2 <= radius**2)


def _dilate(image: NDArray[np.uint8], shape: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the largest value under `shape` (odd, symmetric) around each pixel."""
    reach = len(shape) // 2
    padded = np.pad(image, reach)
    shifts = [padded[y : y + len(image), x : x + len(image)] for y, x in np.argwhere(shape)]
    return np.asarray(np.max(shifts, axis=0), dtype=np.uint8)


def head_offset(orientation: Floats) -> NDArray[np.int64]:
    """Return where a paddle's line ends on the enlarged grid, (..., 2) as (y, x) from its start."""
    distance = PADDLE_LENGTH * ANTIALIAS
    centre = REACH * ANTIALIAS
    ends = np.stack([np.sin(orientation), np.cos(orientation)], axis=-1) * distance + centre
    return np.asarray(np.ceil(ends) - centre, dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class Stamps:
    """Every paddle that can be drawn, by the end of its line on the enlarged grid.

    line, zone: (stamps, STAMP, STAMP) in [0, 1], the paddle and the zone that others must not enter. number: (2 c + 1, 2 c + 1),
    which stamp belongs to an offset (y + c, x + c), −1 where none does.
    """

    line: Floats
    zone: Floats
    number: NDArray[np.int64]

    def of(self, orientation: Floats) -> NDArray[np.int64]:
        """Return the stamp of each orientation (radians, y down)."""
        offset = head_offset(orientation) + self.number.shape[0] // 2
        return np.asarray(self.number[offset[..., 0], offset[..., 1]])


def _draw(offset_y: int, offset_x: int) -> tuple[Floats, Floats]:
    side = 2 * REACH * ANTIALIAS + 1
    centre = REACH * ANTIALIAS
    canvas = Image.new("L", (side, side), 0)
    ImageDraw.Draw(canvas).line([(centre, centre), (centre + offset_x, centre + offset_y)], fill=255, width=LINE_WIDTH)
    large = np.asarray(canvas)
    return _shrink(large, STAMP), _shrink(_dilate(large, _disc(MARGIN * ANTIALIAS)), STAMP)


@functools.cache
def stamps() -> Stamps:
    """Return all paddles; there are few, since a line ends on a pixel of the enlarged grid."""
    reach = PADDLE_LENGTH * ANTIALIAS + 1
    number = np.full((2 * reach + 1, 2 * reach + 1), -1, dtype=np.int64)
    drawn: list[tuple[Floats, Floats]] = []
    # Orientations of first paddles are whole degrees; later ones point between pixels and end on the same few places.
    for y, x in np.unique(head_offset(np.radians(np.arange(0, 360, 0.25))), axis=0):
        number[y + reach, x + reach] = len(drawn)
        drawn.append(_draw(int(y), int(x)))
    lines, zones = (np.stack(images) for images in zip(*drawn, strict=True))
    return Stamps(lines, zones, number)


@functools.cache
def _marker(reach: int) -> Floats:
    side = 2 * reach + 1
    centre = reach * ANTIALIAS
    y, x = np.ogrid[: side * ANTIALIAS, : side * ANTIALIAS]
    disc = (y - centre) ** 2 + (x - centre) ** 2 <= (MARKER_RADIUS * ANTIALIAS) ** 2
    return _shrink(disc.astype(np.uint8) * np.uint8(255), side)


def marker_at(y: int, x: int, size: int) -> Floats:
    """Return a picture (size, size) with one marker."""
    return _marker(size)[size - y : 2 * size - y, size - x : 2 * size - x]
