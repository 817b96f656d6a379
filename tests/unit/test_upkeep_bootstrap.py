"""An empty follower of a tiered topic: its start, its copies, its state (KIP-405, KIP-1023)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.partitions.errors import LogDirError, StorageError, UnknownBrokerError
from stratalog.partitions.paths import BROKER_FILE
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.remote_log import RemoteLog
from tests.unit.cluster_harness import LiveCluster, rows_of, the_failure

LAST_TIERED = "follower.fetch.last.tiered.offset.enable"


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Four brokers; topic ``t`` has offsets [0, 8) on brokers other than 1 (which votes): [0, 6) are tiered,
    the leader holds [3, 8)."""
    made = LiveCluster(tmp_path, brokers=4)
    _tiered(made, tiered=6, pending=2)
    return made


def _tiered(live: LiveCluster, tiered: int, pending: int) -> None:
    # Round-robin over four racks: some partition has both replicas on brokers that do not vote.
    live.tiered(partitions=4, copies=2, local_retention_bytes="6000")
    _append(live, range(tiered))
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    _append(live, range(tiered, tiered + pending))


def _partition(live: LiveCluster) -> int:
    return next(p for p in range(4) if 1 not in live.replicas(partition=p).view.replicas)


def _append(live: LiveCluster, numbers: range) -> None:
    for number in numbers:
        live.append(
            {_partition(live): [f"v{number}"]}, producer="p", sequence=number, at_ms=number
        ).raise_for_failures()


def _bytes_from(live: LiveCluster, offset: int) -> int:
    """Bytes of the leader's files from an offset on."""
    p = _partition(live)
    return sum(
        link.file.object.size_bytes
        for link in live.log(live.leader(partition=p), partition=p).chain
        if link.start >= offset
    )


def test_the_scene_is_as_described(live: LiveCluster) -> None:
    p = _partition(live)
    log = live.log(live.leader(partition=p), partition=p)
    assert (log.local_start, log.high_watermark, log.log_end) == (3, 8, 8)
    assert live.cluster.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize(("last_tiered", "begins"), [(False, 3), (True, 6)])
def test_an_empty_follower_copies_what_is_not_tiered_or_all_that_is_local(
    live: LiveCluster, last_tiered: bool, begins: int
) -> None:
    """KIP-405: from the leader's local log start; KIP-1023: from the earliest pending upload offset. The report
    has the copied bytes."""
    if last_tiered:
        live.cluster.topics.alter_configs(None, {LAST_TIERED: "true"})
    p = _partition(live)
    (follower,) = live.followers(partition=p)
    live.wipe(follower)
    report = live.cluster.bootstrap(follower).raise_for_failures()
    copied = {row["partition"]: row["copied_bytes"] for row in report.rows}
    assert copied[p] == _bytes_from(live, begins)
    log = live.log(follower, partition=p)
    assert (log.local_start, log.high_watermark, log.log_end) == (begins, 8, 8)
    assert live.isr(partition=p) == set(live.replicas(partition=p).view.replicas)
    assert {row["partition"]: row["remote_bytes"] for row in report.rows}[p] == sum(
        path.stat().st_size for path in live.remote.rglob(f"{p}/*.parquet")
    )
    live.cluster.verify().raise_for_failures()
    assert live.read() == {p: [f"v{n}" for n in range(8)]}


@pytest.mark.slow
@pytest.mark.parametrize("tiered", [6, 24])
def test_a_bootstrap_copies_the_same_bytes_however_much_is_tiered(tmp_path: Path, tiered: int) -> None:
    """Contract: "bootstrap independent of the tiered size, bytes equal to what is not tiered yet"."""
    live = LiveCluster(tmp_path, brokers=4)
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true"})
    _tiered(live, tiered=tiered, pending=2)
    (follower,) = live.followers(partition=_partition(live))
    live.wipe(follower)
    report = live.cluster.bootstrap(follower).raise_for_failures()
    assert report.totals["copied_bytes"] == _bytes_from(live, tiered)


@pytest.mark.slow
@pytest.mark.parametrize("pending", [0, 2])
def test_a_bootstrapped_follower_that_comes_to_lead_knows_the_producers(tmp_path: Path, pending: int) -> None:
    """KIP-1023: "builds the remote log auxiliary states": leader epochs and producer state. After the old leader
    is also lost, a retry is recognised, a new append succeeds, and other records are refused.
    """
    live = LiveCluster(tmp_path, brokers=4)
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true"})
    _tiered(live, tiered=4, pending=pending)
    p, end = _partition(live), 4 + pending
    old = live.leader(partition=p)
    (follower,) = live.followers(partition=p)
    live.wipe(follower)
    live.cluster.bootstrap(follower).raise_for_failures()
    assert live.log(follower, partition=p).local_start == 4
    live.wipe(old)
    live.cluster.bootstrap(old).raise_for_failures()
    assert live.leader(partition=p) == follower
    last = live.append({p: [f"v{end - 1}"]}, producer="p", sequence=end - 1, at_ms=end - 1)
    assert rows_of(last, "outcome", "base_offset") == [("duplicate", end - 1)]
    assert rows_of(live.append({p: ["v0"]}, producer="p", at_ms=0), "outcome") == [("duplicate",)]
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in the_failure(live.append({p: ["x"]}, producer="p", sequence=end - 2))
    _append(live, range(end, end + 2))
    assert live.read() == {p: [f"v{n}" for n in range(end + 2)]}
    live.cluster.tier().raise_for_failures()
    live.cluster.verify().raise_for_failures()
    assert live.read() == {p: [f"v{n}" for n in range(end + 2)]}


