"""Text with something to learn in it."""

from __future__ import annotations

import json
import random
from pathlib import Path

TEXT = (
    "the of and to in is was that for it with as on be at by this had not are but from or have an they "
    "which one you were her all she there would their we him been has when who will more no if out so "
    "said what up its about into than them can only other new some could time these two may then do first "
    "any my now such like our over man me even most made after also did"
)
WORDS = TEXT.split()


def sentences(seed: int, count: int) -> str:
    """Return text in which each word mostly decides the next one, so that there is something to learn."""
    draw = random.Random(seed)
    words, place = [], draw.randrange(len(WORDS))
    for _ in range(count):
        place = (place * 5 + draw.choice((1, 1, 1, 2, 7))) % len(WORDS)
        words.append(WORDS[place] + draw.choice(("", "", "", "", ",", ".")))
    return " ".join(words)


def write_records(path: Path, documents: int, *, words: int = 120, seed: int = 0) -> Path:
    """Write JSON lines in the format of The Pile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = (
        {"text": sentences(seed + number, words + number % 40), "meta": {"pile_set_name": "Test"}}
        for number in range(documents)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
