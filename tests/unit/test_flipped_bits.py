"""A flipped bit is not copied: every copy of a file detects it in the pass that copies, and uses an intact copy.

Bits are flipped at random places of a leader's file, one seed each: after the file was written, and before it is
copied.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import stratalog.engine.replication.append
import stratalog.partitions.replica
from stratalog.partitions.producers import decode, encode
from stratalog.partitions.segments.check import verify_bytes
from tests.unit.cluster_harness import TIERED, LiveCluster, codes, offsets_of
from tests.unit.faulty_store import Faults
from tests.unit.tampering import Spot, register, spot

SEEDS = range(20)


def flip(file: Spot, seed: int) -> None:
    """Flip one random bit of the file."""
    dice = random.Random(f"{seed} of {file.name}")
    data = bytearray(file.read())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    file.replace(bytes(data))


def live_cluster(folder: Path, brokers: int = 3, copies: int = 3, **configs: str) -> LiveCluster:
    """``t`` holds a to e, one file each; of three brokers, broker 1 leads."""
    live = LiveCluster(folder, brokers)
    live.topic(copies=copies, **configs)
    live.fill("abcde")
    return live


def all_good(live: LiveCluster, brokers: set[int] | None = None) -> bool:
    """Whether every byte of the log is intact on each of these brokers (by default those of the replicas)."""
    for broker in brokers or set(live.replicas().view.replicas):
        replica = live.replica(broker)
        for link in replica.log().chain:
            verify_bytes(replica.store, link.file)
    return True


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_a_follower_does_not_copy_it_and_the_leader_resigns_to_a_good_member(tmp_path: Path, seed: int) -> None:
    live = live_cluster(tmp_path)
    live.wipe(3)
    live.cluster.bootstrap([3])
    damaged = spot(live, 1, seed % 5)
    good = damaged.read()
    live.store(3).delete([link.file.object.name for link in live.log(3).chain][seed % 5 :])
    flip(damaged, seed)
    report = live.driver().replicate().raise_for_failures()
    assert live.leader() == 2
    assert any(
        damaged.name in note and "broker 1 leaves the ISR, and broker 2 leads" in note for note in report.notes
    )
    assert damaged.read() == good, "it was replaced while its holder was outside the ISR"
    assert live.isr() == {1, 2, 3}
    assert all_good(live)


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_append_is_not_acknowledged_in_bad_copies(tmp_path: Path, seed: int) -> None:
    """acks=all: the bit flips between the write on the leader and the followers' copies."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.fill("ab")
    leader = live.leader()

    def flip_what_was_written(uri: str, what: str, name: str) -> None:
        if what == "commit" and name.endswith(".parquet") and uri.endswith(f"b{leader}"):
            faults.none()
            flip(Spot(live.store(leader), name), seed)

    faults.after = flip_what_was_written
    report = live.append(["c", "d"], producer="p", sequence=1).raise_for_failures()
    assert offsets_of(report) == {0: (2, 4)}
    assert live.leader() != leader
    assert leader not in live.isr()
    assert live.read() == {0: list("abcd")}, "appended once, under the new leader"
    assert all_good(live, live.isr())
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert all_good(live)


def test_a_member_that_copied_before_the_bit_flipped_leads_and_the_append_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is not small: each member's copy is a separate read."""
    monkeypatch.setattr(stratalog.engine.replication.append, "SMALL_BYTES", 0)
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.fill("ab")
    leader, (first, _) = live.leader(), live.followers()

    faults.once(lambda: flip(spot(live, leader, 2), 3), "stage", at=f"b{first}", after=True)
    report = live.append(["c"], producer="p", sequence=1).raise_for_failures()
    assert offsets_of(report) == {0: (2, 3)}
    assert (live.leader(), live.read()) == (first, {0: list("abc")})


