"""The number of requests of an operation that must wait for a previous request. No timing is ever asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.latency import OPERATIONS, Depth, Measured, latency_line, rounds_of, times_of
from stratalog.engine.replication import append, log_end
from stratalog.partitions.runner import Done

ROUNDS = {
    "append, acks=all, 3 replicas": 11,
    "append, acks=all, 1 replica": 8,
    "fetch of one file": 4,
    "commit of a group's offset": 16,
}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.what)
def test_an_operation_takes_the_round_trips_of_the_table(tmp_path: Path, operation: Measured) -> None:
    assert rounds_of(tmp_path, operation) == ROUNDS[operation.what]


@pytest.mark.parametrize(("operation", "rounds"), [(OPERATIONS[0], 17), (OPERATIONS[1], 12)])
def test_an_append_that_looks_at_the_whole_log_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Measured, rounds: int
) -> None:
    """The check for lost files happens once a minute."""
    recent = [True]

    def at_the_beginning(*_: object) -> bool:
        recent[0] = False
        return False

    def at_a_look(*_: object) -> bool:
        found, recent[0] = recent[0], True
        return found

    monkeypatch.setattr(append, "is_recent", at_the_beginning)
    monkeypatch.setattr(log_end, "is_recent", at_a_look)
    assert rounds_of(tmp_path, operation) == rounds


def test_requests_side_by_side_are_one_round_trip() -> None:
    depth = Depth()

    def ask(requests: int) -> int:
        depth.now += requests
        return requests

    assert list(depth.run(ask, [1, 3, 2])) == [Done(number, number) for number in (1, 3, 2)]
    assert depth.now == 3
    assert depth.probe(ask, [1], 0) == [Done(1, 1)]
    assert depth.now == 4


def test_a_line_has_the_times_behind_storage_that_answers_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.latency.ANSWER_S", 0.0)
    [first, second] = times_of(tmp_path, OPERATIONS[0], 2, turns=2)
    assert 0 < first <= second
    line = latency_line("an append", 11, (0.1, 0.2, 0.3, 0.4), 6)
    assert line.cells == ("an append", "11", "100 ms", "200 ms", "300 ms", "400 ms", "<= 6")
    assert len(line.cells) == len(line.headings)
