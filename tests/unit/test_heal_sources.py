"""The intact files that cover a range of offsets (``stratalog.engine.upkeep.healing.sources``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stratalog.engine.replicas.repair import Copy
from stratalog.engine.upkeep.healing.sources import cover


def copies(text: str) -> list[Copy]:
    """``"1:0-5 2:3-9"``: a copy on broker 1 with offsets ``[0, 5)``, and one on broker 2."""
    found: list[Any] = []
    for one in text.split():
        place, _, range_ = one.partition(":")
        start, _, end = range_.partition("-")
        found.append(SimpleNamespace(place=int(place), held=SimpleNamespace(start=int(start), end=int(end))))
    return found


def text_of(found: list[Copy]) -> str:
    return " ".join(f"{copy.place}:{copy.held.start}-{copy.held.end}" for copy in found)


@pytest.mark.parametrize(
    ("has", "expected", "holes"),
    [
        ("", "", [(2, 8)]),
        ("1:0-10", "1:0-10", []),
        ("1:0-4 1:4-8", "1:0-4 1:4-8", []),
        ("2:0-10 1:0-4", "1:0-4 2:0-10", []),
        ("1:3-5", "1:3-5", [(2, 3), (5, 8)]),
        ("1:0-4 2:6-20", "1:0-4 2:6-20", [(4, 6)]),
        ("1:8-12 2:0-2", "", [(2, 8)]),
        ("1:0-3 2:0-6 1:5-7", "1:0-3 2:0-6 1:5-7", [(7, 8)]),
    ],
)
def test_the_preferred_copies_that_hold_a_range_and_the_offsets_that_none_holds(
    has: str, expected: str, holes: list[tuple[int, int]]
) -> None:
    found, lacking = cover(copies(has), 2, 8, lambda copy: copy.place)
    assert (text_of(found), lacking) == (expected, holes)


def test_an_empty_range_needs_nothing() -> None:
    assert cover(copies("1:0-10"), 4, 4, lambda copy: copy.place) == ([], [])
