"""Restore: a cluster on empty brokers from the remote tier alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from engine.cluster import Cluster
from engine.metadata.description import describe
from engine.metadata.partition_commands import AdvanceLogStart, LogStart
from engine.metadata.restore_commands import EPOCH_GAP
from engine.operations.restore_drill import compare
from engine.operations.restore_plan import RestoredPartition
from engine.operations.restore_point import describe_first, write_description
from engine.report import Report
from partitions.errors import CorruptionError, InconsistentClusterIdError, InvalidCallError, StorageError
from partitions.paths import DESCRIPTIONS
from partitions.store import StoreOptions
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.faulty_store import CHANGES, Faults

CONFIGS = {"local_retention_bytes": "-1", "compression_type": "lz4"}


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Cluster ``c``: ``t``, two partitions, typed; of partition 0 [0, 6) are tiered, and [6, 8) are not; of
    partition 1 nothing."""
    made = LiveCluster(tmp_path)
    made.cluster.alter_configs(None, {"default.replication.factor": "2"})
    made.tiered(partitions=2, **CONFIGS)
    append(made, range(3))
    made.cluster.elect("t", [0], leader=made.followers()[0]).raise_for_failures()
    append(made, range(3, 6))
    made.cluster.tier().raise_for_failures()
    append(made, range(6, 8))
    return made


def append(live: LiveCluster, numbers: range, driver: Cluster | None = None) -> None:
    for number in numbers:
        live.append(
            [f"v{number}"], producer="p", sequence=number, at_ms=number, driver=driver
        ).raise_for_failures()


