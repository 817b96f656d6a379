"""The depth of a test run: ``$STRATALOG_TEST_DEPTH`` is *check*, *test* (the default) or *nightly*.

``make check`` runs the quick tests that need neither a JVM nor a server, with the first case of each table. It
skips the tests of ``tests/slower.txt``, which take more than 50 ms of processor time; ``python -m tests.durations
--slower`` writes that file from the last run of ``make test``. ``make test`` proves each guarantee once: it skips
tests marked ``nightly`` and runs ``n`` cases of tables marked ``sample(n)``. ``make nightly`` runs every case.
Constants for the length of an exploration use ``at_depth``, because processes that tests start inherit the
variable.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "STRATALOG_TEST_DEPTH"
DEPTH: Final = os.environ.get(VARIABLE, "test")
LEFT_OUT: Final = {
    "check": ("spark", "s3", "kafka", "slow", "nightly"),
    "test": ("kafka", "nightly"),
    "nightly": (),
}
"""The marks of tests that do not run, keyed by depth."""
SLOWER: Final = Path(__file__).with_name("slower.txt")
"""Tests that ``make check`` skips for their processor time, one per line, without their cases."""


def at_depth(*, test: int, nightly: int) -> int:
    """The count for this run; ``make check`` uses that of ``make test``."""
    return nightly if DEPTH == "nightly" else test


def selected(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that run at this depth, in their order."""
    left_out = LEFT_OUT[DEPTH]
    slower = set(SLOWER.read_text(encoding="utf-8").splitlines()) if DEPTH == "check" else set[str]()
    tables: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test not in slower and not any(item.get_closest_marker(mark) for mark in left_out):
            tables[test].append(item)
    kept = {item.nodeid for table in tables.values() for item in _sample(table)}
    return [item for item in items if item.nodeid in kept]


def _sample(table: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    mark = table[0].get_closest_marker("sample")
    if DEPTH == "check":
        most = 1
    elif DEPTH == "test" and mark is not None:
        most = mark.args[0]
    else:
        return table
    return evenly(table, most)


def evenly(cases: Sequence[pytest.Item], most: int) -> Sequence[pytest.Item]:
    """``most`` of the cases at equal distances, including the first and the last if there are at least two."""
    if len(cases) <= most or most == 1:
        return cases[:most]
    return [cases[round(nth * (len(cases) - 1) / (most - 1))] for nth in range(most)]
