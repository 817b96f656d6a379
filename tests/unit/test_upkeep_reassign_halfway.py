"""Interrupted reassignments, continued or reverted; the remains of removed replicas, and their zombies."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.records.append import append_options
from stratalog.engine.replicas.former import CLOSED
from stratalog.engine.replication.append import NotAppended, append
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.retention.sweep import sweep_roots
from stratalog.partitions.errors import FencedLeaderEpochError, StorageError
from stratalog.partitions.paths import DataName, base_name, folder_of
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.runner import SerialRunner
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch
from tests.unit.reassign_harness import replicas, two_others, without_copies
from tests.unit.tampering import Spot


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return LiveCluster(tmp_path, brokers=5)


# ------------------------------------------------------------------------------- half-way


@pytest.fixture
def stuck(tmp_path: Path, faults: Faults) -> LiveCluster:
    """t-0 moves to two brokers without a replica; only one of them accepts copies."""
    live = LiveCluster(tmp_path, brokers=5, through=faults.wrap)
    live.topic()
    live.fill("abc")
    without_copies(faults, two_others(live)[1])
    return live


def test_an_unfinished_reassignment_is_named_and_the_next_replicate_continues_it(
    stuck: LiveCluster, faults: Faults
) -> None:
    old, (one, two) = replicas(stuck), two_others(stuck)
    target = (one, two, old[0])
    report = stuck.cluster.reassign({("t", 0): target}, check=False)
    assert codes(report)["REASSIGNMENT_IN_PROGRESS"] == 1
    assert any(f.item == f"t-0 on broker {two}" and "no space left" in f.message for f in report.failures)
    assert [row["state"] for row in report.rows] == ["in progress"]
    view = stuck.replicas().view
    assert (view.target, view.joining, view.replicas) == (target, (one, two), (*old, one, two))
    assert set(view.isr) == {*old, one}
    stuck.append(["d"]).raise_for_failures()
    faults.none()
    stuck.cluster.replicate().raise_for_failures()
    assert (replicas(stuck), stuck.isr()) == (target, set(target))
    assert stuck.read() == {0: list("abcd")}


def test_the_status_shows_who_joins_and_what_is_still_to_be_copied(stuck: LiveCluster, faults: Faults) -> None:
    old, (one, two) = replicas(stuck), two_others(stuck)
    assert rows_of(stuck.cluster.reassignments()) == []
    stuck.cluster.reassign({("t", 0): (one, two)}, check=False)
    size = sum(map(len, stuck.data(stuck.leader()).values()))
    with stuck.unchanged():
        report = stuck.cluster.reassignments("t")
    assert rows_of(report, "newcomer", "state", "records_behind", "bytes_behind") == [
        (one, "in sync", 0, 0),
        (two, "joining", 3, size),
    ]
    assert report.rows[0]["target"] == f"{one} {two}"
    assert report.rows[0]["in_sync"] == " ".join(map(str, (*old, one)))
    assert report.totals == {"partitions": 1, "bytes_behind": size}


def test_a_newcomer_that_cannot_be_inspected_is_a_failure_of_the_status(
    stuck: LiveCluster, faults: Faults
) -> None:
    one, two = two_others(stuck)
    stuck.cluster.reassign({("t", 0): (one, two)}, check=False)

    faults.refuse(StorageError("gone"), at=f"memory://b{two}")
    report = stuck.cluster.reassignments()
    assert the_failure(report).startswith(f"t-0 on broker {two}: ")
    assert [row["bytes_behind"] for row in report.rows] == [0, None]
    assert report.totals["bytes_behind"] is None


def test_a_cancelled_reassignment_leaves_the_partition_as_it_was(stuck: LiveCluster, faults: Faults) -> None:
    old, (one, two) = replicas(stuck), two_others(stuck)
    stuck.cluster.reassign({("t", 0): (one, two)}, check=False)
    stuck.append(["d"]).raise_for_failures()
    with stuck.unchanged():
        planned = stuck.cluster.cancel_reassignments(dry_run=True)
    assert rows_of(planned, "replicas", "joining_no_more") == [(" ".join(map(str, old)), f"{one} {two}")]
    assert rows_of(stuck.cluster.cancel_reassignments("t"), "replicas") == rows_of(planned, "replicas")
    assert (replicas(stuck), stuck.isr(), stuck.replicas().view.target) == (old, set(old), ())
    assert rows_of(stuck.cluster.cancel_reassignments()) == []
    faults.none()
    stuck.append(["e"]).raise_for_failures()
    assert stuck.read() == {0: list("abcde")}


@pytest.mark.slow
def test_replicas_do_not_go_before_the_newcomer_was_read_in_place(stuck: LiveCluster, faults: Faults) -> None:
    """The newcomer's copies were checked during the copy; a bit has flipped since, while the run waited for
    another broker.
    """
    old, (one, two) = replicas(stuck), two_others(stuck)
    without_copies(faults, one, two)
    stuck.cluster.reassign({("t", 0): (one,)}, check=False)
    other, topic_id = stuck.driver(), stuck.cluster.image.topic("t").topic_id

    def flip_when_it_is_being_added(uri: str, what: str, name: str) -> None:
        faults.none()
        replicas = PartitionReplicas(other.image.view(topic_id, 0), stuck.cluster.stores)
        if one in replicas.view.adding:
            Spot(stuck.store(one), replicas.replica(one).log().chain[1].file.object.name).flip(40)
        else:
            faults.before = flip_when_it_is_being_added

    faults.before = flip_when_it_is_being_added
    found = codes(stuck.cluster.replicate(check=False))
    assert "CORRUPT_SEGMENT" in found
    assert replicas(stuck) == (*old, one)
    stuck.cluster.heal().raise_for_failures()
    stuck.cluster.replicate().raise_for_failures()
    assert replicas(stuck) == (one,)
    stuck.cluster.verify(deep=True).raise_for_failures()
    assert stuck.read() == {0: list("abc")}


def test_another_plan_replaces_the_one_in_progress(stuck: LiveCluster, faults: Faults) -> None:
    old, (one, two) = replicas(stuck), two_others(stuck)
    stuck.cluster.reassign({("t", 0): (one, two)}, check=False)
    stuck.cluster.reassign({("t", 0): (old[0], one)}).raise_for_failures()
    assert (replicas(stuck), stuck.isr()) == ((old[0], one), {old[0], one})
    assert stuck.read() == {0: list("abc")}


# ------------------------------------------------------------------- removed, and back again


def folders(live: LiveCluster, broker: int) -> set[str]:
    """Folders of replicas of topic t on the broker, except closed ones."""
    names = [stored.name for stored in live.store(broker).list("") if "/t-" in stored.name]
    return {folder_of(name) for name in names if base_name(name) != str(CLOSED)}


def test_the_folder_of_a_removed_replica_is_swept(live: LiveCluster) -> None:
    live.topic()
    live.fill("abc")
    gone = live.followers()[0]
    kept = {b: folders(live, b) for b in replicas(live) if b != gone}
    live.cluster.reassign(live.cluster.plan_replicas("t", remove=[gone])).raise_for_failures()
    assert folders(live, gone)
    live.cluster.vacuum().raise_for_failures()
    assert folders(live, gone) == set()
    assert {b: folders(live, b) for b in kept} == kept
    assert live.read() == {0: list("abc")}


def test_foreign_files_next_to_the_folders_of_the_cluster_are_not_swept(live: LiveCluster) -> None:
    """Nor are files swept in a folder that has an owner."""
    live.topic()
    live.fill("a")
    owned = live.replica(live.leader()).folder
    theirs = ["lost+found/x", ".snapshot/hourly.0/broker.json", f"{owned}/saved/{DataName(0, None, 1)}"]
    store = live.store(live.leader())
    for name in theirs:
        store.create(name, b"x")
    assert with_ports(sweep_roots, ports_of(live.cluster))(OperationRun("vacuum")) == 0
    assert all(store.read(name) == b"x" for name in theirs)


def test_the_folders_of_cancelled_newcomers_are_swept(stuck: LiveCluster, faults: Faults) -> None:
    one, two = two_others(stuck)
    stuck.cluster.reassign({("t", 0): (one, two)}, check=False)
    stuck.cluster.cancel_reassignments()
    assert folders(stuck, one)
    assert with_ports(sweep_roots, ports_of(stuck.cluster))(OperationRun("vacuum")) > 0
    assert folders(stuck, one) == folders(stuck, two) == set()
    stuck.cluster.verify().raise_for_failures()


def test_a_root_that_cannot_be_listed_keeps_no_other_from_being_swept(stuck: LiveCluster, faults: Faults) -> None:
    one, two = two_others(stuck)
    stuck.cluster.reassign({("t", 0): (one, two)}, check=False)
    stuck.cluster.cancel_reassignments()

    def gone(uri: str, what: str, name: str) -> None:
        if (uri, what, name) == (f"memory://b{two}", "list", ""):
            raise StorageError("gone")

    faults.before = gone
    assert the_failure(stuck.cluster.vacuum(check=False)) == f"broker {two}: KAFKA_STORAGE_ERROR: gone"
    assert folders(stuck, one) == set()


def test_a_broker_that_is_placed_again_starts_over_and_zombies_of_the_old_replica_do_no_harm(
    live: LiveCluster,
) -> None:
    """Protocol, section 1: the path contains the assignment: "zombies that knew ... a removed replica ... write
    where no one reads"."""
    live.topic()
    live.fill("ab")
    whole = replicas(live)
    broker = live.followers()[0]
    zombie = live.replica(broker)
    late = {zombie.path(name): data for name, data in live.data(broker).items()}
    live.cluster.reassign(live.cluster.plan_replicas("t", remove=[broker])).raise_for_failures()
    live.fill("cd")
    live.cluster.reassign({("t", 0): whole}).raise_for_failures()
    assert live.replica(broker).folder != zombie.folder
    ports_of(live.cluster).storage.stores[broker].delete(late)
    before = live.data(broker)
    for name, data in late.items():
        assert live.store(broker).create(name, b"of another history" + data)
    live.cluster.replicate().raise_for_failures()
    assert live.data(broker) == before == live.data(live.leader())
    live.cluster.vacuum().raise_for_failures()
    assert folders(live, broker) == {live.replica(broker).folder}
    assert live.read() == {0: list("abcd")}


