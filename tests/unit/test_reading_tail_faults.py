"""Faults while a tail follows: lost records, another topic of the same name, failing stores, changing leaders."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from stratalog.partitions.errors import (
    LogGapError,
    LogTruncationError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.paths import METADATA_TOPIC
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.nearest_harness import racked, unaware
from tests.unit.tail_harness import texts, two_partitions, while_waiting


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    return two_partitions(tmp_path, faults)


def overtaken(live: LiveCluster) -> None:
    """The log of partition 0 starts at 3, and the reader has read the metadata since then."""
    live.driver().topics.delete_records("t", {0: 3}).raise_for_failures()
    live.clock.advance_ms(20_000)


def test_retention_that_overtakes_it_is_an_error(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", [0], start=0, max_bytes=1)
    assert texts(islice(tail, 1)) == ["a0"]
    overtaken(live)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offset 1 is not in \[3, 4\]"):
        next(iter(tail))


@pytest.mark.parametrize(("reset", "found"), [("earliest", ["a3", "a4"]), ("latest", ["a4"])])
def test_with_a_reset_policy_it_continues(live: LiveCluster, reset: str, found: list[str]) -> None:
    """auto.offset.reset, with Kafka's words."""
    tail = live.cluster.tail("t", [0], start=0, max_bytes=1, auto_offset_reset=reset)
    assert texts(islice(tail, 1)) == ["a0"]
    overtaken(live)
    while_waiting(live, lambda: live.append(["a4"]))
    assert texts(islice(tail, len(found))) == found


def lose(live: LiveCluster) -> None:
    """The last record of partition 0 is lost by an unclean election, and another has its offset."""
    away = next(broker for broker in (1, 2, 3) if broker != live.leader())
    live.cluster.brokers.fence(away).raise_for_failures()
    live.append(["lost"]).raise_for_failures()
    live.cluster.brokers.unfence(away).raise_for_failures()


