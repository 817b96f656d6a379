"""Fetch: small ranges from either tier, in this process (Kafka's Fetch; KIP-405, "Thread Pools")."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stratalog.engine.driver.fetching import LOCAL_THREADS, REMOTE_THREADS, Fetching
from stratalog.engine.reading.fetch import Fetched
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import (
    InvalidCallError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RemoteObjectMissingError,
    StorageError,
    StoreTimeoutError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.runner import Done, Failed
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    """``t`` has two partitions: of each, [0, 6) is tiered, and the leader holds [5, 8); one record per file."""
    made = LiveCluster(tmp_path, through=faults.wrap)
    made.tiered(partitions=2)
    for number in range(6):
        made.append({0: [f"a{number}"], 1: [f"b{number}"]}, at_ms=number).raise_for_failures()
    made.cluster.tier().raise_for_failures()
    made.cluster.retain().raise_for_failures()
    made.append({0: ["a6", "a7"], 1: ["b6", "b7"]}).raise_for_failures()
    assert [made.log(made.leader(partition=p), partition=p).local_start for p in (0, 1)] == [5, 5]
    return made


def values(fetched: Fetched) -> list[str]:
    """The values, whose offsets must be right."""
    offsets = fetched.records.column("offset").to_pylist()
    assert offsets == list(range(fetched.next_offset - len(offsets), fetched.next_offset))
    return [value.decode() for value in fetched.records.column("value").to_pylist()]


def test_a_log_is_read_through_by_going_on_at_the_next_offset(live: LiveCluster) -> None:
    found: list[str] = []
    tiers: list[bool] = []
    offset = 0
    while (fetched := live.cluster.fetch("t", 1, offset)).records.num_rows:
        found += values(fetched)
        tiers.append(fetched.remote)
        assert (fetched.log_start, fetched.high_watermark) == (0, 8)
        offset = fetched.next_offset
    assert found == [f"b{number}" for number in range(8)]
    assert tiers == [True, False]
    assert fetched.records.schema.names == ["partition", "offset", "timestamp", "key", "value", "headers"]


@pytest.mark.parametrize("offset", [0, 3, 4, 5, 6, 7])
def test_a_fetch_returns_at_least_one_record_however_small_the_bound(live: LiveCluster, offset: int) -> None:
    """KIP-74: "the first message is returned even if it is larger than the limit"."""
    fetched = live.cluster.fetch("t", 0, offset, max_bytes=1)
    assert (values(fetched), fetched.next_offset) == ([f"a{offset}"], offset + 1)


def test_the_records_of_a_fetch_take_no_more_memory_than_wanted(live: LiveCluster) -> None:
    live.append([f"long {number:050}" for number in range(100)]).raise_for_failures()
    one = live.cluster.fetch("t", 0, 8, max_bytes=1).records.nbytes
    some = live.cluster.fetch("t", 0, 8, max_bytes=10 * one)
    assert one < some.records.nbytes <= 10 * one
    assert 5 <= some.records.num_rows < 100
    more = live.cluster.fetch("t", 0, some.next_offset, max_bytes=10**6)
    assert (more.records.column("offset")[0].as_py(), more.next_offset) == (some.next_offset, 108)


def test_a_fetch_at_the_high_watermark_returns_nothing_yet(live: LiveCluster) -> None:
    live.append(["unseen"], acks="leader").raise_for_failures()
    fetched = live.cluster.fetch("t", 0, 8)
    assert (fetched.records.num_rows, fetched.next_offset, fetched.high_watermark) == (0, 8, 8)


@pytest.mark.parametrize("offset", [-1, 9, 100])
def test_outside_the_log_the_offset_is_out_of_range(live: LiveCluster, offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=rf"t-0: offset {offset} is not in \[0, 8\]"):
        live.cluster.fetch("t", 0, offset)


def test_a_fetch_may_wait_for_ever(live: LiveCluster) -> None:
    assert live.cluster.fetch("t", 0, 0, timeout_s=float("inf")).next_offset > 0


def test_wrong_calls_are_refused(live: LiveCluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="nobody"):
        live.cluster.fetch("nobody", 0, 0)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 2"):
        live.cluster.fetch("t", 2, 0)
    with pytest.raises(InvalidCallError, match="max_bytes = 0"):
        live.cluster.fetch("t", 0, 0, max_bytes=0)
    for timeout_s in (0, float("nan")):
        with pytest.raises(InvalidCallError, match=f"timeout_s = {timeout_s}"):
            live.cluster.fetch("t", 0, 0, timeout_s=timeout_s)
    with pytest.raises(InvalidCallError, match="offsets is empty"):
        live.cluster.fetch_many({})


def test_a_fetch_may_have_all_the_time_there_is(live: LiveCluster) -> None:
    assert live.cluster.fetch("t", 0, 0, timeout_s=float("inf")).records.num_rows


def test_a_fetch_of_several_partitions_has_an_outcome_for_each(live: LiveCluster) -> None:
    wanted = {("t", 0): 5, ("t", 1): 2, ("t", 7): 0, ("nobody", 0): 0}
    found = {outcome.item: outcome for outcome in live.cluster.fetch_many(wanted)}
    assert found.keys() == wanted.keys()
    local, remote = found["t", 0], found["t", 1]
    assert isinstance(local, Done)
    assert isinstance(remote, Done)
    assert (values(local.value), values(remote.value)) == (["a5", "a6", "a7"], ["b2", "b3", "b4"])
    for key in (("t", 7), ("nobody", 0)):
        outcome = found[key]
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, UnknownTopicOrPartitionError)


# ------------------------------------------------------------------------ what storage is asked for


def test_a_row_group_is_one_request_and_is_asked_for_once(live: LiveCluster, faults: Faults) -> None:
    """Ranged reads of the needed parts, and a bounded cache: a reader that continues requests nothing twice."""
    live.append([f"{number}" for number in range(100)]).raise_for_failures()
    live.append(["end"]).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    reads: Counter[str] = Counter()

    def count(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote") and name.endswith(".parquet"):
            reads[what] += 1

    faults.before = count
    live.cluster.fetch("t", 0, 8, max_bytes=1000)
    assert reads == {"open": 2}, "the footer and the row group"
    offset = 8
    while offset < 108:
        offset = live.cluster.fetch("t", 0, offset, max_bytes=1000).next_offset
    assert reads == {"open": 2}


def test_nothing_is_kept_beyond_the_bound(live: LiveCluster) -> None:
    fetching = Fetching()
    fetching.reader._groups = BoundedCache(1)
    ports_of(live.cluster).memory.fetching = fetching
    for _ in range(2):
        assert values(live.cluster.fetch("t", 0, 0)) == [f"a{number}" for number in range(5)]
    assert fetching.reader._groups.weight == 0


# ---------------------------------------------------------------------------------------- quota

QUOTA = "remote.log.manager.fetch.max.bytes.per.second"


def remote_bytes(live: LiveCluster, partition: int = 0) -> list[int]:
    """The bytes of the row groups of each remote file, in order."""
    files = sorted(live.remote.rglob(f"{partition}/*.parquet"))
    groups = [pq.read_metadata(path).row_group(0) for path in files]
    return [sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups]


def test_the_fetch_quota_holds_for_all_remote_fetches_of_a_driver(live: LiveCluster) -> None:
    """KIP-956, remote.log.manager.fetch.max.bytes.per.second: a fetch first waits until earlier reads are paid
    for. Local records and cached ones cost nothing.
    """
    first, *_ = sizes = remote_bytes(live)[:5]
    rate = first // 2
    live.cluster.topics.alter_configs(None, {QUOTA: str(rate)})
    began = live.clock.monotonic_s()
    for _ in range(2):
        assert values(live.cluster.fetch("t", 0, 0)) == ["a0", "a1", "a2", "a3", "a4"]
        assert values(live.cluster.fetch("t", 1, 5)) == ["b5", "b6", "b7"]
    waited = sum(sizes[:-1]) / rate - 1
    assert live.clock.monotonic_s() - began == pytest.approx(waited, abs=0.1)
    live.cluster.fetch("t", 1, 0, max_bytes=1)
    assert live.clock.monotonic_s() - began == pytest.approx(waited + sizes[-1] / rate, abs=0.1)


def test_a_request_that_the_quota_has_no_room_for_before_the_timeout_is_reported_at_once(
    live: LiveCluster,
) -> None:
    """Each row group is read eventually, however small the quota; a fetch returns the records that it
    has by then.
    """
    live.cluster.topics.alter_configs(None, {QUOTA: "1"})
    began = live.clock.monotonic_s()
    assert values(live.cluster.fetch("t", 0, 0)) == ["a0"]
    with pytest.raises(ThrottlingQuotaExceededError, match=rf"t-1: offset 2 is remote.*{QUOTA}"):
        live.cluster.fetch("t", 1, 2)
    assert live.clock.monotonic_s() == began
    live.clock.advance_ms(remote_bytes(live)[0] * 1000)
    assert values(live.cluster.fetch("t", 1, 2)) == ["b2"]
    live.cluster.topics.alter_configs(None, {QUOTA: None})
    assert values(live.cluster.fetch("t", 1, 2)) == ["b2", "b3", "b4"]


# --------------------------------------------------------------------------------------- faults


def test_remote_faults_are_retried_with_growing_pauses(live: LiveCluster, faults: Faults) -> None:
    """KIP-405, "Remote Storage Fetcher Thread Pool", 2.3: "retried with Exponential Back-Off, until the original
    consumer fetch request timeout". 2.1: then it is answered."""
    asked: list[float] = []

    def failing(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote") and what == "open":
            asked.append(live.clock.monotonic_s())
            if len(asked) <= 6:
                raise StorageError("503 slow down")

    faults.before = failing
    assert values(live.cluster.fetch("t", 0, 0))[0] == "a0"
    pauses = [two - one for one, two in pairwise(asked[:7])]
    assert len(pauses) == 6
    assert pauses[0] < 0.2
    assert all(0.5 * 0.1 * 2**n <= pause <= 0.1 * 2**n for n, pause in enumerate(pauses[:5]))


def test_a_remote_that_stays_away_is_an_error_at_the_time_out(live: LiveCluster, faults: Faults) -> None:
    """KIP-405, "Thread Pools": "consumers that try to consume the remote data should get reasonable errors, when
    remote storage is unavailable"; local records are still readable."""

    faults.refuse(StorageError("503 slow down"), at="remote")
    began = live.clock.monotonic_s()
    with pytest.raises(StorageError, match="503"):
        live.cluster.fetch("t", 0, 0, timeout_s=5)
    assert 3 <= live.clock.monotonic_s() - began <= 5
    assert values(live.cluster.fetch("t", 0, 5)) == ["a5", "a6", "a7"]


def test_local_records_arrive_while_the_remote_hangs(live: LiveCluster, faults: Faults) -> None:
    """KIP-405, "Thread Pools": operations "that do not rely on remote storage should not be impacted"."""
    let_go = threading.Event()

    def hang(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote") and what == "open":
            let_go.wait(30)

    faults.before = hang
    outcomes = live.cluster.fetch_many({("t", 0): 0, ("t", 1): 5}, timeout_s=30)
    first = next(outcomes)
    assert isinstance(first, Done)
    assert values(first.value) == ["b5", "b6", "b7"]
    let_go.set()
    second = next(outcomes)
    assert isinstance(second, Done)
    assert values(second.value)[0] == "a0"


def test_however_many_remote_fetches_hang_local_ones_have_threads(live: LiveCluster, faults: Faults) -> None:
    """KIP-405, "Thread Pools": "we have to handle remote storage operations in dedicated threads pools"."""
    many = LOCAL_THREADS + REMOTE_THREADS
    live.tiered("many", partitions=many)
    for _ in range(2):
        live.append({partition: ["x"] for partition in range(many)}, "many").raise_for_failures()
    live.cluster.tier("many").raise_for_failures()
    live.cluster.retain("many").raise_for_failures()
    let_go = threading.Event()

    def hang(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote") and what == "open":
            let_go.wait(30)

    faults.before = hang
    outcomes = list(live.cluster.fetch_many({("many", p): 0 for p in range(many)}, timeout_s=0.5))
    assert all(isinstance(outcome, Failed) for outcome in outcomes)
    try:
        assert values(live.cluster.fetch("t", 1, 5, timeout_s=10)) == ["b5", "b6", "b7"]
    finally:
        let_go.set()


def test_a_call_that_hangs_ends_with_the_time_out(live: LiveCluster, faults: Faults) -> None:
    """The error names the given timeout, although the metadata took a part of it here."""
    let_go = threading.Event()

    def hang(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote"):
            let_go.wait(30)
        else:
            live.clock.sleep(0.01)

    faults.before = hang
    with pytest.raises(StoreTimeoutError, match=r"t-0: the remote tier did not answer within 0\.2 s"):
        live.cluster.fetch("t", 0, 0, timeout_s=0.2)
    let_go.set()


def test_a_segment_that_the_log_start_has_passed_is_out_of_range(live: LiveCluster) -> None:
    """KIP-405, 2.2: "if the remote segment file is already deleted ... return an error to the client". The driver
    knows the remote log from an earlier fetch; another driver has deleted the segment since.
    """
    assert values(live.cluster.fetch("t", 0, 0, max_bytes=1)) == ["a0"]
    other = live.driver()
    other.topics.alter_configs("t", {"retention.bytes": "1", "local.retention.bytes": "1"})
    for _ in range(2):
        other.retain().raise_for_failures()
    assert not [path for path in live.remote.rglob("0/*.parquet") if path.name.startswith(f"{1:020}")]
    with pytest.raises(OffsetOutOfRangeError, match="offset 1 is not in"):
        live.cluster.fetch("t", 0, 1)


def test_a_segment_that_is_gone_and_still_listed_is_corruption(live: LiveCluster) -> None:
    """KIP-405, 2.2; the fetch does not wait for the timeout."""
    (path,) = live.remote.rglob(f"0/{1:020}*.parquet")
    path.unlink()
    began = live.clock.monotonic_s()
    with pytest.raises(RemoteObjectMissingError, match=path.name):
        live.cluster.fetch("t", 0, 1)
    assert live.clock.monotonic_s() == began
    assert values(live.cluster.fetch("t", 0, 2)) == ["a2", "a3", "a4"]


def test_records_that_have_moved_to_the_remote_tier_meanwhile_are_found_there(live: LiveCluster) -> None:
    """This driver knows a remote log that ends at 6."""
    live.cluster.fetch("t", 0, 0)
    live.append(["a8"]).raise_for_failures()
    other = live.driver()
    other.tier().raise_for_failures()
    other.retain().raise_for_failures()
    fetched = live.cluster.fetch("t", 0, 6)
    assert (values(fetched), fetched.remote) == (["a6", "a7"], True)


def test_a_partition_without_a_leader_may_get_one_until_the_time_out(live: LiveCluster) -> None:
    live.cluster.brokers.fence([1, 2, 3], force=True).raise_for_failures()
    with pytest.raises(LeaderNotAvailableError):
        live.cluster.fetch("t", 0, 0, timeout_s=1)
    sleep = live.clock.sleep

    def unfence(seconds: float) -> None:
        live.clock.sleep = sleep  # type: ignore[method-assign]
        live.driver().brokers.unfence([1, 2, 3])

    live.clock.sleep = unfence  # type: ignore[method-assign]
    assert values(live.cluster.fetch("t", 0, 7)) == ["a7"]


def test_a_topic_that_is_not_tiered_is_read_from_its_local_start(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(retention_ms="1000", file_delete_delay_ms="0")
    live.fill("ab", at_ms=1)
    live.fill("cd", at_ms=live.clock.now_ms())
    live.cluster.retain().raise_for_failures()
    assert values(live.cluster.fetch("t", 0, 2)) == ["c", "d"]
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 1 is not in \[2, 4\]"):
        live.cluster.fetch("t", 0, 1)
