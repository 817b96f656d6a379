"""Plans of batch reads: their coverage, pinning, replicas, and description."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster, Committed, OffsetAndMetadata, OffsetSpec
from stratalog.engine.reading.plan_read import plan_again
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.partitions.errors import LogTruncationError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.segments.reader import forget
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch
from tests.unit.nearest_harness import racked

START = datetime(2024, 1, 1, tzinfo=UTC)


def built(folder: Path) -> LiveCluster:
    """Topics ``t`` of two partitions and ``trips`` of one; ``t``-0 holds a..f, ``t``-1 g and h, ``trips`` x and y.
    Three replicas in the racks a, b, c."""
    made = LiveCluster(folder)
    made.topic(partitions=2)
    made.topic("trips")
    for value in "abcdef":
        made.append({0: [value]})
    made.append({1: ["g", "h"]})
    made.append(["x"], "trips")
    made.append(["y"], "trips")
    return made


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return built(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, of which the group ``g`` has read four records, for tests that change nothing."""
    made = built(tmp_path_factory.mktemp("shared"))
    made.cluster.groups.commit("g", {("t", 0): 4}).raise_for_failures()
    return made


def covered(plan: ReadPlan) -> dict[tuple[str, int], tuple[int, int]]:
    """The offsets of each partition; the files must be contiguous over them."""
    for one in plan.partitions:
        ends = [one.start, *(part.end for part in one.files)]
        assert [part.start for part in one.files] == ends[:-1]
        assert ends[-1] == one.end
    return {(one.topic, one.partition): (one.start, one.end) for one in plan.partitions}


def again(cluster: Cluster, plan: ReadPlan, rack: str | None = None) -> ReadPlan:
    return with_ports(plan_again, ports_of(cluster))(plan, ClientMetadata(rack=rack))


def values(live: LiveCluster, plan: ReadPlan) -> list[str]:
    return [value for part in plan for _, value in live.records(part)]


# --------------------------------------------------------------------------- what is covered


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"last": 2}, {("t", 0): (4, 6), ("t", 1): (0, 2)}),
        ({"last": 100}, {("t", 0): (0, 6), ("t", 1): (0, 2)}),
        ({"last": 2, "end": {0: 3}}, {("t", 0): (1, 3), ("t", 1): (0, 2)}),
        ({"start": Committed("g")}, {("t", 0): (4, 6), ("t", 1): (0, 2)}),
        ({"end": Committed("g")}, {("t", 0): (0, 4), ("t", 1): (0, 0)}),
        ({"start": {0: OffsetSpec.LATEST, 1: 1}}, {("t", 0): (6, 6), ("t", 1): (1, 2)}),
        ({"start": {("t", 0): 5}}, {("t", 0): (5, 6), ("t", 1): (0, 2)}),
        ({"topic": ["trips", "t"], "last": 1}, {("trips", 0): (1, 2), ("t", 0): (5, 6), ("t", 1): (1, 2)}),
        ({"topic": ["t", "trips", "t"], "partitions": [0]}, {("t", 0): (0, 6), ("trips", 0): (0, 2)}),
        ({"topic": None, "pattern": "t.*"}, {("t", 0): (0, 6), ("t", 1): (0, 2), ("trips", 0): (0, 2)}),
        ({"topic": None, "pattern": "t"}, {("t", 0): (0, 6), ("t", 1): (0, 2)}),
        ({"topic": None, "pattern": ".*"}, {("t", 0): (0, 6), ("t", 1): (0, 2), ("trips", 0): (0, 2)}),
        (
            {"topic": ["t", "trips"], "start": {("t", 0): 5, ("trips", 0): 1}, "partitions": [0]},
            {("t", 0): (5, 6), ("trips", 0): (1, 2)},
        ),
    ],
)
def test_a_plan_covers_the_chosen_offsets_of_the_chosen_topics(
    shared: LiveCluster, asked: dict[str, Any], expected: dict[tuple[str, int], Any]
) -> None:
    """The last n records of each partition, a group's offsets, several topics, a pattern of their names (which
    matches no internal topic)."""
    assert covered(shared.cluster.plan_read(**{"topic": "t", **asked})) == expected


def test_a_group_that_is_ahead_of_the_high_watermark_has_nothing_to_read(live: LiveCluster) -> None:
    """The group may have processed a record that is not committed on all replicas yet."""
    live.append({0: ["later"]}, acks="leader")
    live.cluster.groups.commit("g", {("t", 0): 7}).raise_for_failures()
    assert covered(live.cluster.plan_read("t", Committed("g"), partitions=[0])) == {("t", 0): (6, 6)}


