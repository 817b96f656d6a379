"""A timestamp of the source is kept exactly, or the partition stops before its record."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stratalog.partitions.errors import InvalidCallError

pytest.importorskip("confluent_kafka")
MOST = 9_223_372_036_854_775


@pytest.mark.parametrize(
    ("stamp", "kept"),
    [
        (0, True),
        (-2, True),
        (MOST, True),
        (-MOST, True),
        (MOST + 1, False),
        (-MOST - 1, False),
        (1_700_000_000_000_000_000, False),
        (2**63 - 1, False),
        (-(2**63), False),
    ],
)
def test_a_timestamp_is_kept_or_refused_by_name(stamp: int, kept: bool) -> None:
    from stratalog.bridges.mirror.kafka_source import _Taken

    def message(offset: int, ms: int) -> SimpleNamespace:
        given = {"topic": "t", "partition": 3, "offset": offset, "timestamp": (1, ms), "error": None, "key": None}
        more = {"value": b"v", "headers": None, "leader_epoch": 0}
        return SimpleNamespace(**{name: lambda one=one: one for name, one in (given | more).items()})

    taken = _Taken()
    taken.add([message(6, 1), message(7, stamp), message(8, 1)])
    first, *rest = taken.reads()
    stamps = first.records.column("timestamp").cast("int64").to_pylist()
    if kept:
        assert (stamps, first.position, rest) == ([1000, stamp * 1000, 1000], 9, [])
        return
    assert (stamps, first.position) == ([1000], 7)
    (refused,) = rest
    assert isinstance(refused.error, InvalidCallError)
    assert "t-3" in str(refused.error)
    assert f"offset 7 has the timestamp {stamp} ms" in str(refused.error)
