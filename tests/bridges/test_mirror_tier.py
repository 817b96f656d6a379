"""A mirror that reads history from the tier of real brokers equals a mirror that reads it from the brokers, and
sends them no requests.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.mirror import bulk, catch_up, side_by_side
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.replication import append as replication_append
from tests.bridges.kafka_tier_data import MAIN, in_memory, opened, real, segment_of
from tests.bridges.mirror_tier_harness import BULK, ONCE, Brokers, run, starts, whole
from tests.bridges.test_mirror_in_bulk import TwoTasks
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

pytestmark = real


@pytest.mark.sample(3)
@pytest.mark.parametrize("options", [ONCE, BULK], ids=["threads", "tasks"])
@pytest.mark.parametrize("topic", ["plain", "txn", "epochs", "unclean", "delete-records", "times-mixed"])
@pytest.mark.slow
def test_history_comes_from_segments_and_the_rest_through_the_brokers(
    topic: str, options: MirrorOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several parts in each segment."""
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, brokers = LiveCluster(tmp_path), Brokers(topic)
    source = TieredSource(opened(MAIN, log_starts=starts(topic)), brokers)
    report = run(live, source, topic, options)
    records = sum(len(log.records) for log in brokers.logs)
    clear = [
        (task.partition, task.piece.start, task.piece.end)
        for task in source._tier.plan(topic, isolation="read_committed").tasks  # type: ignore[union-attr]
    ]
    in_tier = sum(
        any(p == number and low <= offset < high for p, low, high in clear)
        for number, log in enumerate(brokers.logs)
        for offset in log.records
    )
    assert report.totals["from_tier"] == in_tier
    assert brokers.sent == records - in_tier
    assert report.totals["records"] == records
    assert ("tasks" in report.totals) == (options is BULK)
    if options is BULK:
        assert int(report.totals["tasks"] or 0) > len(brokers.logs) * 3, "several in a partition"
    again = run(live, whole(topic), topic, options)
    assert (again.totals["records"], again.totals["from_tier"]) == (0, 0)


def test_unclear_ranges_go_through_the_brokers_and_the_report_says_which_and_why(tmp_path: Path) -> None:
    live, brokers = LiveCluster(tmp_path), Brokers("txn")
    report = run(live, TieredSource(opened(MAIN), brokers), "txn")
    (note,) = [note for note in report.notes if "txn-0" in note]
    assert note.startswith("through the brokers: txn-0 offsets [1033, 1594): the transaction of producer")
    assert brokers.sent


DAMAGE = {
    "log": ("log", lambda data: data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:], "CORRUPT"),
    "gone": ("log", lambda _: None, "not in the storage"),
    "cut off": ("log", lambda data: data[:30_000], "bytes"),
    "index": ("transaction", lambda data: b"", "lists no transaction for the abort"),
    "snapshot": ("producerSnapshot", lambda data: data[:-1] + b"\xff", ""),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("options", [ONCE, BULK], ids=["threads", "tasks"])
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.slow
def test_a_damaged_or_missing_object_is_read_through_the_brokers(
    what: str, options: MirrorOptions, tmp_path: Path
) -> None:
    kind, change, found = DAMAGE[what]
    names = opened(MAIN)
    name = names.layout.objects(segment_of(names, "txn", 1))[kind]
    tier = in_memory(MAIN, lambda one, data: change(data) if one == name else data, "txn-")
    brokers = Brokers("txn")
    report = run(LiveCluster(tmp_path), TieredSource(tier, brokers), "txn", options)
    assert int(report.totals["from_tier"] or 0) > 0
    if found:
        assert any(
            note.startswith("through the brokers: txn-0 offsets [") and found in note for note in report.notes
        )


def test_a_topic_without_a_tier_is_read_through_the_brokers(tmp_path: Path) -> None:
    brokers = Brokers("plain")
    tier = in_memory(MAIN, lambda name, data: data, "txn-")
    for one in [*tier.states.segments]:
        if tier.states.segments[one].topic == "plain":
            del tier.states.segments[one]
    report = run(LiveCluster(tmp_path), TieredSource(tier, brokers), "plain")
    assert report.totals["from_tier"] == 0
    assert any("through the brokers: plain-1: topic 'plain' has no segments" in note for note in report.notes)


def test_a_mirror_of_another_history_is_refused_as_by_the_brokers(tmp_path: Path) -> None:
    """The mirror has records of the leader that lost the unclean election."""
    live, brokers = LiveCluster(tmp_path), Brokers("unclean")
    log = brokers.logs[0]
    kept = dict(log.records), dict(log.epochs), log.end
    log.records = {offset: one for offset, one in log.records.items() if offset < 500}
    log.epochs, log.end, log.epoch = {0: 0}, 500, 0
    for offset in range(500, 520):
        log.records[offset] = SourceRecord(offset, 1, b"lost", b"lost", (), 0)
    log.end = 520
    with_ports(mirror, ports_of(live.cluster))(brokers, ["unclean"], ONCE).raise_for_failures()
    log.records, log.epochs, log.end = kept
    log.epoch = 2
    report = with_ports(mirror, ports_of(live.cluster).with_tasks(TwoTasks()))(
        TieredSource(opened(MAIN), brokers), ["unclean"], BULK
    )
    assert [failure.code for failure in report.failures] == ["LOG_TRUNCATION"]