# --------------------------------------------------------------------------------- pinned


def tiered(tmp_path: Path) -> LiveCluster:
    """``t``-0 holds a..f, all local."""
    made = LiveCluster(tmp_path)
    made.tiered()
    made.fill("abcdef")
    return made


@pytest.mark.slow
def test_a_plan_whose_files_are_merged_is_carried_out_on_the_merged_segment(tmp_path: Path) -> None:
    """The successor holds the same offsets; both ends of the plan are in the middle of it."""
    live = LiveCluster(tmp_path)
    live.topic(segment_merge_min_files="2", file_delete_delay_ms="0")
    live.fill("abcdef")
    plan = live.cluster.plan_read("t", 1, 5)
    live.cluster.merge().raise_for_failures()
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    left = {live.store(live.leader()).uri_of(link.file.object.name) for link in live.log(live.leader()).chain}
    assert not left & {part.uri for part in plan}
    live.fill("gh")
    after = again(live.cluster, plan)
    assert [(part.start, part.end, part.file_start, part.file_end) for part in after] == [(1, 5, 0, 6)]
    assert values(live, after) == list("bcde")
    assert [one.epochs for one in after.partitions] == [one.epochs for one in plan.partitions]


def test_a_plan_whose_files_are_tiered_is_carried_out_on_the_remote_ones(tmp_path: Path) -> None:
    live = tiered(tmp_path)
    plan = live.cluster.plan_read("t", 1, 5)
    assert not any(part.remote for part in plan)
    live.tier_and_drop()
    live.fill("gh")
    after = again(live.cluster, plan)
    assert all(part.remote for part in after)
    assert values(live, after) == list("bcde")


def test_records_deleted_meanwhile_fail_the_plan_or_are_skipped_with_a_note(live: LiveCluster) -> None:
    """failOnDataLoss: "rows are never skipped silently"."""
    strict = live.cluster.plan_read("t", 1, 5, [0])
    lenient = live.cluster.plan_read("t", 1, 5, [0], fail_on_data_loss=False)
    gone = live.cluster.plan_read("t", 0, 2, [0], fail_on_data_loss=False)
    assert lenient.notes == []
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: start 1 is below the log start: readers see \[3, 6\)"):
        again(live.cluster, strict)
    after = again(live.cluster, lenient)
    assert after.notes == ["t-0: offsets [1, 3) were deleted, and are skipped"]
    assert "offsets [1, 3) were deleted" in after.explain()
    assert values(live, after) == ["d", "e"]
    nothing = again(live.cluster, gone)
    assert (list(nothing), nothing.notes) == ([], ["t-0: offsets [0, 2) were deleted, and are skipped"])


def test_a_read_may_leave_out_what_is_deleted_but_never_what_is_beyond_the_end(live: LiveCluster) -> None:
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    plan = live.cluster.plan_read("t", 0, None, [0], fail_on_data_loss=False)
    assert (covered(plan), plan.notes) == (
        {("t", 0): (3, 6)},
        ["t-0: offsets [0, 3) were deleted, and are skipped"],
    )
    with pytest.raises(OffsetOutOfRangeError, match="end 9 is above the high watermark"):
        live.cluster.plan_read("t", 0, 9, [0], fail_on_data_loss=False)
    with pytest.raises(OffsetOutOfRangeError, match="start 2 is after end 1"):
        live.cluster.plan_read("t", 2, 1, [0], fail_on_data_loss=False)


@pytest.mark.slow
def test_a_plan_of_a_topic_that_was_deleted_and_created_again_is_refused(live: LiveCluster) -> None:
    plan = live.cluster.plan_read("trips")
    live.cluster.topics.delete("trips").raise_for_failures()
    live.topic("trips")
    live.append(["z", "z"], "trips")
    with pytest.raises(UnknownTopicOrPartitionError, match="'trips' was deleted and created again"):
        again(live.cluster, plan)