class Heir:
    """Where cluster ``heir`` shall be: other brokers, the same remote."""

    def __init__(self, live: LiveCluster, brokers: int = 3, cluster_id: str = "heir") -> None:
        self.live = live
        self.folder = live.folder / cluster_id
        self.folder.mkdir()
        self.file = self.folder / "cluster.toml"
        lines = ["[cluster]", f'id = "{cluster_id}"', 'remote = "../remote"', "voters = [1]"]
        for broker in range(1, brokers + 1):
            lines += ["[[brokers]]", f"id = {broker}", f'log_dir = "memory://{cluster_id}-b{broker}"']
        self.file.write_text("\n".join(lines))

    def restore(self, former: str = "c", *, dry_run: bool = False) -> Report:
        return Cluster.restore(
            self.file,
            former,
            dry_run=dry_run,
            clock=self.live.clock,
            new_id=self.live.new_id,
            opener=self.live.open_root,
        )

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever written to broker 1."""
        root = self.live.open_root(f"memory://{self.folder.name}-b1", StoreOptions(), self.live.clock)
        return not root.list("")

    def open(self) -> Cluster:
        return Cluster.open(self.file, clock=self.live.clock, new_id=self.live.new_id, opener=self.live.open_root)

    def live_again(self) -> LiveCluster:
        """The harness on the restored cluster."""
        self.live.cluster = self.open()
        return self.live


def restored(live: LiveCluster) -> LiveCluster:
    heir = Heir(live)
    heir.restore().raise_for_failures()
    return heir.live_again()


def test_a_restored_cluster_is_what_was_tiered(live: LiveCluster) -> None:
    """Topics, configs, schemas, epochs, records; the log goes on at the end of the remote one, nothing is
    local.
    """
    before = live.cluster.image
    heir = Heir(live)
    report = heir.restore()
    assert rows_of(report, "topic", "partition", "log_start", "log_end", "replicas") == [
        ("t", 0, 0, 6, 3),
        ("t", 1, 0, 0, 3),
    ]
    live = heir.live_again()
    after = live.cluster.image
    assert after.configs == before.configs
    now, then = after.topic("t"), before.topic("t")
    assert (now.topic_id, now.configs, now.key_schema) == (then.topic_id, then.configs, then.key_schema)
    for broker in live.site().view.replicas:
        log = live.log(broker)
        assert (log.local_start, log.high_watermark, log.log_end, log.chain) == (6, 6, 6, ())
    assert live.isr() == {1, 2, 3}
    assert live.read() == {0: [f"v{number}" for number in range(6)]}
    live.cluster.verify(deep=True).raise_for_failures()


def test_appends_go_on_at_the_end_and_producers_where_they_were(live: LiveCluster) -> None:
    """I3 over a restore: a retry of what was tiered is a duplicate; what was lost is appended if it is retried."""
    live = restored(live)
    again = live.append(["v5"], producer="p", sequence=5)
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 5)]
    append(live, range(6, 9))
    live.cluster.tier().raise_for_failures()
    live.cluster.alter_configs("t", {"local.retention.bytes": "0"})
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: [f"v{number}" for number in range(9)]}
    live.cluster.verify(deep=True).raise_for_failures()


def test_leader_epochs_go_on_far_above_those_that_were_known(live: LiveCluster) -> None:
    """Files are named by epoch: none of the former cluster's may ever be taken for one of the restored one's."""
    known = live.site().view.leader_epoch
    live = restored(live)
    assert live.site().view.leader_epoch == known + EPOCH_GAP + 1
    append(live, range(6, 7))
    epochs = [epoch for epoch, _ in live.log(live.leader()).lineage]
    assert epochs == [1, 2, known + EPOCH_GAP + 1]


def test_the_former_cluster_can_commit_no_more(live: LiveCluster) -> None:
    """Fenced by the table itself, however late it wakes up; what it tries is an error that says why."""
    former = live.cluster
    heir = Heir(live)
    heir.restore()
    report = former.tier()
    assert codes(report) == {"INCONSISTENT_CLUSTER_ID": 1}
    assert "belongs to cluster 'heir', not to 'c'" in the_failure(report)
    with pytest.raises(InconsistentClusterIdError):
        former.plan_read("t")
    live = heir.live_again()
    append(live, range(6, 8))
    live.cluster.tier().raise_for_failures()
    assert live.read() == {0: [f"v{number}" for number in range(8)]}


def test_a_table_that_was_not_there_yet_cannot_be_made_by_the_former_cluster(live: LiveCluster) -> None:
    live.tiered("young")
    live.append(["x"], "young").raise_for_failures()
    former = live.cluster
    former.tier(["t"]).raise_for_failures()
    Heir(live).restore().raise_for_failures()
    assert codes(former.tier(["young"])) == {"INCONSISTENT_CLUSTER_ID": 1}


def test_what_the_former_cluster_commits_until_it_loses_the_tables_is_restored_too(
    tmp_path: Path,
) -> None:
    """Commit, then read: the end of the log is read once nobody else can move it."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered(**CONFIGS)
    append(live, range(4))
    live.cluster.tier().raise_for_failures()
    append(live, range(4, 6))
    former = live.cluster

    def tier_late(uri: str, what: str, name: str) -> None:
        if what == "create" and name.startswith(f"{DESCRIPTIONS}/heir/"):
            faults.none()
            former.tier().raise_for_failures()

    faults.before = tier_late
    heir = Heir(live)
    assert rows_of(heir.restore(), "log_end") == [(6,)]
    assert heir.live_again().read() == {0: [f"v{number}" for number in range(6)]}


def test_a_log_start_inside_a_segment_is_kept(tmp_path: Path) -> None:
    """The table says where its segments begin, the description where the log does."""
    live = LiveCluster(tmp_path)
    live.tiered(**CONFIGS)
    live.append("abcdef").raise_for_failures()
    live.append(["g"]).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    view = live.site().view
    command = AdvanceLogStart((LogStart(view.topic_id, 0, 4),))
    live.cluster._context.metadata.submit(command)
    live.cluster.tier().raise_for_failures()
    live = restored(live)
    assert live.site().view.log_start_offset == 4
    assert live.read() == {0: ["e", "f", "g"]}


