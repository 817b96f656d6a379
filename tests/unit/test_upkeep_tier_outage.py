"""The remote tier is away, slow, full or refuses requests, and everything else continues.

KIP-405, "Thread Pools": "When the remote storage becoming temporarily unavailable (up to several hours) or having
high latency (up to minutes), Kafka should still be able to operate normally."
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import (
    OutcomeUnknownError,
    StorageError,
    StoreTimeoutError,
)
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.cluster_harness import codes, rows_of, the_failure
from tests.unit.tail_harness import texts
from tests.unit.tier_harness import Call, RemoteFaults, refused, states

HOUR_MS = 3_600_000


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteFaults:
    return RemoteFaults(tmp_path, monkeypatch)


def column(report: Report, name: str, partition: int = 0) -> int:
    return next(int(str(row[name])) for row in report.rows if row["partition"] == partition)


def reasons(report: Report) -> dict[str, str]:
    """The failed topics and partitions, with the reasons. (A failure to write a restore point is also
    reported.)"""
    return {failure.item: failure.message for failure in report.failures if failure.item != "restore point"}


def local_files(live: RemoteFaults) -> dict[int, list[str]]:
    return {broker: sorted(live.data(broker)) for broker in (1, 2, 3)}


# ---------------------------------------------------------------------------------- an outage


def test_appends_replication_elections_and_local_reads_continue(live: RemoteFaults) -> None:
    live.tiered(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    live.down = refused
    live.append(["c"], acks="leader").raise_for_failures()
    assert reasons(live.cluster.replicate(check=False)) == {"t": "the remote tier cannot be reached"}
    live.cluster.elect("t", [0], leader=live.followers()[0]).raise_for_failures()
    live.cluster.topics.create(
        "fresh", partitions=1, replication_factor=1, configs={"remote.storage.enable": "true"}
    )
    live.append(["d"], "fresh").raise_for_failures()
    assert live.log(live.leader()).high_watermark == 2
    assert [live.log(broker).log_end for broker in (1, 2, 3)] == [2, 2, 2]


@pytest.mark.slow
def test_only_a_follower_that_has_to_start_in_the_remote_waits_for_it(live: RemoteFaults) -> None:
    """KIP-1023: it gets a retriable error; the others are served."""
    live.tiered("cold")
    live.tiered("hot")
    live.fill("abc", "cold")
    live.fill("abc", "hot")
    live.tier_and_drop("cold")
    live.wipe(3)
    live.down = refused
    live.cluster.bootstrap(3, check=False)
    report = live.cluster.replicate(check=False)
    assert codes(report) == {"REMOTE_NOT_READY": 1, "KAFKA_STORAGE_ERROR": 2}
    assert live.isr("hot") == {1, 2, 3}
    assert live.isr("cold") == {1, 2}
    live.down = None
    live.cluster.replicate().raise_for_failures()
    assert live.isr("cold") == {1, 2, 3}


def test_nothing_leaves_the_brokers_that_is_not_seen_in_the_remote(live: RemoteFaults) -> None:
    """Retain names the topic that it could not check, and does its work on the others."""
    live.tiered()
    live.topic("local", segment_bytes="1", retention_bytes="1", file_delete_delay_ms="0")
    live.fill("abcd")
    live.fill("abcd", "local")
    live.cluster.tier().raise_for_failures()
    held = local_files(live)
    live.down = refused
    for _ in range(3):
        report = live.cluster.retain(check=False)
        assert {failure.item for failure in report.failures} == {"t"}
        live.clock.advance_ms(HOUR_MS)
    assert local_files(live) == held
    assert live.log(1, "local").local_start == 3
    live.down = None
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert live.log(1).local_start == 3


def test_the_backlog_its_age_and_its_bytes_are_visible_while_it_lasts(live: RemoteFaults) -> None:
    """The backlog is in the report of each tier run, and in describe, which needs no answer of the remote tier for
    it.
    """
    live.tiered()
    live.fill("ab")
    live.cluster.tier().raise_for_failures()
    live.fill("cde")
    backlog = sum(len(data) for name, data in live.data(1).items() if int(name[:20]) >= 2)
    live.down = refused
    assert not live.cluster.tier(check=False).ok
    live.clock.advance_ms(3 * HOUR_MS)
    report = live.cluster.tier(check=False)
    assert reasons(report) == {"t": "the remote tier cannot be reached"}
    assert (column(report, "backlog_bytes"), report.totals["backlog_bytes"]) == (backlog, backlog)
    assert column(report, "backlog_ms") == pytest.approx(3 * HOUR_MS, abs=60_000)
    assert states(report) == {("t", 0): (2, 3 * HOUR_MS)}
    found = live.cluster.describe()
    assert codes(found) == {"KAFKA_STORAGE_ERROR": 1}
    leader = next(row for row in found.rows if row["role"] == "leader")
    assert (leader["copy_lag_bytes"], leader["copy_attempts"]) == (backlog, 2)
    assert (leader["copy_error"], leader["copy_failing_ms"]) == ("KAFKA_STORAGE_ERROR", 3 * HOUR_MS)
    live.down = None
    live.cluster.tier().raise_for_failures()
    after = live.cluster.describe().raise_for_failures()
    assert {(row["copy_lag_bytes"], row["copy_error"], row["copy_attempts"]) for row in after.rows} == {
        (0, None, 0)
    }


def test_a_topic_that_was_never_tiered_shows_its_whole_log_as_backlog(live: RemoteFaults) -> None:
    live.tiered()
    live.fill("abc")
    live.down = refused
    report = live.cluster.tier(check=False)
    assert column(report, "backlog_bytes") == sum(map(len, live.data(1).values()))


def test_afterwards_the_backlog_drains_from_the_earliest_on_and_starves_no_fresh_partition(
    live: RemoteFaults,
) -> None:
    """The order of work: the partition that is due longest comes first, then one segment of each in turn."""
    live.tiered("old")
    live.down = refused
    live.fill("abcd", "old")
    live.cluster.tier(check=False)
    live.clock.advance_ms(HOUR_MS)
    live.tiered("new")
    live.fill("ef", "new")
    live.down = None
    order: list[tuple[str, int]] = []

    def note(what: str, name: str, call: Call) -> object:
        if what == "stage":
            folder, _, file = name.split("/")
            order.append((folder[:3], int(file[:20])))
        return call()

    live.on_remote = note
    report = live.in_turn().tier(due=True).raise_for_failures()
    assert [base for topic, base in order if topic == "old"] == [0, 1, 2, 3]
    assert order[:4] == [("new", 0), ("old", 0), ("new", 1), ("old", 1)], "the new one is due since ever"
    assert report.totals["backlog_bytes"] == 0


@pytest.mark.slow
def test_a_remote_tier_that_is_down_is_asked_at_growing_intervals_up_to_the_maximum(live: RemoteFaults) -> None:
    """Two hours of ``--every``: not one run per second, and the first run afterwards drains everything."""
    live.tiered(partitions=3)
    live.append({n: ["x"] for n in range(3)}).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.append({n: ["y"] for n in range(3)}).raise_for_failures()
    asked: list[int] = []

    def down() -> None:
        asked.append(live.clock.now_ms())
        refused()

    live.down = down
    runs, ends = 0, live.clock.now_ms() + 2 * HOUR_MS
    while live.clock.now_ms() < ends:
        report = live.cluster.tier(due=True, check=False)
        live.clock.advance_ms(max(100, int(str(report.totals["next_ms"]))))
        runs += 1
    assert 240 <= runs < 1000
    assert max(later - earlier for earlier, later in pairwise(asked)) <= 30_000
    live.down = None
    live.clock.advance_ms(30_000)
    live.cluster.tier(due=True).raise_for_failures()
    assert live.remote_ends() == {0: 2, 1: 2, 2: 2}


# --------------------------------------------------------------------------- other misfortunes


def test_an_answer_lost_after_success_costs_a_look_and_no_second_copy(live: RemoteFaults) -> None:
    live.tiered()
    live.fill("ab")
    lost: list[str] = []

    def lose(what: str, name: str, call: Call) -> object:
        done = call()
        if what == "commit" and not lost:
            lost.append(name)
            raise OutcomeUnknownError("no answer; read before you retry")
        return done

    live.on_remote = lose
    report = live.cluster.tier(check=False)
    assert codes(report) == {"OUTCOME_UNKNOWN": 1}
    report = live.cluster.tier().raise_for_failures()
    assert live.remote_ends() == {0: 2}
    assert column(report, "uploaded_files") >= 1
    live.cluster.verify().raise_for_failures()


@pytest.mark.parametrize(
    "error",
    [
        StorageError("cannot create s3://b/t/0/x: 503 SlowDown"),
        StoreTimeoutError("no answer in time"),
        StorageError("cannot create s3://b/t/0/x: 403 InvalidAccessKeyId"),
        StorageError("cannot create s3://b/t/0/x: 403 QuotaExceeded"),
    ],
    ids=["throttled", "slow", "wrong credential", "full quota"],
)
@pytest.mark.slow
def test_a_remote_that_takes_no_writes_is_one_failure_of_each_partition_and_loses_nothing(
    live: RemoteFaults, error: StorageError
) -> None:
    live.tiered(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()

    def refuse(what: str, name: str, call: Call) -> object:
        if what in ("stage", "commit", "create"):
            raise error
        return call()

    live.on_remote = refuse
    report = live.cluster.tier(check=False)
    assert reasons(report) == {"t-0": str(error), "t-1": str(error)}
    assert {failure.code for failure in report.failures} == {error.code}
    for _ in range(2):
        live.cluster.retain()
    live.on_remote = lambda what, name, call: call()
    live.cluster.tier().raise_for_failures()
    assert live.remote_ends() == {0: 1, 1: 1}
    assert live.read() == {0: ["a"], 1: ["b"]}


@pytest.mark.slow
def test_one_bad_partition_among_many_stops_no_other_and_keeps_its_state(live: RemoteFaults) -> None:
    many = 200
    live.tiered(partitions=many, copies=1)
    live.append({n: ["x"] for n in range(many)}, acks="leader").raise_for_failures()
    live.cluster.replicate().raise_for_failures()

    def refuse(what: str, name: str, call: Call) -> object:
        if what == "stage" and name.split("/")[1] == "7":
            raise StorageError("a bad sector")
        return call()

    live.on_remote = refuse
    for attempt in range(1, 4):
        report = live.cluster.tier(check=False)
        assert codes(report) == {"KAFKA_STORAGE_ERROR": 1}
        assert states(report)["t", 7] == (attempt, 1000 * (attempt - 1))
        assert len(live.remote_ends()) == many - 1
        live.clock.advance_ms(1000)
    live.clock.advance_ms(4000)
    assert [row["partition"] for row in live.cluster.tier(due=True, check=False).rows] == [7]


def test_a_table_that_cannot_be_committed_to_leaves_files_that_the_next_run_takes(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store accepts files, but the table refuses: there is one failure, of the topic, and every partition is
    retried.
    """
    live.tiered(partitions=2)
    live.tiered("u")
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    live.fill("c", "u")
    commits = DeltaTopicTable.commit

    def commit(table: DeltaTopicTable, *args: object) -> object:
        if table.topic == "t":
            raise StorageError("other writers were faster")
        return commits(table, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTopicTable, "commit", commit)
        report = live.cluster.tier(check=False)
    assert the_failure(report) == "t: KAFKA_STORAGE_ERROR: other writers were faster"
    assert {key: attempts for key, (attempts, _) in states(report).items()} == {
        ("t", 0): 1,
        ("t", 1): 1,
        ("u", 0): 0,
    }
    assert rows_of(live.cluster.tier("t"), "uploaded_files", "uploaded_bytes") == [(1, 0), (1, 0)]


def test_a_tail_begins_and_continues_with_what_the_leaders_hold(live: RemoteFaults) -> None:
    """A tail can begin at an offset, at either end, or a number of records before the end; it cannot have remote
    records.
    """
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    live.fill("d")
    local = live.log(live.leader()).local_start
    assert local == 2
    live.down = refused
    tails: list[tuple[dict[str, Any], list[str]]] = [
        ({"start": local}, ["c", "d"]),
        ({"start": "earliest-local"}, ["c", "d"]),
        ({"last": 1}, ["d"]),
        ({"start": "latest"}, []),
    ]
    for asked, found in tails:
        assert texts(live.driver().tail("t", follow=False, **asked)) == found
    for asked in ({"last": 3}, {"start": "last-tiered"}):
        with pytest.raises(StorageError, match="needs the remote tier"):
            live.driver().tail("t", follow=False, **asked)
