"""Every operation while the remote tier is down: it continues, or raises one clear error with the reason.

KIP-405, "Thread Pools": "When the remote storage becoming temporarily unavailable ... Kafka should still be able
to operate normally."
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stratalog.engine.driver.report import Report
from stratalog.engine.upkeep.tiering.remote_logs import WAVE
from stratalog.partitions.errors import StorageError
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from tests.unit.cluster_harness import fence, report_of, the_failure, unfence
from tests.unit.tampering import spot
from tests.unit.tier_harness import RemoteFaults, refused

DOWN = "the remote tier cannot be reached"


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteFaults:
    """``t``-0: [0, 2) are remote only, [2, 3) in both tiers, [3, 5) local. ``plain`` is not tiered. The remote
    tier is down."""
    made = RemoteFaults(tmp_path, monkeypatch)
    made.tiered()
    made.topic("plain")
    made.fill("abc")
    made.fill("abc", "plain")
    made.tier_and_drop()
    made.fill("de")
    made.down = refused
    return made


def failed_items(report: Report) -> set[str]:
    return {failure.item for failure in report.failures}


OPERATIONS: dict[str, tuple[Callable[[RemoteFaults], Report], set[str]]] = {
    "replicate": (lambda live: live.cluster.replicate(check=False), {"t"}),
    "merge": (lambda live: live.cluster.merge(check=False), {"t"}),
    "tier": (lambda live: live.cluster.tier(check=False), {"t", "restore point"}),
    "retain": (lambda live: live.cluster.retain(check=False), {"t"}),
    "vacuum": (lambda live: live.cluster.vacuum(check=False), {"remote tier"}),
    "verify": (lambda live: live.cluster.verify(), {"t"}),
    "verify --deep": (lambda live: live.cluster.verify(deep=True), {"t"}),
    "heal": (lambda live: live.cluster.heal(check=False), {"t"}),
    "describe": (lambda live: live.cluster.describe(), {"t"}),
    "describe brokers": (lambda live: live.cluster.brokers.list(), set()),
    "describe topics": (lambda live: live.cluster.topics.list(), set()),
    "discarded": (lambda live: live.cluster.discarded(), set()),
    "elect": (lambda live: live.cluster.elect("t", leader=live.followers()[0]), set()),
    "snapshot": (lambda live: live.cluster.snapshot(), set()),
    "register": (lambda live: live.cluster.brokers.register(), set()),
    "fence": (lambda live: live.cluster.brokers.fence(3), set()),
    "append": (lambda live: live.append(["f"]), set()),
    "delete records": (
        lambda live: live.cluster.topics.delete_records("t", {0: 1}, check=False),
        {"restore point"},
    ),
    "snapshot of the metadata": (lambda live: live.cluster.quorum.snapshot(), set()),
    "reassignments": (lambda live: live.cluster.reassignments(), set()),
    "groups": (lambda live: live.cluster.groups.list(), set()),
    "metrics": (lambda live: live.cluster.metrics(), set()),
}


@pytest.fixture(autouse=True)
def merges_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``tier`` write segments from few files, without a merge."""
    monkeypatch.setattr("stratalog.partitions.rewrites.merge.FEW", 1)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("operation", "waiting"),
    [
        pytest.param(*case, id=name, marks=[] if case[1] or name == "append" else [pytest.mark.slow])
        for name, case in OPERATIONS.items()
    ],
)
def test_an_operation_continues_and_names_what_waits(
    live: RemoteFaults, operation: Callable[[RemoteFaults], Report], waiting: set[str]
) -> None:
    """Only the tiered topic fails, with the cause; the log of neither topic loses a file."""
    held = {(broker, topic): set(live.data(broker, topic)) for broker in (1, 2, 3) for topic in ("t", "plain")}
    report = operation(live)
    assert failed_items(report) == waiting
    assert all(DOWN in failure.message for failure in report.failures)
    for (broker, topic), names in held.items():
        assert names <= set(live.data(broker, topic))
    live.down = None
    live.cluster.tier().raise_for_failures()
    assert live.read()[0][:5] == list("abcde")[live.replicas().view.log_start_offset :]


@pytest.mark.slow
def test_metadata_changes_need_no_remote(live: RemoteFaults) -> None:
    live.cluster.topics.create("n", partitions=1, replication_factor=1, configs={"remote.storage.enable": "true"})
    live.cluster.topics.alter_configs("t", {"retention.bytes": "100000"})
    assert live.driver().image.topic("n").configs["remote.storage.enable"] == "true"


@pytest.mark.slow
def test_a_topic_is_deleted_once_its_remote_table_can_record_it(live: RemoteFaults) -> None:
    """Otherwise the topic's remote folder could not be distinguished from one that must be kept."""
    with live.unchanged():
        for name in ("t", "plain"):
            with pytest.raises(StorageError, match=rf"'{name}' was not deleted: {DOWN}.*Try again when"):
                live.cluster.topics.delete(name)
    live.down = None
    live.cluster.topics.delete("t").raise_for_failures()