def test_a_topic_that_was_not_tiered_comes_back_empty_and_is_named(live: LiveCluster) -> None:
    live.topic("local", partitions=2, copies=2, segment_bytes="4096")
    live.append(["x"], "local").raise_for_failures()
    live.cluster.commit("group", {("t", 0): 3}).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    heir = Heir(live)
    notes = heir.restore().raise_for_failures().notes
    assert any("the records of local are lost" in note for note in notes)
    assert any("__consumer_offsets is lost" in note for note in notes)
    live = heir.live_again()
    assert live.cluster.image.topic("local").configs["segment.bytes"] == "4096"
    assert "__consumer_offsets" not in live.cluster.image.topic_ids
    append_report = live.append(["y"], "local")
    assert rows_of(append_report, "base_offset") == [(0,)]
    assert live.cluster.committed("group") == {}


def test_fewer_brokers_hold_fewer_replicas_and_the_report_says_so(live: LiveCluster) -> None:
    heir = Heir(live, brokers=2)
    notes = heir.restore().raise_for_failures().notes
    assert "t has 2 replicas, not 3: there are no more brokers" in notes
    assert heir.live_again().isr() == {1, 2}


def stopping_after(faults: Faults, changes: int) -> None:
    """The driver dies when it is about to change storage once more."""
    left = changes

    def stop(uri: str, what: str, name: str) -> None:
        nonlocal left
        if what in CHANGES - {"stage"}:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    faults.before = stop


def stopped_restore(folder: Path, changes: int) -> bool:
    """Whether a restore that dies after so many changes has ended before. It is run again, and all is well."""
    faults = Faults()
    live = LiveCluster(folder, through=faults.wrap)
    live.tiered(copies=2, **CONFIGS)
    append(live, range(3))
    live.cluster.tier().raise_for_failures()
    heir = Heir(live, brokers=2)
    stopping_after(faults, changes)
    try:
        heir.restore().raise_for_failures()
        return True
    except KeyboardInterrupt:
        faults.none()
    heir.restore().raise_for_failures()
    live = heir.live_again()
    assert live.read() == {0: ["v0", "v1", "v2"]}
    append(live, range(3, 5))
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    return False


@pytest.mark.parametrize("changes", [1, 6, 9, 12])
def test_a_restore_that_stopped_is_run_again(tmp_path: Path, changes: int) -> None:
    assert not stopped_restore(tmp_path, changes)


@pytest.mark.slow
def test_a_restore_may_stop_after_each_of_its_changes(tmp_path: Path) -> None:
    for changes in range(100):
        (tmp_path / str(changes)).mkdir()
        if stopped_restore(tmp_path / str(changes), changes):
            assert changes > 12
            return
    raise AssertionError("it never came to its end")


def test_a_restored_cluster_can_be_restored_before_it_has_tiered_anything(live: LiveCluster) -> None:
    Heir(live).restore().raise_for_failures()
    third = Heir(live, cluster_id="third")
    third.restore("heir").raise_for_failures()
    live = third.live_again()
    assert live.read() == {0: [f"v{number}" for number in range(6)]}
    append(live, range(6, 7))
    assert live.site().view.leader_epoch > 2 * EPOCH_GAP


# --------------------------------------------------------------------------------------- bad input


def test_a_dry_run_changes_nothing(live: LiveCluster) -> None:
    heir = Heir(live)
    with live.unchanged():
        report = heir.restore(dry_run=True)
        assert rows_of(report, "partition", "log_end") == [(0, 6), (1, 0)]
    assert heir.untouched


def test_the_restored_cluster_needs_an_id_of_its_own(live: LiveCluster) -> None:
    heir = Heir(live)
    with live.unchanged(), pytest.raises(InvalidCallError, match="give it another id"):
        heir.restore("heir")


def test_an_unknown_cluster_is_named_with_those_that_are_there(live: LiveCluster) -> None:
    heir = Heir(live)
    with live.unchanged(), pytest.raises(InvalidCallError, match="no description of cluster 'd': it describes c"):
        heir.restore("d")


