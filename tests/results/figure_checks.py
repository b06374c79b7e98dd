"""What every figure has to be: legible, with nothing on top of anything."""

from __future__ import annotations

import itertools
from typing import Any


def texts_of(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def assert_nothing_overlaps(figure: Any) -> None:
    """Axes with their labels and titles, the heading and the legend stay apart and inside the figure."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    boxes = [axis.get_tightbbox(renderer) for axis in figure.axes if axis.get_visible()]
    boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
    boxes += [figure._suptitle.get_window_extent(renderer)]
    for index, box in enumerate(boxes):
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
        for other in boxes[index + 1 :]:
            assert (
                min(box.x1, other.x1) - max(box.x0, other.x0) < 1.5
                or min(box.y1, other.y1) - max(box.y0, other.y0) < 1.5
            )
    for axis in figure.axes:
        labels = [label.get_window_extent(renderer) for label in axis.get_xticklabels() if label.get_text()]
        labels = [box for box in labels if axis.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axis.bbox.x1 + 1]
        for left, right in itertools.pairwise(labels):
            assert left.x1 <= right.x0