def test_a_leader_without_another_member_keeps_its_file_and_nobody_gets_it(tmp_path: Path) -> None:
    """The original content is unknown, so the intact files before the damaged one are copied, and the report names
    the damaged one.
    """
    live = live_cluster(tmp_path, min_insync_replicas="1")
    live.wipe(2)
    live.wipe(3)
    live.driver().replicate()
    damaged = spot(live, 1, 3)
    flip(damaged, 1)
    for broker in (2, 3):
        live.cluster.bootstrap([broker], check=False)
    report = live.driver().replicate(check=False)
    assert codes(report) == {"CORRUPT_SEGMENT": 1}
    assert damaged.name in report.failures[0].message
    assert (live.leader(), live.isr()) == (1, {1})
    assert [live.log(broker).log_end for broker in (2, 3)] == [3, 3]
    assert all_good(live, {2, 3})


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_reassign_takes_the_good_copies(tmp_path: Path, seed: int) -> None:
    """New replicas must not get the bit from the leader while intact replicas are removed."""
    live = live_cluster(tmp_path, brokers=5)
    leader, newcomers = live.leader(), {1, 2, 3, 4, 5} - set(live.replicas().view.replicas)
    flip(spot(live, leader, seed % 5), seed)
    live.driver().reassign({("t", 0): [leader, *newcomers]}).raise_for_failures()
    assert set(live.replicas().view.replicas) == {leader, *newcomers}
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: list("abcde")}
    assert all_good(live)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_bootstrap_takes_the_good_copies(tmp_path: Path, seed: int) -> None:
    live = live_cluster(tmp_path)
    live.wipe(3)
    flip(spot(live, 1, seed % 5), seed)
    live.driver().bootstrap([3]).raise_for_failures()
    assert (live.leader(), live.isr()) == (2, {2, 3})
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert all_good(live)


@pytest.mark.sample(3)
@pytest.mark.parametrize("segment_bytes", ["1", "100000"], ids=["each file a segment", "rewritten"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_tier_uploads_the_good_copies(tmp_path: Path, seed: int, segment_bytes: str) -> None:
    configs = {key.replace(".", "_"): value for key, value in TIERED.items()} | {
        "segment_bytes": segment_bytes,
        "segment_ms": "1",
        "local_retention_bytes": "-1",
    }
    live = live_cluster(tmp_path, **configs)
    live.clock.advance_ms(1000)
    damaged = spot(live, 1, seed % 5)
    good = damaged.read()
    flip(damaged, seed)
    report = live.driver().tier()
    if damaged_for_readers(live, damaged) or segment_bytes == "1":
        assert any(damaged.name in note and "broker 1 leaves the ISR" in note for note in report.notes)
        assert damaged.read() == good
    report.raise_for_failures()
    objects = sorted(live.remote.rglob("0/*.parquet"))
    assert len(objects) == (5 if segment_bytes == "1" else 1)
    live.cluster.verify(deep=segment_bytes == "1").raise_for_failures()
    assert live.read() == {0: list("abcde")}


def damaged_for_readers(live: LiveCluster, file: Spot) -> bool:
    """A bit that no reader uses (a field of a page's header) does not prevent reads of records."""
    return live.leader() != 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_merge_reads_the_good_copies(tmp_path: Path, seed: int) -> None:
    live = live_cluster(tmp_path, segment_merge_min_files="2")
    flip(spot(live, 1, seed % 5), seed)
    live.driver().merge().raise_for_failures()
    assert live.read() == {0: list("abcde")}
    assert all_good(live, {live.leader()})


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lineage_is_not_taken_over_with_another_digit(tmp_path: Path, seed: int) -> None:
    """``[[1,0]]`` and ``[[1,1]]`` differ by one bit, and both are lineages."""
    live = live_cluster(tmp_path)
    live.wipe(3)
    flip(register(live, 1, ".epoch"), seed)
    stratalog.partitions.replica.remembered_lineages.clear()  # as in a driver that has just started
    live.driver().bootstrap([3]).raise_for_failures()
    assert live.leader() == 2
    assert live.log(3).lineage.entries == live.log(2).lineage.entries
    assert live.read() == {0: list("abcde")}


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_producer_state_is_not_taken_over_with_another_digit(tmp_path: Path, seed: int) -> None:
    """A follower that starts at the leader's local start begins with the content of its ``.local``."""
    live = live_cluster(tmp_path)
    live.append(["f"], producer="p", sequence=41).raise_for_failures()
    state = encode(live.replica(1).producers(live.log(1)))
    data = bytearray(state)
    dice = random.Random(seed)
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    with pytest.raises(ValueError, match="checksum"):
        decode(bytes(data))
    assert "p" in decode(state)