class AtOnce(LocalTasks):
    processes = 3


@pytest.mark.parametrize("topic", ["plain", "epochs"])
def test_a_task_counts_what_it_has_appended_if_the_next_one_is_faster(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next task appends before this task looks at the log again, so the log then knows only the later append.
    Records of ``epochs`` may have a later leader epoch, too.
    """
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    commit = replication_append._commit

    def slow(staged: Any, name: Any, attempt: Any) -> bool:
        done = commit(staged, name, attempt)
        sleep(0.1)  # the other tasks look every 0.05 s
        return done

    monkeypatch.setattr(replication_append, "_commit", slow)
    live, source = LiveCluster(tmp_path), whole(topic)
    ports = ports_of(live.cluster).with_tasks(AtOnce(24))
    report = with_ports(mirror, ports)(source, [topic], BULK).raise_for_failures()
    records = sum(len(log.records) for log in Brokers(topic).logs)
    assert report.totals["records"] == records
    assert not [note for note in report.notes if "counts" in note]
    with_ports(compare, ports_of(live.cluster))(Brokers(topic), [topic]).raise_for_failures()


def test_tasks_that_run_at_once_append_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 8000)
    live = LiveCluster(tmp_path)
    ports = ports_of(live.cluster).with_tasks(AtOnce(24))
    report = with_ports(mirror, ports)(whole("plain"), ["plain"], BULK).raise_for_failures()
    assert int(report.totals["tasks"] or 0) > 24
    with_ports(compare, ports_of(live.cluster))(Brokers("plain"), ["plain"]).raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize("at", range(0, 12, 3))
@pytest.mark.slow
def test_a_mirror_killed_at_any_append_makes_no_second_copy(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes before an append, after it, or before the acknowledgement."""
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, append = LiveCluster(tmp_path), bulk.append
    for after in (False, True):
        calls = iter(range(1000))

        def dying(*given: Any, after: bool = after, calls: Any = calls, **more: Any) -> Any:
            if next(calls) != at:
                return append(*given, **more)
            if after:
                append(*given, **more)
            raise KeyboardInterrupt

        monkeypatch.setattr(bulk, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            with_ports(mirror, ports_of(live.cluster).with_tasks(TwoTasks()))(whole("plain"), ["plain"], BULK)
    monkeypatch.setattr(bulk, "append", append)
    run(live, whole("plain"), "plain")


@pytest.mark.parametrize(("cores", "tier", "readers"), [(2, True, 2), (1, True, 1), (64, True, 4), (2, False, 4)])
def test_a_tier_has_no_more_readers_than_cores(
    cores: int, tier: bool, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader decodes all the time, and has a partition's records in memory."""
    monkeypatch.setattr(catch_up.os, "cpu_count", lambda: cores)
    assert catch_up._readers(MirrorOptions(tier=tier)) == readers


@pytest.mark.parametrize("appended", [False, True])
def test_the_driver_continues_after_a_lost_task_and_names_what_it_does_not_count(
    appended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, read = LiveCluster(tmp_path), side_by_side.mirror_part
    calls = iter(range(1000))

    def second_fails(work: Any) -> Any:
        if next(calls) == 2:
            if appended:
                read(work)
            raise side_by_side.RetriableError("the executor is gone")
        return read(work)

    monkeypatch.setattr(side_by_side, "mirror_part", second_fails)
    report = run(live, whole("plain"), "plain")
    assert report.totals["lag"] == 0
    found = [
        int(said[2]) - int(said[1])
        for note in report.notes
        if (
            said := re.match(
                r"plain-0: offsets \[(\d+), (\d+)\) are in the log, but not in the counts.*gone", note
            )
        )
    ]
    assert (len(found) == 1) == appended
    assert int(report.totals["from_tier"] or 0) + sum(found) == 2430 + 2040


def test_two_mirrors_at_once_make_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, append, draw = LiveCluster(tmp_path), bulk.append, random.Random(1)
    other = ports_of(live.driver())

    def beside(*given: Any, **more: Any) -> Any:
        if draw.random() < 0.2:
            monkeypatch.setattr(bulk, "append", append)
            with_ports(mirror, other)(Brokers("plain"), ["plain"], MirrorOptions()).raise_for_failures()
        return append(*given, **more)

    monkeypatch.setattr(bulk, "append", beside)
    run(live, whole("plain"), "plain")


def test_a_renamed_topic_is_mirrored_from_the_tier(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    options = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True, rename={"plain": "rides"})
    ports = ports_of(live.cluster).with_tasks(TwoTasks())
    report = with_ports(mirror, ports)(whole("plain"), ["plain"], options).raise_for_failures()
    assert int(report.totals["from_tier"] or 0) == 2430 + 2040
    with_ports(compare, ports)(Brokers("plain"), ["plain"]).raise_for_failures()
