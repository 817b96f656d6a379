"""The columns of both sides of a comparison differ exactly if single records would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stratalog.bridges.mirror.compare import compare, records_of
from stratalog.bridges.mirror.compared import RANGE, Compared
from stratalog.bridges.mirror.source import SourceRecord
from tests.bridges.memory_source import MemorySource, batch_of
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

RECORD = SourceRecord(0, 5, b"key", b"value", [("h", b"1"), ("h", None)], 3)
OTHERS = {
    "a later timestamp": RECORD._replace(timestamp_ms=6),
    "no timestamp": RECORD._replace(timestamp_ms=None),
    "another key": RECORD._replace(key=b"kez"),
    "an empty key": RECORD._replace(key=b""),
    "no key": RECORD._replace(key=None),
    "bytes that move from key to value": RECORD._replace(key=b"ke", value=b"yvalue"),
    "an empty value": RECORD._replace(value=b""),
    "no value": RECORD._replace(value=None),
    "no headers": RECORD._replace(headers=[]),
    "headers in another order": RECORD._replace(headers=[("h", None), ("h", b"1")]),
    "a header of another name": RECORD._replace(headers=[("i", b"1"), ("h", None)]),
    "a header that is empty and not null": RECORD._replace(headers=[("h", b"1"), ("h", b"")]),
}


def compared(there: Sequence[SourceRecord], here: Sequence[SourceRecord], *ends: int, end: int = 1) -> Compared:
    """Compare in pieces with these ends."""
    found, start = Compared(("t", 0), 0, end), 0
    for until in (*ends, end):
        sides = [[one for one in side if start <= one.offset < until] for side in (there, here)]
        found.add(batch_of(sides[0]), batch_of(sides[1]))
        start = until
    return found


@pytest.mark.parametrize("how", OTHERS)
def test_a_record_is_another_one_by_any_of_its_fields(how: str) -> None:
    found = compared([RECORD], [OTHERS[how]])
    assert (found.differences, found.named) == (1, ["0 is another record"])
    assert found.digest != compared([RECORD], [RECORD]).digest


def test_the_leader_epoch_is_no_part_of_it_and_no_headers_are_as_none() -> None:
    found = compared([RECORD._replace(leader_epoch=9)], [RECORD])
    assert found.equal
    for bare in ((), None):
        assert compared([OTHERS["no headers"]], [RECORD._replace(headers=bare)]).equal  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_in_whatever_pieces_they_come_the_same_offsets_differ(seed: int) -> None:
    chance = random.Random(seed)
    end, others = 3 * RANGE, list(OTHERS.values())
    offsets = sorted(chance.sample(range(end), 2000))
    sides: tuple[list[SourceRecord], list[SourceRecord]] = ([], [])
    wanted: dict[int, str] = {}
    for offset in offsets:
        one = chance.choice([RECORD, *others])._replace(offset=offset)
        kind = chance.random() if RANGE <= offset < 2 * RANGE else 1
        if kind < 0.01:
            wanted[offset] = "is only in the source"
            sides[0].append(one)
        elif kind < 0.02:
            wanted[offset] = "is only here"
            sides[1].append(one)
        else:
            sides[0].append(one)
            if kind < 0.03:
                wanted[offset] = "is another record"
                one = one._replace(key=b"another")
            sides[1].append(one)
    whole = compared(*sides, end=end)
    pieces = compared(*sides, *sorted(chance.sample(range(end), 50)), end=end)
    for found in (whole, pieces):
        assert found.named == [f"{offset} {how}" for offset, how in wanted.items()][:10]
        assert found.differences == len(wanted)
        assert (found.there, found.here) == (len(sides[0]), len(sides[1]))
        assert (found.ranges, found.equal_ranges) == (3, 2)
        assert found.digest == whole.digest


def test_typed_records_are_compared_as_the_bytes_that_an_export_makes_of_them(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), MemorySource()
    live.cluster.topics.create(
        "t", partitions=1, replication_factor=3, key="STRING", value="id LONG, at TIMESTAMP"
    )
    rows = [{"key": "a", "id": 1, "at": None}, {"key": None, "id": 2, "at": datetime(2026, 1, 2, tzinfo=UTC)}]
    live.cluster.produce("t", rows, key="key").raise_for_failures()
    log = source.logs[0]
    log.records = {one.offset: one for one in records_of(live.cluster.fetch("t", 0, 0).records)}
    log.end = 2
    report = with_ports(compare, ports_of(live.cluster))(source, ["t"]).raise_for_failures()
    assert report.totals == {"there": 2, "here": 2, "differences": 0}
    log.records[1] = log.records[1]._replace(value=b"{}")
    (failure,) = with_ports(compare, ports_of(live.cluster))(source, ["t"]).failures
    assert failure.message == "offsets that differ: 1 is another record"