@pytest.mark.slow
@pytest.mark.parametrize("last_tiered", ["false", "true"])
def test_while_the_remote_does_not_say_where_to_begin_the_follower_waits(
    live: LiveCluster, tmp_path: Path, last_tiered: str
) -> None:
    """KIP-1023: "should throw an exception so that the partition can be retried after some time"."""
    live.cluster.topics.alter_configs(None, {LAST_TIERED: last_tiered})
    p = _partition(live)
    (follower,) = live.followers(partition=p)
    live.remote.rename(tmp_path / "away")
    live.remote.mkdir()
    live.wipe(follower)
    began_s = live.clock.monotonic_s()
    failure = the_failure(live.cluster.bootstrap(follower, check=False))
    assert live.clock.monotonic_s() - began_s == 1 + 2 + 4 + 8
    assert failure.startswith(f"t-{p} on broker {follower}: REMOTE_NOT_READY")
    assert "run tier, which names the missing offsets, then try again" in failure
    assert live.isr(partition=p) == {live.leader(partition=p)}
    assert live.log(follower, partition=p).chain == ()
    shutil.rmtree(live.remote)
    (tmp_path / "away").rename(live.remote)
    live.cluster.bootstrap(follower).raise_for_failures()
    assert live.read() == {p: [f"v{n}" for n in range(8)]}


def test_a_bootstrap_continues_by_itself_when_the_remote_is_ready(live: LiveCluster, tmp_path: Path) -> None:
    """KIP-1023: "should throw an exception so that the partition can be retried after some time". The report
    covers the whole run: the earlier copies, and the times of joining."""
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true"})
    live.topic("local")
    live.fill("ab", "local")
    p = _partition(live)
    (follower,) = live.followers(partition=p)
    live.remote.rename(tmp_path / "away")
    live.remote.mkdir()
    live.wipe(follower)
    sleep, pauses = live.clock.sleep, list[float]()

    def mount(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            shutil.rmtree(live.remote)
            (tmp_path / "away").rename(live.remote)
        sleep(seconds)

    live.clock.sleep = mount  # type: ignore[method-assign]
    report = live.cluster.bootstrap(follower)
    rows = {str(row["topic"]): row for row in report.raise_for_failures().rows if row["copied_files"]}
    assert pauses == [1, 2]
    assert rows["local"]["copied_bytes"] == sum(map(len, live.data(follower, "local").values()))
    assert rows["t"]["copied_bytes"] == sum(map(len, live.data(follower, partition=p).values()))
    assert report.totals["copied_bytes"] == rows["local"]["copied_bytes"] + rows["t"]["copied_bytes"]
    assert (rows["local"]["joined_s"], rows["t"]["joined_s"]) == (0, 3)
    assert live.isr(partition=p) == {live.leader(partition=p), follower}


def test_before_anything_is_tiered_an_empty_follower_copies_all(tmp_path: Path) -> None:
    """KIP-1023: "No segments for the partition have been uploaded to the remote storage yet"."""
    live = LiveCluster(tmp_path)
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true"})
    live.tiered()
    live.fill("abc")
    live.wipe(2)
    live.cluster.bootstrap(2).raise_for_failures()
    assert live.data(2) == live.data(1)


def test_a_follower_below_the_local_start_of_a_topic_that_is_not_tiered_starts_over(tmp_path: Path) -> None:
    """Protocol, section 3: OFFSET_OUT_OF_RANGE, start over at L's local start."""
    live = LiveCluster(tmp_path)
    live.topic(retention_ms="1000", file_delete_delay_ms="0")
    live.fill("abcd", at_ms=1)
    live.fill("ef", at_ms=live.clock.now_ms())
    live.cluster.retain().raise_for_failures()
    live.wipe(2)
    live.cluster.bootstrap(2).raise_for_failures()
    assert live.log(2).local_start == 4
    assert live.data(2) == live.data(1)
    live.cluster.verify().raise_for_failures()
    assert live.read() == {0: ["e", "f"]}


def test_a_broker_that_lost_nothing_is_left_as_it_is(live: LiveCluster) -> None:
    live.cluster.replicate().raise_for_failures()
    with live.unchanged():
        assert live.cluster.bootstrap([2, 3, 4]).raise_for_failures().totals["copied_bytes"] == 0


def test_an_unknown_broker_or_a_root_that_is_missing_is_no_bootstrap(tmp_path: Path) -> None:
    """A root is formatted only in an existing folder: the parent of an empty mount point is not one."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    live.append(["a"])
    with live.unchanged(), pytest.raises(UnknownBrokerError, match="broker 9 is not in"):
        live.cluster.bootstrap(9)
    shutil.rmtree(live.root(2))
    with pytest.raises(LogDirError, match="b2"):
        live.cluster.bootstrap(2)
    assert not (live.root(2) / BROKER_FILE).exists()
    live.root(2).mkdir()
    live.cluster.bootstrap(2).raise_for_failures()
    assert live.data(2) == live.data(1)


def test_the_bytes_in_a_remote_tier_that_does_not_answer_are_unknown(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.topic("u", copies=2)
    p = _partition(live)
    broker = next(broker for broker in live.replicas(partition=p).view.replicas if broker != live.leader("t", p))

    def no_answer(table: DeltaTopicTable) -> RemoteLog:
        raise StorageError("no answer")

    monkeypatch.setattr(DeltaTopicTable, "load", no_answer)
    report = live.cluster.bootstrap(broker, check=False)
    assert {row["remote_bytes"] for row in report.rows if row["topic"] == "t"} == {None}
    assert {row["remote_bytes"] for row in report.rows if row["topic"] == "u"} <= {0}
    assert report.totals["remote_bytes"] is None
