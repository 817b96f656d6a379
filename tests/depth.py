"""How much a run of the tests proves: ``$STRATALOG_TEST_DEPTH`` is *check*, *test* (the default) or *nightly*.

``make check`` takes what needs neither a JVM nor a server and is quick, and of each table of cases the first and
the last. ``make test`` proves each guarantee once: it leaves out tests marked ``nightly`` and takes ``n`` cases of
tables marked ``sample(n)``. ``make nightly`` takes every case. Constants that say how long a test explores ask
``at_depth``, since processes that tests start inherit the variable.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import pytest

VARIABLE: Final = "STRATALOG_TEST_DEPTH"
DEPTH: Final = os.environ.get(VARIABLE, "test")
LEFT_OUT: Final = {
    "check": ("spark", "s3", "kafka", "slow", "nightly"),
    "test": ("kafka", "nightly"),
    "nightly": (),
}
"""By depth, the marks of tests that do not run."""


def at_depth(*, test: int, nightly: int) -> int:
    """The count for this run; ``make check`` takes that of ``make test``."""
    return nightly if DEPTH == "nightly" else test


def selected(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items that run at this depth, in their order."""
    left_out = LEFT_OUT[DEPTH]
    tables: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in left_out):
            tables[item.nodeid.partition("[")[0]].append(item)
    kept = {item.nodeid for table in tables.values() for item in _sample(table)}
    return [item for item in items if item.nodeid in kept]


def _sample(table: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    mark = table[0].get_closest_marker("sample")
    if DEPTH == "check":
        most = 2
    elif DEPTH == "test" and mark is not None:
        most = mark.args[0]
    else:
        return table
    return evenly(table, most)


def evenly(cases: Sequence[pytest.Item], most: int) -> Sequence[pytest.Item]:
    """``most`` of the cases at even distances, the first and the last among them where it is two or more."""
    if len(cases) <= most or most == 1:
        return cases[:most]
    return [cases[round(nth * (len(cases) - 1) / (most - 1))] for nth in range(most)]
