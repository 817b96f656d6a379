"""The uploads of a tier run: in turns, with a deadline, committed as they come (KIP-405, RLM task, step 2)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.upkeep.tiering import uploads
from stratalog.partitions.errors import CorruptionError, StorageError
from stratalog.partitions.lineage import Lineage
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_change import CommittedBatch
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from tests.unit.cluster_harness import codes, fence, rows_of, the_failure, unfence
from tests.unit.tier_harness import Call, RemoteFaults, states
from tests.unit.tiering_harness import segment, uploaded


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteFaults:
    return RemoteFaults(tmp_path, monkeypatch)


class Executors(LocalTasks):
    """Claims to run work in other processes, in waves."""

    processes = 2


def of_partition(name: str) -> int:
    return int(name.split("/")[-2])


def base_of(name: str) -> int:
    return int(name.split("/")[-1][:20])


@pytest.mark.slow
def test_a_segment_that_fails_discards_nothing_of_the_others(live: RemoteFaults) -> None:
    """Earlier segments are committed, and so are those of every other partition; later ones wait, and are not
    uploaded again.
    """
    live.tiered(partitions=3)
    for _ in range(4):
        live.append({n: ["x"] for n in range(3)}).raise_for_failures()

    behind = threading.Event()

    def full(what: str, name: str, call: Call) -> object:
        if what == "stage" and of_partition(name) == 1 and base_of(name) == 2:
            assert behind.wait(60), "the segment behind it is uploaded meanwhile"
            raise StorageError(f"no space left for {name}")
        done = call()
        if what == "commit" and of_partition(name) == 1 and base_of(name) == 3:
            behind.set()
        return done

    live.on_remote = full
    report = live.cluster.tier(check=False)
    assert live.remote_ends() == {0: 4, 1: 2, 2: 4}
    assert "t-1: KAFKA_STORAGE_ERROR: no space left" in the_failure(report)
    assert states(report) == {("t", 0): (0, 0), ("t", 1): (1, 0), ("t", 2): (0, 0)}
    live.on_remote = lambda what, name, call: call()
    report = live.cluster.tier().raise_for_failures()
    assert live.remote_ends() == {0: 4, 1: 4, 2: 4}
    uploaded = rows_of(report, "partition", "uploaded_files")
    assert uploaded == [(0, 0), (1, 2), (2, 0)]
    one = len(live.data(live.leader("t", 1), "t", 1)[f"{2:020d}.{1:010d}.parquet"])
    assert report.totals["uploaded_bytes"] == one, "what was uploaded behind it was reused"


def test_the_others_are_committed_while_one_upload_hangs(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hanging upload continues only after it has seen the commit of the others."""
    monkeypatch.setattr(uploads, "COMMIT_EVERY_S", 0.0)
    live.tiered(partitions=3)
    live.append({n: ["x"] for n in range(3)}).raise_for_failures()
    committed = threading.Event()
    in_time: list[bool] = []

    def hang(what: str, name: str, call: Call) -> object:
        if what == "stage" and of_partition(name) == 1:
            in_time.append(committed.wait(10))
        return call()

    commits = DeltaTopicTable.commit

    def commit(table: DeltaTopicTable, *args: object) -> CommittedBatch:
        done = commits(table, *args)  # type: ignore[arg-type]
        if len(done.log.segments) == 2:
            committed.set()
        return done

    live.on_remote = hang
    monkeypatch.setattr(DeltaTopicTable, "commit", commit)
    live.cluster.tier().raise_for_failures()
    assert in_time == [True]
    assert live.remote_ends() == {0: 1, 1: 1, 2: 1}


@pytest.mark.slow
def test_a_hung_upload_is_given_up_after_its_deadline_and_not_retried_while_it_hangs(live: RemoteFaults) -> None:
    """The upload fails like any other, with its age, and leaves one hanging thread, not one per run."""
    live.tiered(partitions=3)
    live.append({n: ["x"] for n in range(3)}).raise_for_failures()
    goes_on, begun = threading.Event(), list[str]()

    def hang(what: str, name: str, call: Call) -> object:
        if what == "stage" and of_partition(name) == 1:
            begun.append(name)
            goes_on.wait(30)
        return call()

    live.on_remote = hang
    live.cluster.topics.alter_configs(None, {"remote.log.manager.copy.timeout.ms": "300"})
    report = live.cluster.tier(check=False)
    assert not goes_on.is_set()
    assert live.remote_ends() == {0: 1, 2: 1}
    assert codes(report) == {"REQUEST_TIMED_OUT": 1}
    assert "remote.log.manager.copy.timeout.ms" in the_failure(report)
    live.clock.advance_ms(1000)
    assert states(live.cluster.tier(check=False))["t", 1] == (2, 1000)
    assert len(begun) == 1
    goes_on.set()
    live.cluster.topics.alter_configs(None, {"remote.log.manager.copy.timeout.ms": None})
    driver = live.driver()
    driver.tier()  # this run may meet the abandoned upload, which continues now
    driver.tier().raise_for_failures()
    assert live.remote_ends() == {0: 1, 1: 1, 2: 1}


