"""Administration of consumer groups: list, reset, delete (like kafka-consumer-groups.sh)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster, OffsetAndMetadata, OffsetSpec
from stratalog.engine.driver.report import utc_text
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, partition_for
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from tests.unit.cluster_harness import LiveCluster, codes, rows_of
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch

MINUTE_S = 60


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``: ten records in partition 0, a second apart up to now; two in partition 1. ``g`` committed."""
    return with_group(LiveCluster(tmp_path))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, with an empty topic and a group in addition, for tests that change nothing."""
    made = with_group(LiveCluster(tmp_path_factory.mktemp("shared")))
    made.topic("u")
    made.cluster.groups.commit("h", {("t", 0): 1})
    return made


def with_group(live: LiveCluster) -> LiveCluster:
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "4"})
    live.topic(partitions=2)
    now_us = live.clock.now_ms() * 1000
    seconds = [batch(["x"], now_us - 1_000_000 * second) for second in range(10, 0, -1)]
    live.cluster.append_batches("t", {0: seconds}).raise_for_failures()
    live.append({1: ["y", "y"]}).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): OffsetAndMetadata(4, 0, "m"), ("t", 1): 1}, member_epoch=7)
    return live


def at(cluster: Cluster, group: str = "g") -> dict[tuple[str, int], int]:
    return {key: found.offset for key, found in cluster.groups.committed(group).items()}


# -------------------------------------------------------------------------------------- list


def test_every_group_is_listed(live: LiveCluster) -> None:
    """The groups of all partitions of ``__consumer_offsets``, by name."""
    assert live.driver().groups.list().totals == {"groups": 1}
    live.topic("u")
    live.clock.sleep(60)
    for name in ("h", "a", "ü"):
        live.cluster.groups.commit(name, {("t", 0): 1, ("u", 0): 0})
    now_ms = live.clock.now_ms()
    found = live.driver().groups.list()
    assert rows_of(found, "group", "topics", "partitions", "member_epoch") == [
        ("a", "t, u", 2, None),
        ("g", "t", 2, 7),
        ("h", "t, u", 2, None),
        ("ü", "t, u", 2, None),
    ]
    assert found.rows[0]["latest_commit"] == utc_text(now_ms)
    assert found.rows[1]["latest_commit"] == utc_text(now_ms - 60_000)
    assert found.rows[0]["expires"] == utc_text(now_ms + 7 * 24 * 60 * 60_000)


def test_without_a_commit_there_are_no_groups(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    with live.unchanged():
        assert live.cluster.groups.list().rows == []


@pytest.mark.parametrize("copies", [1, 3])
def test_groups_of_a_partition_that_cannot_be_read_are_a_failure(tmp_path: Path, copies: int) -> None:
    """Without its leader, the partition is read from another member of the ISR if one is available."""
    live = LiveCluster(tmp_path, on_disk=True)
    factor = {"offsets.topic.replication.factor": str(copies)}
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "4", **factor})
    live.topic()
    for name in "abcdefgh":
        live.cluster.groups.commit(name, {("t", 0): 0})
    away = max(live.leader(OFFSETS_TOPIC, p) for p in range(4))
    lost = [p for p in range(4) if live.leader(OFFSETS_TOPIC, p) == away]
    with live.unreachable(away):
        found = live.cluster.groups.list()
    assert codes(found) == ({} if copies == 3 else {"BROKER_NOT_AVAILABLE": len(lost)})
    assert len(found.rows) == 8 if copies == 3 else 0 < len(found.rows) < 8


@pytest.mark.parametrize("call", ["delete", "reset_offsets"])
def test_a_dry_run_finds_another_leader_and_fences_nobody(tmp_path: Path, call: str) -> None:
    live = LiveCluster(tmp_path, on_disk=True, voters=(1, 2, 3))
    live.topic()
    live.fill("abc")
    live.cluster.groups.commit("g", {("t", 0): 1})
    partition = partition_for("g", len(live.cluster.image.topic(OFFSETS_TOPIC).partitions))
    away = live.leader(OFFSETS_TOPIC, partition)
    if live.leader() == away:
        live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    arguments: dict[str, Any] = {} if call == "delete" else {"to": "latest"}
    with live.unreachable(away):
        driver, before = live.driver(), live.cluster.image
        planned = getattr(driver.groups, call)("g", **arguments, dry_run=True)
        assert driver.image.brokers == before.brokers
        done = getattr(driver.groups, call)("g", **arguments)
        assert driver.image.brokers[away].fenced
    assert list(planned.rows) == list(done.rows) != []


# ------------------------------------------------------------------------------------- reset


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "moved"),
    [
        ({"to": OffsetSpec.EARLIEST}, {0: 0, 1: 0}),
        ({"to": OffsetSpec.LATEST}, {0: 10, 1: 2}),
        ({"to": 2}, {0: 2, 1: 2}),
        ({"shift_by": 1}, {0: 5, 1: 2}),
        ({"shift_by": -1}, {0: 3, 1: 0}),
        ({"shift_by": 0}, {0: 4, 1: 1}),
        ({"by_duration": timedelta(seconds=3)}, {0: 7, 1: 2}),
        ({"by_duration": timedelta(0)}, {0: 10, 1: 2}),
        ({"by_duration": timedelta(days=9)}, {0: 0, 1: 2}),
    ],
    ids=str,
)
def test_offsets_are_moved_as_asked(live: LiveCluster, where: dict[str, Any], moved: dict[int, int]) -> None:
    """The plan has the old and the new offset of each partition; a dry run has the same plan."""
    with live.unchanged():
        planned = live.cluster.groups.reset_offsets("g", "t", **where, dry_run=True)
    expected = [("t", 0, 4, moved[0]), ("t", 1, 1, moved[1])]
    assert rows_of(planned, "topic", "partition", "old_offset", "new_offset") == expected
    assert planned.dry_run
    done = live.cluster.groups.reset_offsets("g", "t", **where)
    assert list(done.rows) == list(planned.rows)
    assert done.notes == []
    assert at(live.driver()) == {("t", 0): moved[0], ("t", 1): moved[1]}


def test_to_a_time_is_to_the_first_record_at_or_after_it(live: LiveCluster) -> None:
    """If all records are earlier, the offset is the high watermark, as in Kafka."""
    now = datetime.fromtimestamp(live.clock.now_ms() / 1000, UTC)
    live.cluster.groups.reset_offsets("g", "t", to=now - timedelta(seconds=5), partitions=[0])
    assert at(live.cluster) == {("t", 0): 5, ("t", 1): 1}
    live.cluster.groups.reset_offsets("g", "t", to=now)
    assert at(live.cluster) == {("t", 0): 10, ("t", 1): 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "moved", "noted"),
    [
        ({"to": 5}, {0: 5, 1: 2}, ["t-1: offset 5 is not within 0 and 2: 2 is used instead"]),
        (
            {"shift_by": -100},
            {0: 0, 1: 0},
            [
                "t-0: offset -96 is not within 0 and 10: 0 is used instead",
                "t-1: offset -99 is not within 0 and 2: 0 is used instead",
            ],
        ),
        (
            {"shift_by": 10**30},
            {0: 10, 1: 2},
            [
                f"t-0: offset {10**30 + 4} is not within 0 and 10: 10 is used instead",
                f"t-1: offset {10**30 + 1} is not within 0 and 2: 2 is used instead",
            ],
        ),
    ],
    ids=str,
)
def test_a_reset_to_an_offset_out_of_range_takes_the_nearest_end_and_notes_it(
    live: LiveCluster, where: dict[str, Any], moved: dict[int, int], noted: list[str]
) -> None:
    """The job warns and continues, like kafka-consumer-groups.sh."""
    assert list(live.cluster.groups.reset_offsets("g", "t", **where).notes) == noted
    assert at(live.driver()) == {("t", partition): offset for partition, offset in moved.items()}


def test_a_reset_commits_offsets_for_partitions_that_have_none(live: LiveCluster) -> None:
    """All partitions of the named topics; by default those for which the group has committed."""
    live.topic("u")
    live.append(["x"], "u").raise_for_failures()
    found = live.cluster.groups.reset_offsets("g", to=OffsetSpec.LATEST)
    assert {row["topic"] for row in found.rows} == {"t"}
    found = live.cluster.groups.reset_offsets("g", ["u"], to=OffsetSpec.LATEST)
    assert rows_of(found, "old_offset", "new_offset") == [(None, 1)]
    assert at(live.cluster)["u", 0] == 1


def test_a_reset_is_never_a_stale_commit(live: LiveCluster) -> None:
    """A reset is not a commit by a member: it is never refused because of members, and does not affect them."""
    live.cluster.groups.reset_offsets("g", "t", to=0)
    live.cluster.groups.commit("g", {("t", 0): 1}, member_epoch=7)
    assert at(live.driver()) == {("t", 0): 1, ("t", 1): 0}


NOT_FOUND = "group 'nobody' does not exist"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: c.groups.reset_offsets("nobody", "t", to=0), GroupIdNotFoundError, NOT_FOUND),
        (lambda c: c.groups.reset_offsets("", "t", to=0), InvalidGroupIdError, "1 to 255 characters"),
        (
            lambda c: c.groups.reset_offsets("g", "nix", to=0),
            UnknownTopicOrPartitionError,
            "topic 'nix' does not exist",
        ),
        (
            lambda c: c.groups.reset_offsets("g", "t", to=0, partitions=[2]),
            UnknownTopicOrPartitionError,
            "no partition 2",
        ),
        (lambda c: c.groups.reset_offsets("g", "t"), InvalidCallError, "give exactly one target for the offsets"),
        (lambda c: c.groups.reset_offsets("g", "t", to=1, shift_by=1), InvalidCallError, "exactly one target"),
        (lambda c: c.groups.reset_offsets("g", "t", to="erliest"), InvalidCallError, "did you mean 'earliest'"),
        (lambda c: c.groups.reset_offsets("g", "t", to=True), InvalidCallError, "to=True"),
        (lambda c: c.groups.reset_offsets("g", "t", shift_by=1.5), InvalidCallError, "shift_by=1.5"),
        (
            lambda c: c.groups.reset_offsets("g", "t", by_duration=timedelta(-1)),
            InvalidCallError,
            "a timedelta of 0 or more",
        ),
        (lambda c: c.groups.reset_offsets("g", "t", to=datetime(2013, 1, 1)), InvalidCallError, "no time zone"),
        (
            lambda c: c.groups.reset_offsets("g", "t", to=OffsetSpec.LAST_TIERED),
            InvalidCallError,
            "LAST_TIERED is not known",
        ),
        (
            lambda c: c.groups.reset_offsets("h", "t", shift_by=1),
            InvalidCallError,
            "t-1: the group has no committed offset in this partition",
        ),
        (lambda c: c.groups.delete("nobody"), GroupIdNotFoundError, NOT_FOUND),
        (lambda c: c.groups.delete("g" * 256), InvalidGroupIdError, "256 characters"),
        (lambda c: c.groups.delete_offsets("nobody", "t"), GroupIdNotFoundError, NOT_FOUND),
        (lambda c: c.groups.delete_offsets("g", "nix"), UnknownTopicOrPartitionError, "'nix' does not exist"),
        (
            lambda c: c.groups.delete_offsets("g", ["t", "u"]),
            UnknownTopicOrPartitionError,
            "no committed offsets for topic 'u'",
        ),
    ],
)
def test_an_error_is_reported_and_nothing_is_changed(
    shared: LiveCluster, call: Callable[[Cluster], Any], error: type[StratalogError], says: str
) -> None:
    with shared.unchanged(), pytest.raises(error, match=says):
        call(shared.cluster)


# ------------------------------------------------------------------------------------ delete


def test_a_deleted_group_is_gone_with_its_member_epoch(live: LiveCluster) -> None:
    live.cluster.groups.commit("h", {("t", 0): 1})
    with live.unchanged():
        planned = live.cluster.groups.delete("g", dry_run=True)
    assert rows_of(planned, "topic", "partition", "committed") == [("t", 0, 4), ("t", 1, 1)]
    assert list(live.cluster.groups.delete("g").rows) == list(planned.rows)
    for cluster in (live.cluster, live.driver()):
        assert [row["group"] for row in cluster.groups.list().rows] == ["h"]
        with pytest.raises(GroupIdNotFoundError):
            cluster.groups.delete("g")
    live.cluster.groups.commit("g", {("t", 0): 2}, member_epoch=1)


def test_offsets_of_a_topic_are_deleted_and_the_rest_stays(live: LiveCluster) -> None:
    """A group has stopped reading a topic, so its lag would grow without limit."""
    live.topic("u")
    live.cluster.groups.commit("g", {("u", 0): 0}, member_epoch=7)
    with live.unchanged():
        live.cluster.groups.delete_offsets("g", "t", dry_run=True)
    found = live.cluster.groups.delete_offsets("g", "t")
    assert rows_of(found, "topic", "partition", "committed") == [("t", 0, 4), ("t", 1, 1)]
    assert at(live.driver()) == {("u", 0): 0}
    live.cluster.groups.delete_offsets("g", "u")
    assert rows_of(live.driver().groups.list(), "group", "partitions", "member_epoch") == [("g", 0, 7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "delete",
    [lambda c: c.groups.delete("g"), lambda c: c.groups.delete_offsets("g", "t")],
    ids=["group", "offsets"],
)
def test_a_group_that_commits_while_it_is_deleted_keeps_all_it_has(
    tmp_path: Path, delete: Callable[[Cluster], Any]
) -> None:
    """Kafka: NON_EMPTY_GROUP. The log decides: another commit came between the look and the append."""
    faults = Faults()
    live = with_group(LiveCluster(tmp_path, through=faults.wrap))
    consumer = live.driver()

    faults.once(lambda: consumer.groups.commit("g", {("t", 1): 2}, member_epoch=7), "stage", of=OFFSETS_TOPIC)
    with pytest.raises(NonEmptyGroupError, match="nothing was deleted; stop its consumers"):
        delete(live.cluster)
    for cluster in (live.cluster, live.driver()):
        assert at(cluster) == {("t", 0): 4, ("t", 1): 2}


def test_two_drivers_that_delete_a_group_at_once_both_find_it_gone(tmp_path: Path) -> None:
    faults = Faults()
    live = with_group(LiveCluster(tmp_path, through=faults.wrap))
    other = live.driver()

    faults.once(lambda: other.groups.delete("g"), "stage", of=OFFSETS_TOPIC)
    live.cluster.groups.delete("g")
    assert live.driver().groups.list().rows == []


@pytest.mark.slow
def test_deleted_offsets_and_groups_stay_deleted_through_a_snapshot(live: LiveCluster) -> None:
    """KIP-630: the snapshot replaces the log, including the deleted groups."""
    live.cluster.snapshot(OFFSETS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.groups.delete_offsets("g", "t")
    live.cluster.groups.commit("h", {("t", 0): 1})
    live.cluster.groups.delete("h")
    live.cluster.snapshot(OFFSETS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.retain(OFFSETS_TOPIC).raise_for_failures()
    live.clock.sleep(10 * MINUTE_S)
    live.cluster.retain(OFFSETS_TOPIC).raise_for_failures()
    assert rows_of(live.driver().groups.list(), "group", "partitions", "member_epoch") == [("g", 0, 7)]