@pytest.mark.slow
def test_the_leaders_records_are_read_and_the_missing_ones_are_reported_with_the_way_out(
    live: RemoteFaults,
) -> None:
    for start in (2, OffsetSpec.EARLIEST_LOCAL, {0: 3}):
        assert live.read(start=start)[0][-1] == "e"
    assert live.cluster.offsets("t", OffsetSpec.LATEST) == {0: FoundOffset(5, None, 1)}
    assert live.cluster.offsets("t", OffsetSpec.EARLIEST) == {0: FoundOffset(0, None, 1)}
    assert live.read("plain") == {0: list("abc")}
    for start in (None, 1, OffsetSpec.LAST_TIERED):
        with pytest.raises(
            StorageError, match=rf"topic 't': this read needs the remote tier: {DOWN}.*EARLIEST_LOCAL"
        ):
            live.read(start=start)
    for spec in (OffsetSpec.LAST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD, OffsetSpec.MAX_TIMESTAMP):
        with pytest.raises(StorageError, match=DOWN):
            live.cluster.offsets("t", spec)


@pytest.mark.slow
def test_merges_continue_after_the_last_known_end_of_the_remote_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends do not stop, and only merges keep the number of their files small. Protocol, section 4: merges do
    not cross the end of the remote log.
    """
    live = RemoteFaults(tmp_path, monkeypatch)
    live.tiered(local_retention_bytes="-2", segment_merge_min_files="2")
    live.tiered("new", segment_bytes="100000", segment_merge_min_files="2")
    live.fill("ab")
    live.cluster.tier("t").raise_for_failures()
    live.cluster.topics.alter_configs("t", {"segment.bytes": "100000"})
    live.fill("cde")
    live.fill("xyz", "new")
    live.down = refused
    report = live.cluster.merge(check=False)
    assert failed_items(report) == {"t", "new"}
    assert {(row["topic"], row["segments"], row["files"]) for row in report.rows} == {("t", 1, 3), ("new", 1, 3)}
    assert [int(name[:20]) for name in live.data(live.leader())] == [0, 1, 2]
    live.down = None
    live.cluster.replicate().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    assert live.read() == {0: list("abcde")}
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_an_unclean_election_waits_for_the_remote_log_and_says_so(live: RemoteFaults) -> None:
    """A leader that began below the end of the remote log would assign offsets a second time."""
    leader, followers = live.leader(), live.followers()
    fence(live, *followers, leader)
    unfence(live, *followers)
    report = live.cluster.elect(unclean=True, check=False)
    text = (
        f"t: KAFKA_STORAGE_ERROR: {DOWN}; without the remote log, the offset at which a new leader must start is "
    )
    assert the_failure(report).startswith(text)
    assert live.replicas().view.leader is None
    live.down = None
    live.cluster.elect(unclean=True).raise_for_failures()
    assert live.read() == {0: list("abcde")}


@pytest.mark.slow
def test_a_damaged_replica_is_healed_from_others(live: RemoteFaults) -> None:
    """Verify checks the brokers nevertheless; repairs that need the remote tier wait."""
    follower = live.followers()[0]
    spot(live, follower, -1).flip(30)
    assert failed_items(live.cluster.verify(deep=True)) >= {"t"}
    report = live.cluster.heal(check=False)
    assert [row["outcome"] for row in report.rows] == ["repaired"]
    assert failed_items(report) == {"t"}
    live.down = None
    live.cluster.verify(deep=True).raise_for_failures()


def test_the_outage_is_detected_once_and_not_once_per_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each request took its full timeout, thousands of topics would take days."""
    live = RemoteFaults(tmp_path, monkeypatch, brokers=1)
    topics = [f"t{number:03}" for number in range(3 * WAVE)]
    for topic in topics:
        live.tiered(topic, copies=1)
    asked: list[int] = []

    def down() -> None:
        asked.append(1)
        refused()

    live.down = down
    for operation in (
        partial(live.cluster.replicate, check=False),
        partial(live.cluster.merge, check=False),
        partial(live.cluster.retain, check=False),
        live.cluster.describe,
    ):
        asked.clear()
        report = report_of(operation)
        assert failed_items(report) == set(topics)
        assert len(asked) == WAVE
        assert all(DOWN in failure.message for failure in report.failures)


@pytest.mark.slow
def test_a_few_bad_tables_keep_no_other_topic_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = RemoteFaults(tmp_path, monkeypatch, brokers=1)
    topics = [f"t{number:03}" for number in range(2 * WAVE)]
    for topic in topics:
        live.tiered(topic, copies=1)
    live.cluster.tier().raise_for_failures()
    for topic in topics[: WAVE - 1]:
        (log,) = live.remote.glob(f"{topic}-*/_delta_log")
        (log / f"{0:020d}.json").write_text("no json")
    assert failed_items(live.cluster.describe()) == set(topics[: WAVE - 1])