def test_a_damaged_remote_restores_nothing(live: LiveCluster) -> None:
    """A listed object that is gone, or a description that says something else than its name: one clear error."""
    path = next(live.remote.rglob("0/*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    heir = Heir(live)
    with live.unchanged():
        failure = the_failure(heir.restore())
    assert failure.startswith("t: REMOTE_OBJECT_MISSING")
    assert path.name in failure
    assert heir.untouched
    path.write_bytes(content)
    (described,) = (live.remote / DESCRIPTIONS / "c").iterdir()
    described.write_bytes(described.read_bytes().replace(b'"t"', b'"u"'))
    with pytest.raises(CorruptionError, match=described.name):
        heir.restore()


def test_configs_that_cannot_be_set_any_more_restore_nothing(live: LiveCluster) -> None:
    """Found before the tables are taken over."""
    remote = live.cluster._context.remote_store("test")
    now = describe(live.cluster.image)
    later = msgspec.structs.replace(now.topics[0], configs={**now.topics[0].configs, "segment.bites": "5"})
    write_description(remote, msgspec.structs.replace(now, topics=(later,)), 10**6)
    heir = Heir(live)
    with live.unchanged():
        assert "INVALID_CONFIG: topic 't': unknown config 'segment.bites'" in the_failure(heir.restore())
    assert heir.untouched
    write_description(remote, msgspec.structs.replace(now, configs={"segment.bites": "5"}), 10**7)
    assert codes(heir.restore()) == {"INVALID_CONFIG": 1}


def test_brokers_that_hold_something_else_are_left_alone(live: LiveCluster) -> None:
    heir = Heir(live)
    other = Cluster.format(heir.file, clock=live.clock, new_id=live.new_id, opener=live.open_root)
    other.create_topic("mine", partitions=1, replication_factor=1)
    with live.unchanged(), pytest.raises(InvalidCallError, match="has topics of its own, mine"):
        heir.restore()
    live.cluster.tier().raise_for_failures()


# ---------------------------------------------------------------------------------- descriptions


def described(live: LiveCluster) -> list[str]:
    return sorted(path.name for path in (live.remote / DESCRIPTIONS / "c").iterdir())


def test_a_tier_run_with_nothing_new_writes_no_description(live: LiveCluster) -> None:
    before = described(live)
    live.cluster.tier().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    assert described(live) == before
    live.cluster.alter_configs("t", {"segment.bytes": "2"})
    live.cluster.tier(dry_run=True)
    assert described(live) == before
    live.cluster.tier().raise_for_failures()
    assert len(described(live)) == len(before) + 1


def test_a_few_descriptions_are_kept_and_a_late_one_counts_for_nothing(live: LiveCluster) -> None:
    stale = live.driver()._context
    image = stale.metadata.image()
    for number in range(5):
        live.cluster.alter_configs("t", {"segment.bytes": str(number + 2)})
        live.cluster.tier().raise_for_failures()
    kept = described(live)
    assert len(kept) == 3
    latest = json.loads((live.remote / DESCRIPTIONS / "c" / kept[-1]).read_bytes())
    assert latest["topics"][0]["configs"]["segment.bytes"] == "6"
    assert describe_first(stale, image) == []
    assert described(live) == kept


def test_log_starts_are_described_as_soon_as_retention_moves_them(tmp_path: Path) -> None:
    """Before the segments below them go: what was deleted does not come back with a restore."""
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    live.cluster.alter_configs("t", {"retention.bytes": "1"})
    live.cluster.retain().raise_for_failures()
    start = live.site().view.log_start_offset
    assert start > 0
    latest = json.loads((live.remote / DESCRIPTIONS / "c" / described(live)[-1]).read_bytes())
    assert latest["topics"][0]["partitions"] == [[1, start]]


def test_a_vacuum_leaves_descriptions_alone(live: LiveCluster) -> None:
    before = described(live)
    live.cluster.vacuum(older_than_ms=0).raise_for_failures()
    assert described(live) == before


def test_that_the_description_cannot_be_written_keeps_nothing_from_being_tiered(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered()
    live.fill("abc")

    def failing(uri: str, what: str, name: str) -> None:
        if what == "create" and name.startswith(DESCRIPTIONS):
            raise StorageError("no")

    faults.before = failing
    report = live.cluster.tier()
    assert the_failure(report) == "restore point: KAFKA_STORAGE_ERROR: no"
    assert report.totals["uploaded_files"] == 3


# ------------------------------------------------------------------------------------------ drill


def test_a_drill_tells_what_would_be_lost_and_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        report = live.cluster.drill(opener=live.open_root, deep=True)
    wanted = ("partition", "log_end", "high_watermark", "lost_records", "compared_records")
    assert rows_of(report, *wanted) == [(0, 6, 8, 2, 8), (1, 0, 0, 0, 0)]
    assert (report.totals["records"], report.totals["lost_records"]) == (6, 2)
    live.cluster.tier().raise_for_failures()
    assert live.cluster.drill(opener=live.open_root).raise_for_failures().totals["lost_records"] == 0


def alike(folder: Path, count: int) -> list[LiveCluster]:
    """Clusters at one time of day, each with a topic ``t`` of its own."""
    made: list[LiveCluster] = []
    for number in range(count):
        (folder / str(number)).mkdir()
        made.append(LiveCluster(folder / str(number)))
        made[-1].clock.advance_ms(made[0].clock.now_ms() - made[-1].clock.now_ms())
        made[-1].tiered()
    return made


def compared(live: LiveCluster, copy: LiveCluster, *, deep: bool = False) -> Mapping[str, object]:
    topic = next(iter(describe(copy.cluster.image).topics))
    end = copy.log(copy.leader()).high_watermark
    one = RestoredPartition(topic, 0, 0, end, 1, ())
    return compare(live.cluster._context, copy.cluster._context, one, deep)


@pytest.mark.parametrize(
    ("values", "deep", "difference"),
    [
        (["a", "b", "c"], True, None),
        (["x", "b", "c"], False, r"the records \[0, 1\) are others"),
        (["a", "b", "x"], False, r"the records \[2, 3\) are others"),
        (["a", "x", "c"], True, r"the records \[0, 3\) are others"),
        (["a", "b", "c", "d"], False, "beyond the leader's"),
    ],
)
def test_a_difference_is_a_failure(tmp_path: Path, values: list[str], deep: bool, difference: str | None) -> None:
    one, two = alike(tmp_path, 2)
    one.append(["a", "b", "c"], producer="p").raise_for_failures()
    two.append(values, producer="p").raise_for_failures()
    if difference is None:
        assert compared(one, two, deep=deep)["compared_records"] == 5
    else:
        with pytest.raises(CorruptionError, match=difference):
            compared(one, two, deep=deep)


def test_other_producers_or_epochs_are_a_failure(tmp_path: Path) -> None:
    one, two, three = alike(tmp_path, 3)
    for each, producer in ((one, "p"), (two, "q"), (three, "p")):
        each.append(["a"], producer=producer).raise_for_failures()
    with pytest.raises(CorruptionError, match="the producers at offset 1 are others"):
        compared(one, two)
    for each in (one, three):
        each.append(["b"], producer="p", sequence=1).raise_for_failures()
        if each is three:
            each.cluster.elect(leader=each.followers()[0]).raise_for_failures()
        each.append(["c"], producer="p", sequence=2).raise_for_failures()
    with pytest.raises(CorruptionError, match="the leader epochs below offset 3"):
        compared(one, three)


def test_a_drill_names_a_remote_object_that_is_gone(live: LiveCluster) -> None:
    next(live.remote.rglob("0/*.parquet")).unlink()
    failures = live.cluster.drill(opener=live.open_root).failures
    assert [failure.code for failure in failures] == ["REMOTE_OBJECT_MISSING"]


def test_a_drill_tells_what_is_newer_than_the_description(live: LiveCluster) -> None:
    live.topic("new")
    live.cluster.alter_configs("t", {"segment.bytes": "7"})
    live.cluster.alter_configs(None, {"num.partitions": "4"})
    notes = live.cluster.drill(opener=live.open_root).notes
    assert any("topic new is newer than the description" in note for note in notes)
    assert any("topic t has changed" in note for note in notes)
    assert any("configs of the cluster have changed" in note for note in notes)
