"""The ISR: members leave it when they lag or are damaged, and return when they have everything (protocol, section
4; KIP-497, KIP-903)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.partition_commands import AlterPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.acknowledge import PendingAppend, _shrink
from stratalog.engine.replicas.in_sync import without
from stratalog.engine.replication.log_end import LOOK_AGAIN_MS
from stratalog.partitions.errors import OutcomeUnknownError, StorageError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure, unfence
from tests.unit.faulty_store import CHANGES, Faults

LAG_MS = 30_000
"""The default of ``replica.lag.time.max.ms``."""


class Disks(LiveCluster):
    """Brokers that may each refuse writes."""

    def __init__(self, folder: Path) -> None:
        self.faults = Faults()
        super().__init__(folder, through=self.faults.wrap)

    def full(self, broker: int) -> None:
        """The broker has no space left from now on; reads succeed."""

        def before(uri: str, what: str, name: str) -> None:
            if uri == f"memory://b{broker}" and what in CHANGES:
                raise StorageError(f"{uri}: no space left for {name}")

        self.faults.before = before

    def lose(self, broker: int, file: int) -> str:
        """Delete a file of a log by hand, and return its name."""
        replica = self.replica(broker)
        name = str(replica.log().chain[file].name)
        replica.store.delete([replica.path(name)])
        return name


@pytest.fixture
def live(tmp_path: Path) -> Disks:
    live = Disks(tmp_path)
    live.topic()
    return live


def outcomes(report: Report) -> list[object]:
    """The outcomes of the partitions of an append."""
    return [row["outcome"] for row in report.rows]


def _all_in_sync(live: LiveCluster) -> None:
    assert live.isr() == {1, 2, 3}
    assert live.data(1) == live.data(2) == live.data(3)
    live.cluster.verify().raise_for_failures()


# ---------------------------------------------------------------------------------- appending


def test_an_append_waits_for_a_member_and_then_continues_without_it(live: Disks) -> None:
    """Section 4, Shrink; ``replica.lag.time.max.ms``: acknowledged by the remaining ISR."""
    live.append(["a"]).raise_for_failures()
    live.full(3)
    began = live.clock.now_ms()
    report = live.append(["b"])
    assert rows_of(report, "outcome", "base_offset") == [("acknowledged", 1)]
    assert live.clock.now_ms() - began >= LAG_MS
    assert any("t-0: broker 3 leaves the ISR" in note for note in report.notes)
    assert live.isr() == {1, 2}
    assert live.read() == {0: ["a", "b"]}
    live.append(["c"]).raise_for_failures()
    live.faults.none()
    live.cluster.replicate().raise_for_failures()
    _all_in_sync(live)


def test_an_append_waits_for_a_member_as_long_as_requested(live: Disks) -> None:
    """``replica.lag.time.max.ms`` may be half an hour."""
    live.cluster.topics.alter_configs(None, {"replica.lag.time.max.ms": "1800000"})
    live.full(3)
    began = live.clock.now_ms()
    assert outcomes(live.append(["a"])) == ["acknowledged"]
    assert live.clock.now_ms() - began == 1_800_001, "not before it has been longer"
    assert live.isr() == {1, 2}


def test_an_append_that_the_remaining_isr_may_not_acknowledge_has_an_unknown_outcome(live: Disks) -> None:
    """Section 2: NOT_ENOUGH_REPLICAS_AFTER_APPEND; the retry with the same sequence appends nothing."""
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"})
    live.full(3)
    report = live.append(["a"], producer="p", sequence=4)
    assert "NOT_ENOUGH_REPLICAS_AFTER_APPEND" in the_failure(report)
    assert outcomes(report) == ["unknown"]
    assert any("producer 'p', sequence 4" in note for note in report.notes)
    refused = live.append(["b"], producer="q", sequence=1)
    assert "NOT_ENOUGH_REPLICAS:" in the_failure(refused)
    assert outcomes(refused) == ["not appended"]
    live.faults.none()
    live.cluster.replicate().raise_for_failures()
    assert rows_of(live.append(["a"], producer="p", sequence=4), "outcome", "base_offset") == [("duplicate", 0)]
    assert live.read() == {0: ["a"]}


def test_an_append_to_a_leader_that_refuses_it_says_whether_it_may_still_happen(live: Disks) -> None:
    live.append(["a"]).raise_for_failures()
    live.full(live.leader())
    report = live.append(["b"], producer="p", sequence=1)
    assert "no space left" in the_failure(report)
    assert outcomes(report) == ["not appended"]
    _after_it_has_taken_effect(live, OutcomeUnknownError("no answer"))
    report = live.append(["c"], producer="p", sequence=2)
    assert outcomes(report) == ["unknown"]
    live.faults.none()
    assert rows_of(live.append(["c"], producer="p", sequence=2), "outcome") == [("duplicate",)]
    assert live.read() == {0: ["a", "c"]}


def _after_it_has_taken_effect(live: Disks, error: Exception) -> None:
    """The next commit of a file takes effect, but its caller gets an error."""

    live.faults.none()
    live.faults.refuse(error, "commit", after=True)


def test_a_damaged_member_is_not_waited_for(live: Disks) -> None:
    """Section 1: "the replica is corrupt, leaves the ISR and is healed"."""
    live.fill("abc")
    follower = live.followers()[0]
    live.lose(follower, 1)
    live.clock.advance_ms(LOOK_AGAIN_MS)
    began = live.clock.now_ms()
    report = live.append(["d"])
    assert rows_of(report, "outcome") == [("acknowledged",)]
    assert live.clock.now_ms() - began < LAG_MS
    assert any(f"broker {follower} leaves the ISR" in note for note in report.notes)
    assert follower not in live.isr()
    live.cluster.replicate().raise_for_failures()
    _all_in_sync(live)


def test_a_note_names_only_a_member_that_has_left_the_isr(live: Disks) -> None:
    """Another driver changes the partition between the read of the metadata and the proposal."""
    metadata = ports_of(live.cluster).metadata
    view, notes = live.replicas().view, list[str]()
    member = live.followers()[0]
    state = PendingAppend(view, missed={member: StorageError("full")})
    metadata.submit(AlterPartition((without(view, [live.followers()[1]]),)))
    assert not _shrink(metadata, {0: state}, True, notes)
    assert notes == []
    state.view = live.replicas().view
    assert _shrink(metadata, {0: state}, True, notes)
    assert notes == [f"t-0: broker {member} leaves the ISR: full"]


# -------------------------------------------------------------------------------- replicating


def test_a_member_that_is_behind_for_too_long_leaves_the_isr_and_comes_back(live: Disks) -> None:
    live.append(["a"]).raise_for_failures()
    live.append(["b"], acks="leader")
    live.full(3)
    assert "t-0 on broker 3: KAFKA_STORAGE_ERROR" in the_failure(live.cluster.replicate(check=False))
    assert (live.isr(), live.read()) == ({1, 2, 3}, {0: ["a"]})
    live.clock.advance_ms(LAG_MS)
    live.cluster.replicate(check=False)
    assert live.isr() == {1, 2, 3}, "for exactly as long as replica.lag.time.max.ms it is in sync, as in Kafka"
    live.clock.advance_ms(1)
    report = live.cluster.replicate(check=False)
    assert "t-0 on broker 3: KAFKA_STORAGE_ERROR" in the_failure(report)
    assert any("broker 3 left the ISR" in note for note in report.notes)
    assert (live.isr(), live.read()) == ({1, 2}, {0: ["a", "b"]})
    live.faults.none()
    live.cluster.replicate().raise_for_failures()
    _all_in_sync(live)


def test_a_member_that_lacks_nothing_stays_however_long_it_is_idle(live: Disks) -> None:
    live.append(["a"]).raise_for_failures()
    live.full(3)
    live.clock.advance_ms(10 * LAG_MS)
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}


@pytest.mark.parametrize("file", [0, 1, 2], ids=["first", "in the middle", "last"])
@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_file_deleted_by_hand_is_found_and_healed_by_the_next_run(live: Disks, file: int, leads: bool) -> None:
    """A hole in a log is named, and the replica is out of the ISR until it is healed from another one."""
    live.fill("abc")
    victim = live.leader() if leads else live.followers()[0]
    name = live.lose(victim, file)
    report = live.cluster.replicate()
    assert report.ok, report
    assert any(f"broker {victim}" in note and "ISR" in note for note in report.notes), report
    assert (live.leader() == victim) is False
    assert name in live.data(victim)
    assert live.read() == {0: list("abc")}
    _all_in_sync(live)


def test_a_damaged_leader_without_another_member_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    live = Disks(tmp_path)
    live.topic(copies=1)
    live.fill("abc")
    live.lose(live.leader(), 2)
    report = live.cluster.replicate(check=False)
    assert "CORRUPT_MESSAGE" in the_failure(report)
    assert live.isr() == {live.leader()}


def test_an_append_finds_a_damaged_leader_and_goes_to_the_next(live: Disks) -> None:
    live.fill("abc")
    old = live.leader()
    live.lose(old, 2)
    live.clock.advance_ms(LOOK_AGAIN_MS)
    report = live.append(["d"])
    assert rows_of(report, "outcome", "base_offset") == [("acknowledged", 3)]
    assert any(f"broker {old} leaves the ISR" in note for note in report.notes)
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: list("abcd")}
    _all_in_sync(live)


# --------------------------------------------------------------------------- racing proposers


def _interrupt(live: Disks, at: Callable[[str, str, str], bool], act: Callable[[], object]) -> None:
    """``act`` happens once, before the first call that ``at`` selects."""

    def before(uri: str, what: str, name: str) -> None:
        if at(uri, what, name):
            live.faults.none()
            act()

    live.faults.before = before


def test_the_later_of_two_runs_at_once_continues_from_what_the_other_committed(live: Disks) -> None:
    """INVALID_UPDATE_VERSION: "the proposer goes back to the committed ISR"."""
    live.append(["a"]).raise_for_failures()
    live.full(3)
    live.append(["b"]).raise_for_failures()
    assert live.isr() == {1, 2}
    other = live.driver()
    commits = 0

    def second_commit(uri: str, what: str, name: str) -> bool:
        nonlocal commits
        commits += "__cluster_metadata" in name and name.endswith(".parquet") and what == "create"
        return commits == 1

    _interrupt(live, second_commit, lambda: other.replicate().raise_for_failures())
    live.cluster.replicate().raise_for_failures()
    _all_in_sync(live)


def test_a_topic_that_is_deleted_meanwhile_is_no_failure(live: Disks) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION."""
    live.append(["a"]).raise_for_failures()
    live.full(3)
    live.append(["b"]).raise_for_failures()
    other = live.driver()
    _interrupt(
        live,
        lambda uri, what, name: "__cluster_metadata" in name and what == "create",
        lambda: other.topics.delete("t"),
    )
    report = live.cluster.replicate()
    assert report.ok, report
    assert any("the topic was deleted during the operation" in note for note in report.notes)


@pytest.mark.parametrize(
    ("when", "code"), [("before", "FENCED_LEADER_EPOCH"), ("after", "INVALID_UPDATE_VERSION")]
)
def test_a_partition_that_never_stops_changing_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, code: str
) -> None:
    """In every round of the run, another driver changes the partition before or after this driver's commit."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"]).raise_for_failures()
    away = live.followers()[0]
    fence(live, away)
    unfence(live, away)
    other, submit = live.driver(), MetadataClient.submit

    def late(client: MetadataClient, command: Any, **more: Any) -> Any:
        def change() -> None:
            if isinstance(command, AlterPartition):
                other.elect("t", leader=min(live.isr() - {live.leader()})).raise_for_failures()

        if when == "before":
            change()
        answer = submit(client, command, **more)
        if when == "after":
            change()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(MetadataClient, "submit", late)
        report = live.cluster.replicate(check=False)
    assert codes(report) == {code: 1}
    assert [(row["log_end"], row["high_watermark"]) for row in report.rows] == [(1, 1)]
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