def test_uploads_take_turns_by_segment(live: RemoteFaults) -> None:
    """A partition's whole backlog never precedes a fresh segment of another one."""
    live.tiered(partitions=2)
    for _ in range(4):
        live.append({0: ["x"]}).raise_for_failures()
    live.append({1: ["y"]}).raise_for_failures()
    order: list[tuple[int, int]] = []

    def note(what: str, name: str, call: Call) -> object:
        if what == "stage":
            order.append((of_partition(name), base_of(name)))
        return call()

    live.on_remote = note
    live.in_turn().tier().raise_for_failures()
    assert order == [(0, 0), (1, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.slow
def test_a_partition_that_fails_begins_nothing_more(live: RemoteFaults, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing partition wastes at most LOOKAHEAD uploads, however long its backlog is."""
    monkeypatch.setattr(uploads, "WAVE", 1000)
    live.tiered()
    live.fill("x" * (uploads.LOOKAHEAD + 10))
    staged: list[int] = []

    def refuse(what: str, name: str, call: Call) -> object:
        if what == "stage":
            staged.append(base_of(name))
            raise StorageError("no")
        return call()

    live.on_remote = refuse
    driver = live.in_turn()
    live.ports(driver).execution.tasks = Executors(1)
    assert not driver.tier(check=False).ok
    assert len(staged) == uploads.LOOKAHEAD


@pytest.mark.slow
def test_nothing_more_is_uploaded_once_nobody_would_commit_it(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a commit is raised when the running uploads have ended, not after a whole backlog."""
    monkeypatch.setattr(uploads, "COMMIT_EVERY_S", 0.0)
    live.tiered()
    live.fill("x" * 40)
    ended, staged = threading.Event(), list[int]()
    commits = uploads.Uploads._commit_as_they_come

    def end(uploads: uploads.Uploads) -> None:
        try:
            commits(uploads)
        finally:
            ended.set()

    def note(what: str, name: str, call: Call) -> object:
        if what == "stage":
            staged.append(base_of(name))
            if base_of(name) >= uploads.LANES:
                assert ended.wait(30)
        return call()

    def bug(*_: object) -> CommittedBatch:
        raise ZeroDivisionError

    live.on_remote = note
    monkeypatch.setattr(uploads.Uploads, "_commit_as_they_come", end)
    monkeypatch.setattr(DeltaTopicTable, "commit", bug)
    with pytest.raises(ZeroDivisionError):
        live.cluster.tier()
    assert len(staged) <= 2 * uploads.LANES


def test_segments_of_a_deposed_leader_are_not_committed(live: RemoteFaults) -> None:
    """The leader changes while its segments are in flight: the commit detects it, the next run continues."""
    live.tiered()
    live.fill("ab")
    other = live.followers()[0]
    elected: list[bool] = []

    def elect(what: str, name: str, call: Call) -> object:
        done = call()
        if what == "commit" and not elected:
            elected.append(True)
            live.driver().elect("t", leader=other).raise_for_failures()
        return done

    live.on_remote = elect
    report = live.cluster.tier(check=False)
    assert codes(report) == {"FENCED_LEADER_EPOCH": 1}
    assert live.remote_ends() == {}
    assert live.leader() == other
    assert rows_of(live.cluster.tier(due=True), "uploaded_files", "uploaded_bytes") == [(2, 0)]
    assert live.remote_ends() == {0: 2}


@pytest.mark.parametrize("change", ["deleted", "not copied any more"])
def test_a_topic_that_is_not_tiered_any_more_gets_no_commit(live: RemoteFaults, change: str) -> None:
    live.tiered()
    live.fill("a")
    table = live.ports().storage.remote_table(live.cluster.image.topic("t"))

    def turn_off(what: str, name: str, call: Call) -> object:
        done = call()
        if what == "commit" and change == "deleted":
            live.driver().topics.delete("t", keep_remote=True).raise_for_failures()
        elif what == "commit":
            live.driver().topics.alter_configs(
                "t", {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}
            )
        return done

    live.on_remote = turn_off
    code = "UNKNOWN_TOPIC_OR_PARTITION" if change == "deleted" else "FENCED_LEADER_EPOCH"
    assert codes(live.cluster.tier(check=False)) == {code: 1}
    assert DeltaTopicTable.load(table).all_segments() == ()


def test_a_partition_that_would_break_its_log_does_not_stop_the_commit_of_the_others(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.tiered(partitions=3)
    live.append({n: ["x"] for n in range(3)}).raise_for_failures()
    commits = DeltaTopicTable.commit

    def commit(
        table: DeltaTopicTable, adds: list[Uploaded], removes: list[RemoteSegment], histories: Histories
    ) -> CommittedBatch:
        if any(add.segment.partition == 1 for add in adds):
            raise CorruptionError("partition 1 holds another file of that name")
        return commits(table, adds, removes, histories)

    monkeypatch.setattr(DeltaTopicTable, "commit", commit)
    report = live.cluster.tier(check=False)
    assert live.remote_ends() == {0: 1, 2: 1}
    assert the_failure(report).startswith("t-1: CORRUPT_MESSAGE")


def test_the_error_of_a_partition_is_reported_besides_that_of_its_topic(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second segment of a partition fails, and so does the commit of the first one, with those of others."""
    monkeypatch.setattr(uploads, "COMMIT_EVERY_S", 0.1)
    live.tiered(partitions=2)
    live.append({0: ["x"], 1: ["x"]}).raise_for_failures()
    live.append({1: ["y"]}).raise_for_failures()
    refused = threading.Event()

    def full(what: str, name: str, call: Call) -> object:
        if what == "stage" and (of_partition(name), base_of(name)) == (1, 1):
            refused.set()
            raise StorageError("no space left")
        return call()

    def commit(*_: object) -> CommittedBatch:
        assert refused.wait(30)
        raise StorageError("other writers were faster")

    live.on_remote = full
    monkeypatch.setattr(DeltaTopicTable, "commit", commit)
    failed = {one.item: one.message for one in live.cluster.tier(check=False).failures}
    assert failed == {"t": "other writers were faster", "t-1": "no space left"}


def test_segments_that_another_run_has_cut_differently_are_copied_by_the_next_run(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run, under another segment.bytes, has committed [0, 3); [0, 2) and [2, 4) cannot follow."""
    live.tiered(segment_bytes="100000")
    live.fill("abcd")
    two = sum(link.file.object.size_bytes for link in live.log(live.leader()).chain[:2])
    commits = DeltaTopicTable.commit

    def late(table: DeltaTopicTable, *args: object) -> CommittedBatch:
        monkeypatch.setattr(DeltaTopicTable, "commit", commits)
        live.cluster.topics.alter_configs("t", {"segment.bytes": str(two // 2 * 3 + 10)})
        live.driver().tier()
        return commits(table, *args)  # type: ignore[arg-type]

    live.cluster.topics.alter_configs("t", {"segment.bytes": str(two + 10)})
    live.append(["e"]).raise_for_failures()
    monkeypatch.setattr(DeltaTopicTable, "commit", late)
    report = live.cluster.tier(check=False)
    assert live.remote_ends() == {0: 3}
    assert codes(report) == {"SOURCE_CHANGED": 1}
    assert [row["remote_end"] for row in report.rows] == [3]


def test_no_batch_of_a_partition_is_committed_after_an_uncommitted_one(
    live: RemoteFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the table of a partition without remote segments would begin after a gap."""
    monkeypatch.setattr(uploads, "COMMIT_EVERY_S", 0.0)
    live.tiered()
    live.fill("abc")
    refused_one = threading.Event()
    commits = DeltaTopicTable.commit

    def commit(table: DeltaTopicTable, *args: object) -> CommittedBatch:
        if not refused_one.is_set():
            raise StorageError("other writers were faster")
        return commits(table, *args)  # type: ignore[arg-type]

    def late(what: str, name: str, call: Call) -> object:
        if what == "stage" and base_of(name) > 0:
            refused_one.wait(30)
        return call()

    fails = uploads.Uploads._failed

    def failed(uploads: uploads.Uploads, *args: object) -> None:
        fails(uploads, *args)  # type: ignore[arg-type]
        refused_one.set()

    live.on_remote = late
    monkeypatch.setattr(DeltaTopicTable, "commit", commit)
    monkeypatch.setattr(uploads.Uploads, "_failed", failed)
    assert "other writers were faster" in the_failure(live.cluster.tier(check=False))
    assert live.remote_ends() == {}
    assert rows_of(live.cluster.tier(), "uploaded_files", "uploaded_bytes") == [(3, 0)]
    assert live.remote_ends() == {0: 3}


def test_a_topic_with_much_to_upload_is_committed_in_one_version_where_it_can(live: RemoteFaults) -> None:
    """There is one commit per topic and batch, not one per segment or partition."""
    live.tiered(partitions=4)
    for _ in range(3):
        live.append({n: ["x"] for n in range(4)}).raise_for_failures()
    live.in_turn().tier().raise_for_failures()
    log = DeltaTopicTable.load(live.ports().storage.remote_table(live.cluster.image.topic("t")))
    assert (log.version, len(log.all_segments())) == (1, 12)


def test_the_copy_quota_holds_for_the_whole_run(live: RemoteFaults) -> None:
    """KIP-956, remote.log.manager.copy.max.bytes.per.second: a second's worth immediately, then by the clock."""
    live.tiered()
    live.fill("abcdefgh")
    size = sum(map(len, live.data(1).values()))
    live.cluster.topics.alter_configs(None, {"remote.log.manager.copy.max.bytes.per.second": str(size // 8)})
    before = live.clock.monotonic_s()
    live.in_turn().tier().raise_for_failures()
    assert live.clock.monotonic_s() - before == pytest.approx(7, abs=0.2)


def test_the_copy_lag_holds_sealed_segments_back(live: RemoteFaults) -> None:
    """KIP-1241, remote.copy.lag.ms; waiting records are reported as pending, not as backlog."""
    live.tiered(remote_copy_lag_ms="60000", local_retention_bytes="-1", local_retention_ms="-1")
    live.fill("ab", at_ms=live.clock.now_ms() - 100_000)
    live.fill("cd", at_ms=live.clock.now_ms())
    report = live.cluster.tier()
    assert rows_of(report, "remote_end", "uploaded_files", "backlog_bytes") == [(2, 2, 0)]
    assert int(str(report.rows[0]["pending_bytes"])) > 0
    live.clock.advance_ms(60_001)
    assert rows_of(live.cluster.tier(), "remote_end") == [(4,)]


def test_the_copy_lag_by_size_uses_what_is_behind(live: RemoteFaults) -> None:
    """KIP-1241, remote.copy.lag.bytes."""
    live.tiered(remote_copy_lag_ms="-1", remote_copy_lag_bytes="1", local_retention_bytes="-1")
    live.cluster.topics.alter_configs("t", {"local.retention.ms": "-1"})
    live.fill("abc")
    assert rows_of(live.cluster.tier(), "remote_end") == [(2,)]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.slow
def test_segments_of_a_lost_history_leave_the_remote_log(live: RemoteFaults, goes_on: bool) -> None:
    """Such segments leave together with the uploads that replace them, or alone if there are none."""
    live.tiered(local_retention_bytes="-1")
    live.fill("ab")
    live.cluster.tier().raise_for_failures()
    table = live.ports().storage.remote_table(live.cluster.image.topic("t"))
    one, two, three = live.replicas().view.replicas
    fence(live, two, three, one)
    unfence(live, two, three)
    live.cluster.elect("t", leader=two, unclean=True).raise_for_failures()
    deposed = Histories({0: Lineage([(1, 0)])}, lambda: {0: Present(1)})
    # Committed late, with records that no replica has any more.
    table.commit([uploaded(segment(2, 5, epoch=1))], (), deposed)
    live.fill("xy" if goes_on else "")
    report = live.cluster.tier().raise_for_failures()
    assert live.remote_ends() == {0: 4 if goes_on else 2}
    assert [note for note in report.notes if note.startswith("t-0: segments of a history")]
    assert live.cluster.tier().raise_for_failures().notes == []
    assert live.read() == {0: list("abxy" if goes_on else "ab")}
