"""Which scripts a submission needs: what is missing of a study, cut into arrays that Slurm takes and chained by stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from spectral_conditioning.launch.scripts import Shape, index_ranges
from spectral_conditioning.launch.status import IN_QUEUE, RECORDED, State
from spectral_conditioning.launch.study import Element, config_name
from spectral_conditioning.launch.study_file import Stage


@dataclasses.dataclass(eq=False)
class Part:
    """One script: an array of elements by index, or one element under None.

    waits_for: the job, of this submission or by its id, whose element of the same index comes before each element here.
    """

    name: str
    stage: Stage
    shape: Shape
    elements: dict[int | None, Element]
    waits_for: Part | str | None = None

    @property
    def is_array(self) -> bool:
        """Whether this is an array, however small."""
        return None not in self.elements

    def indices(self, max_parallel: int | None) -> str:
        """Return the indices as sbatch --array takes them, with the throttle."""
        throttle = f"%{max_parallel}" if max_parallel is not None else ""
        return index_ranges(sorted(index for index in self.elements if index is not None)) + throttle


Place = tuple[Part | str, int | None]


def plan(elements: list[Element], states: Mapping[str, State], *, limit: int, first_number: int = 1) -> list[Part]:
    """Return the scripts for every element that has a run to do, stage after stage.

    states: where each run stands, by name of its configuration. limit: the most elements of one array.
    Left out are runs that follow a diverged one, as there is nothing to start from, and runs that follow one that trains
    outside the queue now, as no job can wait for it.
    """
    parts: list[Part] = []
    placed: dict[int, Place] = {}
    groups: dict[tuple[str, Shape, Part | str | None], list[tuple[Element, int | None]]] = {}
    stages = list(dict.fromkeys(element.stage.name for element in elements))
    for stage in stages:
        groups.clear()
        for element in elements:
            if element.stage.name != stage or not is_missing(element, states):
                continue
            before, index = _before(element, states, placed)
            groups.setdefault((stage, Shape.of(element.configs[0]), before), []).append((element, index))
        for (_, shape, before), members in groups.items():
            for numbered in _arrays(members, limit) if before is None else [{index: item for item, index in members}]:
                first = next(iter(numbered.values()))
                part = Part(f"{first_number + len(parts):03d}-{stage}", first.stage, shape, numbered, before)
                parts.append(part)
                placed |= {id(element): (part, index) for index, element in numbered.items()}
    return parts


def is_missing(element: Element, states: Mapping[str, State]) -> bool:
    """Whether an element has runs to do that nobody is doing, and that can start or wait for a job."""
    kinds = [states[config_name(config)].kind for config in element.configs]
    follows = [states[config_name(config)] for config in element.after.configs] if element.after else []
    return (
        any(kind not in RECORDED for kind in kinds)
        and not any(kind in IN_QUEUE for kind in kinds)
        and not any(before.kind == "diverged" or (before.kind in IN_QUEUE and before.job is None) for before in follows)
    )


def _before(
    element: Element, states: Mapping[str, State], placed: Mapping[int, Place]
) -> tuple[Part | str | None, int | None]:
    if element.after is None:
        return None, None
    if id(element.after) in placed:
        return placed[id(element.after)]
    state = states[config_name(element.after.configs[0])]
    return state.job if state.job is not None and state.kind in IN_QUEUE else (None, None)


def _arrays(members: list[tuple[Element, int | None]], limit: int) -> Iterator[dict[int | None, Element]]:
    for start in range(0, len(members), limit):
        chunk = [element for element, _ in members[start : start + limit]]
        yield {None: chunk[0]} if len(chunk) == 1 else dict(enumerate(chunk))