def test_a_zombie_whose_view_still_has_the_removed_leader_finds_its_folder_closed(live: LiveCluster) -> None:
    """The zombie would find an empty log, take over its epoch a second time, and copy a second history of that
    epoch to the follower in both views: one name with two contents (found by the simulation).

    1. broker 1 leads epoch 1; ``a`` is on it alone (acks=leader), and copied to a new replica. 2. Broker 1 is
      reassigned away, and its folder is swept. 3. A driver that has not seen this appends ``b``.
    """
    live.topic(copies=2)
    old = live.replicas()
    leader, follower = old.view.leader, live.followers()[0]
    live.append(["a"], acks="leader").raise_for_failures()
    newcomer = min(set(live.cluster.stores) - set(old.view.replicas))
    live.cluster.reassign({("t", 0): (newcomer, follower)}).raise_for_failures()
    live.cluster.vacuum().raise_for_failures()
    assert leader not in live.replicas().view.replicas
    image = live.cluster.image
    topic = image.topic("t")
    options = append_options(topic, topic_config_of(image, topic), "all")
    outcome = append(
        old, ProducerAppend("z", 0, 0), iter([batch(["b"])]), options, clock=live.clock, copies=SerialRunner()
    )
    assert isinstance(outcome, NotAppended)
    assert isinstance(outcome.error, FencedLeaderEpochError)
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: ["a"]}
    live.cluster.verify(deep=True).raise_for_failures()
    live.cluster.vacuum().raise_for_failures()
    live.cluster.topics.delete("t").raise_for_failures()
    live.cluster.vacuum().raise_for_failures()
    assert not [stored.name for stored in live.store(leader or 0).list("") if "/t-" in stored.name]