def replace_lost(live: LiveCluster) -> None:
    out = next(broker for broker in (1, 2, 3) if broker not in live.isr())
    live.cluster.brokers.fence([broker for broker in (1, 2, 3) if broker != out], force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.append(["new"]).raise_for_failures()


def test_an_unclean_election_is_detected(live: LiveCluster) -> None:
    """KIP-320: a consumer that has read lost records gets an error with the offset up to which the histories
    agree."""
    lose(live)
    tail = live.cluster.tail("t", [0], start=0)
    assert texts(islice(tail, 1)) == ["a0", "a1", "a2", "a3", "lost"]
    replace_lost(live)
    with pytest.raises(LogTruncationError) as raised:
        next(iter(tail))
    assert raised.value.divergent_offset == 4


@pytest.mark.slow
@pytest.mark.parametrize("shorter", [True, False], ids=["shorter", "as long as before"])
def test_a_log_that_was_cut_is_detected_by_a_tail_that_ends_here(live: LiveCluster, shorter: bool) -> None:
    """This is detected even if there is nothing to fetch: the log continues with other records."""
    lose(live)
    first = live.cluster.tail("t", [0], start=0, follow=False)
    assert texts(first)[-1] == "lost"
    if shorter:
        out = next(broker for broker in (1, 2, 3) if broker not in live.isr())
        live.cluster.brokers.fence(
            [broker for broker in (1, 2, 3) if broker != out], force=True
        ).raise_for_failures()
        live.cluster.elect("t", unclean=True).raise_for_failures()
    else:
        replace_lost(live)
    with pytest.raises(LogTruncationError) as raised:
        list(live.cluster.tail("t", [0], start=first.positions, follow=False))
    assert raised.value.divergent_offset == 4
    again = live.cluster.tail("t", [0], start=first.positions, follow=False, auto_offset_reset="latest")
    assert texts(again) == ([] if shorter else ["new"])


def test_with_a_reset_policy_it_continues_where_the_histories_part(live: LiveCluster) -> None:
    """KIP-320: a consumer with a policy gets the records that replaced the lost ones."""
    lose(live)
    tail = live.cluster.tail("t", [0], start=0, auto_offset_reset="latest")
    assert texts(islice(tail, 1))[-1] == "lost"
    replace_lost(live)
    assert texts(islice(tail, 1)) == ["new"]


def test_a_topic_that_was_deleted_and_created_again_is_another_log(live: LiveCluster) -> None:
    def again() -> None:
        live.driver().topics.delete("t").raise_for_failures()
        live.driver().topics.create("t", partitions=2, replication_factor=1)

    while_waiting(live, again)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        list(live.cluster.tail("t", start=OffsetSpec.LATEST, idle_timeout_s=60))


def test_faults_that_pass_are_not_noticed_and_others_are_raised(live: LiveCluster, faults: Faults) -> None:
    tail = live.cluster.tail("t", [1], start=0, follow=False, timeout_s=5)
    failing = [StorageError("503 slow down")] * 2

    def fail(uri: str, what: str, name: str) -> None:
        if "/t-" in name and failing:
            raise failing.pop()

    faults.before = fail
    assert texts(tail) == ["b0", "b1"]
    live.append({1: ["b2"]}).raise_for_failures()
    tail = live.cluster.tail("t", [1], start=0, follow=False, timeout_s=5)
    failing += [StorageError("503 slow down")] * 1000
    with pytest.raises(StorageError, match="503"):
        list(tail)
    failing.clear()
    assert texts(tail) == ["b0", "b1", "b2"], "nothing is lost by an error"


def test_records_unknown_to_a_new_leader_are_waited_for(tmp_path: Path, faults: Faults) -> None:
    live = racked(tmp_path, faults)
    unaware(live, 1)
    while_waiting(
        live,
        lambda: None,
        lambda: live.driver().replicate().raise_for_failures(),
        lambda: live.append(["h"], driver=live.driver()).raise_for_failures(),
    )
    assert texts(islice(live.cluster.tail("t", start=7), 1)) == ["h"]


def test_an_error_of_a_former_leader_is_not_believed(tmp_path: Path, faults: Faults) -> None:
    """The replica of the former leader is gone, and with it every offset: otherwise the offset would be called out
    of range.
    """
    live = racked(tmp_path, faults)
    former = live.replica(1)

    def move() -> None:
        live.driver().reassign({("t", 0): [2, 3]}).raise_for_failures()
        former.store.delete([stored.name for stored in former.store.list(former.folder)])
        live.append(["g"], driver=live.driver()).raise_for_failures()

    while_waiting(live, move)
    assert texts(islice(live.cluster.tail("t", start=6), 1)) == ["g"]


def test_without_following_no_call_waits_for_a_new_leader_forever(tmp_path: Path, faults: Faults) -> None:
    live = racked(tmp_path, faults)
    live.append(["g"]).raise_for_failures()
    tail = live.cluster.tail("t", start=6, follow=False)
    replica = live.replica(1)
    replica.store.delete([replica.path(mark) for mark in replica.list().watermarks if mark.offset == 7])
    with pytest.raises(OffsetNotAvailableError, match=r"partitions \[0\] were elected recently"):
        list(tail)


# ------------------------------------------------------------------- while the metadata is away


def metadata_away(uri: str, what: str, name: str) -> None:
    if METADATA_TOPIC in name:
        raise StorageError("the voters are away")


def test_it_follows_its_leaders_while_the_metadata_is_away(live: LiveCluster, faults: Faults) -> None:
    """Available records are returned even if the metadata cannot be read again; new partitions are found once it
    is back."""

    def away() -> None:
        live.append(["a4"]).raise_for_failures()
        faults.before = metadata_away
        live.clock.advance_ms(20_000)

    def back() -> None:
        faults.none()
        live.cluster.topics.create_partitions("t", 3)
        live.append({2: ["c0"]}).raise_for_failures()

    while_waiting(live, away, lambda: None, back)
    assert texts(islice(live.cluster.tail("t"), 2)) == ["a4", "c0"]


def test_a_new_partition_that_cannot_be_inspected_is_found_by_a_later_poll(
    live: LiveCluster, faults: Faults
) -> None:
    """The other partitions are read meanwhile, without waiting for the metadata to expire."""
    tail = live.cluster.tail("t", metadata_max_age_s=600, idle_timeout_s=60)

    def broken(uri: str, what: str, name: str) -> None:
        if "/t-" in name and "/2." in name:
            raise StorageError("503 slow down")

    def grow() -> None:
        live.cluster.topics.create_partitions("t", 3)
        live.append(["a4"]).raise_for_failures()
        faults.before = broken
        live.clock.advance_ms(700_000)

    def passed() -> None:
        faults.none()
        live.append({2: ["c0"]}).raise_for_failures()

    while_waiting(live, grow, passed)
    assert texts(islice(tail, 2)) == ["a4", "c0"]


def test_an_error_is_not_believed_at_once_while_the_metadata_is_away(live: LiveCluster, faults: Faults) -> None:
    """The error may be one of a former leader. After the timeout this error is raised, and not an error about
    unreachable replicas.
    """

    def away(uri: str, what: str, name: str) -> None:
        metadata_away(uri, what, name)
        if "/t-" in name:
            raise LogGapError("a file is missing")

    tail = live.cluster.tail("t", [1], start=0, timeout_s=5, idle_timeout_s=60)
    faults.before = away
    while_waiting(live, lambda: None, faults.none)
    assert texts(islice(tail, 1)) == ["b0", "b1"]
    began = live.clock.monotonic_s()
    for _ in range(2):  # each tail starts from scratch
        faults.before = away
        with pytest.raises(LogGapError):
            next(iter(tail))
        assert live.clock.monotonic_s() - began >= 5
        began = live.clock.monotonic_s()
    faults.none()
    live.append({1: ["b2"]}).raise_for_failures()
    assert texts(islice(tail, 1)) == ["b2"], "nothing is lost by an error"
