"""The cost of an append depends on the appended records only; the rounds of an append."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.records.append import append_with, in_threads
from stratalog.engine.records.rounds import PartitionTask, RunTasks, TaskResult
from stratalog.engine.replication.append import Raced
from stratalog.engine.replication.log_end import LOOK_AGAIN_MS
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store import StoreCounts
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.harness import batch


def test_an_append_to_one_partition_looks_at_no_other_one_of_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=50)
    looked_at: set[int] = set()
    view = ClusterImage.view

    def viewed(image: ClusterImage, topic_id: str, partition: int) -> PartitionView:
        looked_at.add(partition)
        return view(image, topic_id, partition)

    monkeypatch.setattr(ClusterImage, "view", viewed)
    live.append({7: ["a"], 9: ["b"]}).raise_for_failures()
    assert looked_at == {7, 9}


@pytest.mark.slow
def test_an_append_sees_as_many_files_however_long_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute an append looks at the whole log, because storage may have lost a part of it."""
    live = LiveCluster(tmp_path)
    live.topic()
    seen: list[int] = []
    listing = MemoryStore.list

    def listed(
        store: MemoryStore, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        found = listing(store, prefix, after, known)
        if "/t-" in prefix:
            seen.append(len(found))
        return found

    monkeypatch.setattr(MemoryStore, "list", listed)

    def seen_by_the_next() -> list[int]:
        seen.clear()
        live.append(["a"]).raise_for_failures()
        return list(seen)

    live.fill("a" * 10)
    tenth = seen_by_the_next()
    live.fill("a" * 100)
    assert seen_by_the_next() == tenth == [3]  # a high watermark, an epoch, and the file of this append
    live.clock.advance_ms(LOOK_AGAIN_MS)
    assert max(seen_by_the_next()) > 200
    assert seen_by_the_next() == tenth


def test_drivers_that_take_turns_see_what_the_others_have_appended(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    other = live.driver()
    for number in range(6):
        report = live.append([str(number)], driver=other if number % 2 else None)
        assert rows_of(report, "outcome", "base_offset") == [("acknowledged", number)]
    assert live.read() == {0: [str(number) for number in range(6)]}


def test_an_append_continues_after_what_was_merged_or_deleted_meanwhile(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(segment_merge_min_files="2", file_delete_delay_ms="0")
    live.fill("abcd")
    other = live.driver()
    other.merge().raise_for_failures()
    other.replicate().raise_for_failures()
    other.retain().raise_for_failures()
    assert len(live.data(live.leader())) < 4
    live.append(["e"]).raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcde")}
    other.topics.delete_records("t", {0: 5}).raise_for_failures()
    live.append(["f"]).raise_for_failures()
    assert live.read() == {0: ["f"]}


def test_nothing_is_continued_under_another_leader(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("ab")
    other, former = live.driver(), live.leader()
    other.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.append(["c"], driver=other).raise_for_failures()
    live.append(["d"]).raise_for_failures()
    assert live.leader() != former
    assert live.read() == {0: list("abcd")}
    live.cluster.verify(deep=True).raise_for_failures()


def test_an_error_in_a_later_round_does_not_hide_what_was_acknowledged_before(tmp_path: Path) -> None:
    """For example, the remote table is damaged, and the first append under a new leader reads it."""
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    ports, image = ports_of(live.cluster), live.cluster.image
    first = in_threads(ports.storage, {0: [batch(["a"])]})
    rounds: list[Sequence[int]] = []

    def run(task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        rounds.append(partitions)
        if len(rounds) == 2:
            raise CorruptionError("the remote table is damaged")
        return [*first.run(task, partitions), TaskResult(1, Raced(tried=True), StoreCounts())]

    report = append_with(
        ports.metadata,
        ports.storage,
        ports.clock,
        ports.memory,
        image,
        image.topic("t"),
        RunTasks(run, [0, 1]),
        None,
    )
    assert rounds == [[0, 1], [1]]
    assert [(row["partition"], row["outcome"]) for row in report.rows] == [(0, "acknowledged"), (1, "unknown")]
    assert [str(failure) for failure in report.failures] == ["t-1: CORRUPT_MESSAGE: the remote table is damaged"]