def test_a_plan_of_records_that_an_unclean_election_has_replaced_is_refused(tmp_path: Path) -> None:
    """The offsets exist, but with other records: the plan names the first of them. Records below are unchanged."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic(copies=2)
    live.append(["a"])
    leader, other = live.leader(), live.followers()[0]
    live.cluster.replicate().raise_for_failures()
    live.cluster.brokers.fence(other).raise_for_failures()
    for value in "bc":
        live.append([value])
    plan, below = live.cluster.plan_read("t"), live.cluster.plan_read("t", 0, 1)
    live.cluster.brokers.fence(leader, force=True).raise_for_failures()
    live.cluster.brokers.unfence(other).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    assert live.leader() == other
    for value in "xy":
        live.append([value])
    with pytest.raises(LogTruncationError, match=r"t-0: an unclean election .* offsets \[1, 3\)") as caught:
        again(live.cluster, plan)
    assert caught.value.divergent_offset == 1
    assert values(live, again(live.cluster, below)) == ["a"]


@pytest.mark.slow
def test_a_group_whose_records_an_unclean_election_has_replaced_is_reported(tmp_path: Path) -> None:
    """KIP-320: the leader epoch of the commit is checked, and the answer names the offset up to which histories
    agree. A commit without one, as by a reset, is only an offset."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic(copies=2)
    live.fill("a")
    leader, other = live.leader(), live.followers()[0]
    live.cluster.replicate().raise_for_failures()
    live.cluster.brokers.fence(other).raise_for_failures()
    live.fill("bc")
    live.cluster.topics.alter_configs(
        None, {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "2"}
    )
    (epoch,) = (
        answer.leader_epoch for answer in live.cluster.offsets("t", START - timedelta(days=99999)).values()
    )
    live.cluster.groups.commit("g", {("t", 0): OffsetAndMetadata(3, epoch)}).raise_for_failures()
    assert covered(live.cluster.plan_read("t", Committed("g"))) == {("t", 0): (3, 3)}
    live.cluster.brokers.fence(leader, force=True).raise_for_failures()
    live.cluster.brokers.unfence(other).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.fill("xyz")
    for bounds in ({"start": Committed("g")}, {"end": Committed("g")}):
        with pytest.raises(
            LogTruncationError, match=r"t-0: the records that were read up to offset 3.*from offset 1 on"
        ) as caught:
            live.cluster.plan_read("t", **bounds)
        assert caught.value.divergent_offset == 1
    live.cluster.groups.reset_offsets("g", ["t"], to=1).raise_for_failures()
    assert covered(live.cluster.plan_read("t", Committed("g"))) == {("t", 0): (1, 4)}


def test_a_file_that_vanishes_while_it_is_looked_into_is_looked_for_again(tmp_path: Path) -> None:
    """Another driver merges and vacuums between the listing and the look at a footer."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(segment_merge_min_files="2", file_delete_delay_ms="0")
    live.fill("abcdef")
    other, done = live.driver(), list[str]()

    def merge(uri: str, what: str, name: str) -> None:
        if what == "list" and "/t-" in name:
            faults.none()
            done.append(name)
            other.merge().raise_for_failures()
            other.vacuum().raise_for_failures()

    faults.after = merge
    plan = live.driver().plan_read("t", 1, 5)
    assert done
    assert values(live, plan) == list("bcde")


# ------------------------------------------------------------------------- the nearest replica


@pytest.fixture
def racks(tmp_path: Path) -> LiveCluster:
    """``t``-0 holds a..d everywhere; only the leader holds e and f, as far as its followers know; selectors look
    at racks.
    """
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("abcd")
    live.cluster.topics.alter_configs(
        None, {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    )
    return live


def test_local_files_are_of_the_replica_in_the_readers_rack(racks: LiveCluster) -> None:
    """KIP-392: no records cross racks; a reader without a rack, or in the leader's rack, reads from the leader."""
    follower = racks.followers()[0]
    rack = chr(96 + follower)
    near = racks.cluster.plan_read("t", client_rack=rack)
    assert {part.broker for part in near} == {follower}
    assert all(part.uri.startswith(racks.store(follower).uri) for part in near)
    assert near.cross_rack_bytes == 0
    assert values(racks, near) == list("abcd")
    far = racks.cluster.plan_read("t", client_rack="nowhere")
    assert {part.broker for part in far} == {racks.leader()}
    assert far.cross_rack_bytes == far.size_bytes > 0
    nowhere = racks.cluster.plan_read("t")
    assert ({part.broker for part in nowhere}, nowhere.cross_rack_bytes) == ({racks.leader()}, None)


