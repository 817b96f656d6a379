"""Tiered topics (KIP-405, KIP-1005): the records that leave the brokers, and the bounds of both tiers."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Found, Got, Log, Trace

pytestmark = pytest.mark.kafka

TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
}


def place(log: Log) -> Trace:
    """The start or the end of the log, the local log and the remote log."""
    return [log.list_offsets("t", at) for at in (At.EARLIEST, At.EARLIEST_LOCAL, At.LATEST_TIERED, At.LATEST)]


def fill(
    log: Log, until: tuple[At, int] = (At.LATEST_TIERED, 2), since_ms: int = LATER_MS, **configs: str
) -> None:
    """Append three records in sealed segments, which are tiered, and one in the active segment."""
    changed = {key.replace("_", "."): value for key, value in configs.items()}
    log.create_topic("t", configs={**TIERED, **changed})
    for number, value in enumerate("abcd"):
        log.append("t", [value], times_ms=[since_ms + number * 10_000])
        log.pass_time(10_000 if number < 3 else 0)
    log.tier("t", until)


def test_nothing_is_tiered_before_a_segment_is_sealed(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t", configs=TIERED)
        trace = place(log)
        log.append("t", ["a"])
        return trace + place(log)

    assert both.same(script) == [{0: 0}, {0: 0}, {0: None}, {0: 0}, {0: 0}, {0: 0}, {0: None}, {0: 1}]


def test_the_earliest_pending_upload_is_where_the_remote_log_ends(both: Both) -> None:
    """KIP-1023."""

    def script(log: Log) -> Trace:
        fill(log)
        return [log.list_offsets("t", At.EARLIEST_PENDING_UPLOAD)]

    assert both.same(script) == [{0: 3}]


def test_local_retention_leaves_the_active_segment_which_is_nowhere_else(both: Both) -> None:
    def script(log: Log) -> Trace:
        fill(log)
        return [*place(log), log.read("t"), log.read("t", start=3)]

    everything = {0: "a", 1: "b", 2: "c", 3: "d"}
    assert both.same(script) == [{0: 0}, {0: 3}, {0: 2}, {0: 4}, Got(everything, 4), Got({3: "d"}, 4)]


def test_an_active_segment_too_old_for_the_brokers_is_sealed_and_leaves_them(both: Both) -> None:
    """The local log is then empty, and starts at the log end."""

    def script(log: Log) -> Trace:
        fill(log, (At.EARLIEST_LOCAL, 4), since_ms=1, local_retention_ms="1")
        return [*place(log), log.read("t")]

    assert both.same(script) == [{0: 0}, {0: 4}, {0: 3}, {0: 4}, Got({0: "a", 1: "b", 2: "c", 3: "d"}, 4)]


def test_an_active_segment_that_has_expired_leaves_both_tiers(both: Both) -> None:
    def script(log: Log) -> Trace:
        fill(log, (At.EARLIEST, 4), since_ms=1, retention_ms="1", local_retention_ms="-2")
        return [log.list_offsets("t", at) for at in (At.EARLIEST, At.EARLIEST_LOCAL, At.LATEST)]

    assert both.same(script) == [{0: 4}, {0: 4}, {0: 4}]


def test_if_only_its_size_asks_for_it_the_last_file_stays_on_the_brokers(both: Both) -> None:
    """Readers at the end of the log need the last file. With a limit of 0, Kafka seals the active segment, uploads
    it, and then drops it, too.
    """

    def script(log: Log) -> Trace:
        fill(log, (At.EARLIEST_LOCAL, 4), local_retention_bytes="0")
        return place(log)

    ours, kafka = both.each(script)
    assert ours == [{0: 0}, {0: 3}, {0: 2}, {0: 4}]
    assert kafka == [{0: 0}, {0: 4}, {0: 3}, {0: 4}]


def test_times_are_found_in_both_tiers(both: Both) -> None:
    def script(log: Log) -> Trace:
        fill(log)
        asked = (-1, 0, 1, 10_000, 20_001, 30_000, 30_001)
        return [log.list_offsets("t", LATER_MS + time) for time in asked]

    def found(offset: int) -> dict[int, Found]:
        return {0: Found(offset, LATER_MS + offset * 10_000)}

    assert both.same(script) == [found(0), found(0), found(1), found(1), found(3), found(3), {0: None}]


@pytest.mark.parametrize("start", [1, 3, 4])
def test_records_are_deleted_from_both_tiers(both: Both, start: int) -> None:
    """The local log starts no lower than the log."""

    def script(log: Log) -> Trace:
        fill(log)
        trace: Trace = [log.delete_records("t", {0: start})]
        trace += [log.list_offsets("t", at) for at in (At.EARLIEST, At.EARLIEST_LOCAL, At.LATEST)]
        return [*trace, log.read("t", start - 1), log.read("t", start), log.list_offsets("t", LATER_MS)]

    left = {offset: value for offset, value in enumerate("abcd") if offset >= start}
    assert both.same(script) == [
        {0: start},
        {0: start},
        {0: max(3, start)},
        {0: 4},
        "OFFSET_OUT_OF_RANGE",
        Got(left, 4),
        {0: Found(start, LATER_MS + start * 10_000) if left else None},
    ]