def test_records_that_the_near_replica_does_not_serve_yet_are_read_from_the_leader(racks: LiveCluster) -> None:
    """The near replica's high watermark bounds the records that it serves (KIP-392)."""
    leader, (follower, third) = racks.leader(), racks.followers()
    with pytest.MonkeyPatch.context() as patch:
        store = racks.store(follower)
        create = store.create
        patch.setattr(store, "create", lambda name, data: name.endswith(".hw") or create(name, data))
        racks.fill("ef")
    plan = racks.cluster.plan_read("t", 1, 6, client_rack=chr(96 + follower))
    assert [(part.start, part.end, part.broker) for part in plan] == [
        (1, 2, follower),
        (2, 3, follower),
        (3, 4, follower),
        (4, 5, leader),
        (5, 6, leader),
    ]
    assert values(racks, plan) == list("bcdef")
    assert plan.cross_rack_bytes == sum(part.size_bytes for part in plan if part.broker == leader)
    assert third not in {part.broker for part in plan}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", list(Isolation))
def test_planning_and_reading_in_the_readers_rack_moves_no_byte_of_a_file_across_racks(
    tmp_path: Path, isolation: str
) -> None:
    """The stores count the requests: footers and records, also those of transactions. The leader sends names, and
    the register of each leader epoch (once, at its start).
    """
    faults = Faults()
    live = racked(tmp_path, faults)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    driver, read = live.driver(), set[str]()
    driver.plan_read("t", last=1, client_rack="b")  # this plan reads the leader epoch
    with live.cluster.transactions.begin("x") as t:
        t.append_batches("t", {0: [batch(["g"])]})
    live.append([f"long {number:050}" for number in range(500)]).raise_for_failures()
    faults.before = lambda uri, what, name: read.add(uri) if what in ("open", "read") and "/t-" in name else None
    asked: list[tuple[dict[str, Any], int]] = [({}, 507), ({"start": 3, "end": 400}, 396), ({"last": 20}, 20)]
    for bounds, records in asked:
        plan = driver.plan_read("t", client_rack="b", isolation=isolation, **bounds)
        assert plan.cross_rack_bytes == 0
        assert all(part.uri.startswith("memory://b2/") for part in plan)
        assert len(values(live, plan)) == records
    assert read == {"memory://b2"}


# ------------------------------------------------------------------------------------ explained


def test_a_plan_explains_itself(tmp_path: Path) -> None:
    """Files, bytes, ranges, the replica and rack of each file, and the omitted parts."""
    live = LiveCluster(tmp_path)
    live.cluster.topics.create("t", partitions=1, replication_factor=1, configs=TIERED)
    for number, value in enumerate("abcd"):
        live.append([value, value], at_ms=round((START + timedelta(minutes=number)).timestamp() * 1000))
        if number == 2:
            live.tier_and_drop()
    plan = live.cluster.plan_read("t", 3, 7, client_rack="z")
    sizes = [f"{part.size_bytes:,}" for part in plan]
    remote, local, cut = plan
    rack = chr(96 + live.leader())
    assert str(plan) == plan.explain()
    first = live.cluster.plan_read("t", 0, 2)
    assert plan.explain() == "\n".join(
        [
            "read t: 4 records of 1 partition",
            f"  3 files, {plan.size_bytes:,} bytes: 2 local, 1 remote ({sizes[0]} bytes)",
            f"  skipped by offset: 1 file, {first.size_bytes:,} bytes",
            f"  reader in rack z: {local.size_bytes + cut.size_bytes:,} bytes of local files cross racks",
            "t-0 [3, 7)",
            f"  [3, 4) of [2, 4)  remote  {sizes[0]} bytes  {remote.uri}",
            f"  [4, 6)  broker {live.leader()} (rack {rack})  {sizes[1]} bytes  {local.uri}",
            f"  [6, 7) of [6, 8)  broker {live.leader()} (rack {rack})  {sizes[2]} bytes  {cut.uri}",
        ]
    )
    by_time = live.cluster.plan_read("t", START + timedelta(minutes=3))
    assert "skipped by time: 3 files" in by_time.explain()
    assert "cross racks" not in by_time.explain()


@pytest.mark.slow
def test_a_plan_looks_only_into_appends_of_its_range(tmp_path: Path) -> None:
    """A footer costs a request: footers of files outside the range are not read, except the last one, which has
    the log's end."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(copies=1)
    live.fill("abcdefgh")
    opened: list[str] = []
    faults.before = lambda uri, what, name: opened.append(name) if what in ("open", "read") else None
    forget()
    live.driver().plan_read("t", 2, 4)
    bases = {
        int(name.rpartition("/")[2].split(".")[0])
        for name in opened
        if name.endswith(".parquet") and "/t-" in name
    }
    assert bases == {2, 3, 7}
