"""The probe of every root at the start of a run, and its consequences (protocol section 4)."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stratalog import Cluster
from stratalog.engine.brokers.probe import probe_brokers, read_and_probe
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.driver.opening import Ports
from stratalog.engine.metadata.commands import RegisterBroker
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.partition_commands import Altered, AlterPartition, PartitionAnswer, RefusedPartition
from stratalog.engine.metadata.probed_roots import ProbedMetadata
from stratalog.engine.replicas.in_sync import adding, joined
from stratalog.partitions.errors import IneligibleReplicaError, StaleBrokerError, StorageError
from stratalog.partitions.paths import BROKER_FILE
from stratalog.partitions.probing import SerialProber, ThreadProber
from stratalog.partitions.root import BrokerFile, format_root
from stratalog.partitions.runner import Failed, Outcome
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, led_by_each
from tests.unit.faulty_store import CHANGES, Faults


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.slow)])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> LiveCluster:
    return led_by_each(tmp_path, on_disk=request.param == "disk")


def context(cluster: Cluster) -> Ports:
    return ports_of(cluster)


def probe(live: LiveCluster) -> ProbedMetadata:
    return with_ports(probe_brokers, context(live.cluster))()


def batches(live: LiveCluster) -> int:
    """The number of batches in the metadata log."""
    return sum("__cluster_metadata" in s.name and s.name.endswith(".parquet") for s in live.store(1).list(""))


def isrs(live: LiveCluster) -> list[set[int]]:
    return [live.isr(partition=p) for p in range(3)]


def copy_of(live: LiveCluster, broker: int) -> dict[str, bytes]:
    """Copy a broker's root, to be restored later."""
    store = live.store(broker)
    if (root := live.root(broker)).exists():
        shutil.copytree(root, live.folder / "backup", symlinks=True)
    return {stored.name: store.read(stored.name) for stored in store.list("")}


def put_back(live: LiveCluster, broker: int, copied: dict[str, bytes]) -> None:
    """Wipe the root, and restore the copy, with the times and modes of the original."""
    if (root := live.root(broker)).exists():
        shutil.rmtree(root)
        shutil.copytree(live.folder / "backup", root, symlinks=True)
        return
    live.wipe(broker)
    for name, data in copied.items():
        live.store(broker).create(name, data)


# --------------------------------------------------------------------------------- as registered


def test_an_idle_probe_is_a_read_of_the_metadata_and_one_look_at_each_root(live: LiveCluster) -> None:
    driver = live.driver()
    image = driver.image
    with live.unchanged():
        before = {broker: store.counts.snapshot() for broker, store in driver.stores.items()}
        assert with_ports(probe_brokers, context(driver))() == ProbedMetadata(image, ())
        asked = {broker: store.counts - before[broker] for broker, store in driver.stores.items()}
    for follower in (2, 3):
        assert (asked[follower].requests, asked[follower].reads, asked[follower].read_bytes) == (1, 1, 0)


def test_a_broker_registered_without_an_identity_is_recognized_by_its_directory(live: LiveCluster) -> None:
    driver = context(live.cluster)
    broker = driver.metadata.image().brokers[2]
    other = BrokerFile(cluster_id="c", broker_id=2, directory_id="d" * 32)
    driver.metadata.submit(RegisterBroker(2, "e" * 32, broker.rack, broker.log_dir))
    driver.metadata.submit(RegisterBroker(2, broker.directory_id, broker.rack, broker.log_dir))
    assert driver.metadata.image().brokers[2].root == ""
    assert probe(live).notes == ()
    live.store(2).delete([BROKER_FILE])
    live.store(2).create(BROKER_FILE, msgspec.json.encode(other))
    assert probe(live).image.brokers[2].directory_id == "d" * 32


def test_a_look_during_the_metadata_read_says_whether_all_is_as_registered(live: LiveCluster) -> None:
    """This look commits nothing; a later probe does the remaining work."""
    driver = live.driver()
    look = with_ports(read_and_probe, context(driver))
    with live.unchanged():
        assert look() == (driver.image, True)
    wiped = copy_of(live, 3)
    live.wipe(3)
    with live.unchanged():
        assert look() == (driver.image, False)
    put_back(live, 3, wiped)
    driver.brokers.fence(3)
    with live.unchanged():  # this driver knows the fenced broker
        assert look() == (driver.image, False)


def test_a_look_at_brokers_that_were_registered_meanwhile_counts_for_nothing(live: LiveCluster) -> None:
    driver, other = live.driver(), context(live.driver())
    broker = other.metadata.image().brokers[2]
    other.metadata.submit(RegisterBroker(2, broker.directory_id, "another rack", broker.log_dir, root=broker.root))
    look = with_ports(read_and_probe, context(driver))
    assert [look()[1], look()[1]] == [False, True]


# --------------------------------------------------------------------------- unreachable, and back


@pytest.fixture
def disks(tmp_path: Path) -> LiveCluster:
    return led_by_each(tmp_path, on_disk=True)


def test_an_unmounted_root_is_fenced_and_unfenced_when_it_is_back(disks: LiveCluster) -> None:
    with disks.unreachable(2):
        probed = probe(disks)
        assert probed.image == disks.cluster.image
        assert probed.image.brokers[2].fenced
        (note,) = probed.notes
        assert note.startswith("broker 2 is fenced: BROKER_NOT_AVAILABLE: ")
        assert f"{disks.root(2)} has no broker.json: is its volume mounted?" in note
        assert isrs(disks) == [{1, 3}] * 3
        assert all(disks.leader(partition=p) != 2 for p in range(3))
        with disks.unchanged():
            (note,) = probe(disks).notes
        assert note.startswith("broker 2 remains fenced: ")
    assert probe(disks).notes == ("broker 2 is unfenced: its root is back",)
    assert not disks.cluster.image.brokers[2].fenced
    assert isrs(disks) == [{1, 3}] * 3


def test_a_folder_that_is_gone_is_unreachable(disks: LiveCluster) -> None:
    shutil.rmtree(disks.root(2))
    assert "is its volume mounted?" in probe(disks).notes[0]
    assert disks.cluster.image.brokers[2].fenced


def test_the_last_member_of_an_isr_stays_in_it_and_leads_again_when_it_is_back(disks: LiveCluster) -> None:
    disks.topic("alone", copies=1, partitions=3)
    on_two = next(p for p in range(3) if disks.leader("alone", p) == 2)
    with disks.unreachable(2):
        probe(disks)
        view = disks.replicas("alone", on_two).view
        assert (view.leader, view.isr) == (None, (2,))
    probe(disks)
    assert disks.leader("alone", on_two) == 2


def test_a_root_that_hangs_is_fenced_after_the_deadline_and_holds_nobody_up(tmp_path: Path) -> None:
    """Calls into a dead NFS mount do not return."""
    faults, server = Faults(), threading.Event()
    live = LiveCluster(tmp_path, through=faults.wrap)

    def hang(uri: str, what: str, name: str) -> None:
        if uri == "memory://b2":
            server.wait()

    deadlines: list[float] = []

    def wait(answered: threading.Condition, missing: Callable[[], int], deadline_s: float) -> None:
        deadlines.append(deadline_s)
        hanging = 1 if len(deadlines) == 2 else 0  # opening looks only at the voters
        answered.wait_for(lambda: missing() <= hanging)

    live.cluster.topics.alter_configs(None, {"broker.session.timeout.ms": "2500"})
    faults.before = hang
    try:
        driver = with_parts(
            Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root, prober=ThreadProber(wait)
        ).open(live.file)
        probed = with_ports(probe_brokers, context(driver))()
        assert probed.notes == ("broker 2 is fenced: REQUEST_TIMED_OUT: memory://b2: no answer within 2.5 s",)
        assert probed.image.brokers[2].fenced
        assert deadlines == [9, 2.5], "the default before the cluster's metadata is known"
    finally:
        server.set()


@pytest.mark.parametrize("fault", ["read-only file system", "no space left on device"])
def test_a_root_that_cannot_be_written_answers_and_is_not_fenced(tmp_path: Path, fault: str) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)

    def refuse(uri: str, what: str, name: str) -> None:
        if uri == "memory://b2" and what in CHANGES:
            raise StorageError(f"cannot write {name!r}: {fault}")

    faults.before = refuse
    with live.unchanged():
        assert probe(live).notes == ()


class CutOff(SerialProber):
    """A driver that cannot reach some brokers' roots."""

    def __init__(self, *brokers: int) -> None:
        self.brokers = brokers

    def probe(self, question, items, deadline_s):  # type: ignore[no-untyped-def]
        return [
            Failed(outcome.item, StorageError("no route")) if outcome.item in self.brokers else outcome
            for outcome in super().probe(question, items, deadline_s)
        ]


@pytest.mark.parametrize("silent", [(1,), (1, 2), (1, 2, 3)])
def test_a_driver_that_does_not_reach_the_metadata_voters_commits_nothing(
    live: LiveCluster, silent: Sequence[int]
) -> None:
    context(live.cluster).storage.prober = CutOff(*silent)
    with live.unchanged():
        (note,) = probe(live).notes
    assert note.startswith("nothing was changed: this driver cannot reach")


# ----------------------------------------------------------------------------- other incarnations


def test_a_root_that_was_reformatted_is_registered_and_out_of_every_isr(live: LiveCluster) -> None:
    before = live.cluster.image.brokers[2]
    live.wipe(2)
    found = format_root(live.store(2), "c", 2, live.new_id)
    (note,) = probe(live).notes
    assert note.startswith("broker 2 is registered again: its root was formatted again")
    now = live.cluster.image.brokers[2]
    assert (now.directory_id, now.fenced) == (found.directory_id, False)
    assert now.broker_epoch > before.broker_epoch
    assert isrs(live) == [{1, 3}] * 3
    with live.unchanged():
        assert probe(live).notes == ()
    live.cluster.replicate().raise_for_failures()
    assert isrs(live) == [{1, 2, 3}] * 3


def test_a_root_that_was_wiped_and_not_formatted_is_unreachable_and_never_empty(live: LiveCluster) -> None:
    live.wipe(2)
    assert "broker 2 is fenced" in probe(live).notes[0]
    assert live.cluster.image.brokers[2].fenced


def test_a_restored_older_copy_is_found_before_it_counts_and_nothing_acknowledged_is_lost(
    live: LiveCluster,
) -> None:
    """A backup of broker 2 (which leads partition 1) is restored after later acknowledgements: same directory id,
    same files, and a history that stops too early."""
    copied = copy_of(live, 2)
    live.append({0: ["b0"], 1: ["b1"], 2: ["b2"]}).raise_for_failures()
    put_back(live, 2, copied)
    for partition in range(3):
        with pytest.raises(StaleBrokerError, match="an older copy was restored"):
            live.replica(2, partition=partition).list()
    (note,) = probe(live).notes
    assert note.startswith("broker 2 is registered again: its root was restored from a copy, or moved")
    assert isrs(live) == [{1, 3}] * 3
    assert live.leader(partition=1) != 2
    live.append({0: ["c0"], 1: ["c1"], 2: ["c2"]}).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert isrs(live) == [{1, 2, 3}] * 3
    live.cluster.verify().raise_for_failures()
    assert live.read() == {p: [f"{letter}{p}" for letter in "abc"] for p in range(3)}
    for partition in range(3):
        assert live.data(2, partition=partition) == live.data(1, partition=partition)


def test_an_append_finds_a_restored_older_copy_by_itself(live: LiveCluster) -> None:
    """The driver has the old view, in which the restored root leads."""
    copied = copy_of(live, 2)
    live.append({1: ["b1"]}).raise_for_failures()
    put_back(live, 2, copied)
    live.append({1: ["c1"]}).raise_for_failures()
    assert live.read(partitions=[1]) == {1: ["a1", "b1", "c1"]}
    assert 2 not in live.isr(partition=1)


def test_a_restored_older_copy_of_the_last_member_is_no_leader(live: LiveCluster) -> None:
    """The lost records exist nowhere else; only an operator may continue without them."""
    live.topic("alone", copies=1, partitions=3)
    on_two = next(p for p in range(3) if live.leader("alone", p) == 2)
    live.append({on_two: ["a"]}, "alone").raise_for_failures()
    copied = copy_of(live, 2)
    live.append({on_two: ["b"]}, "alone").raise_for_failures()
    put_back(live, 2, copied)
    probe(live)
    view = live.replicas("alone", on_two).view
    assert (view.leader, view.isr) == (None, ())


# --------------------------------------------------------------------------- foreign roots


FOREIGN = {
    "another cluster": msgspec.json.encode(BrokerFile(cluster_id="x", broker_id=2, directory_id="d" * 32)),
    "another broker": msgspec.json.encode(BrokerFile(cluster_id="c", broker_id=3, directory_id="d" * 32)),
    "garbage": b"{",
    "nothing": b"",
    "no directory id": msgspec.json.encode(BrokerFile(cluster_id="c", broker_id=2, directory_id="../..")),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_root_that_is_not_ours_is_fenced_and_never_registered(live: LiveCluster, content: bytes) -> None:
    before = live.cluster.image.brokers[2]
    live.store(2).delete([BROKER_FILE])
    live.store(2).create(BROKER_FILE, content)
    (note,) = probe(live).notes
    assert note.startswith("broker 2 is fenced: ")
    now = live.cluster.image.brokers[2]
    assert (now.fenced, now.directory_id, now.broker_epoch) == (True, before.directory_id, before.broker_epoch)
    with live.unchanged():
        assert probe(live).notes[0].startswith("broker 2 remains fenced: ")


def test_a_directory_of_another_registered_broker_is_never_registered_twice(live: LiveCluster) -> None:
    stolen = live.cluster.image.brokers[3].directory_id
    live.store(2).delete([BROKER_FILE])
    content = BrokerFile(cluster_id="c", broker_id=2, directory_id=stolen)
    live.store(2).create(BROKER_FILE, msgspec.json.encode(content))
    assert "two brokers cannot share one" in probe(live).notes[0]
    assert live.cluster.image.brokers[2].fenced


# ------------------------------------------------------------------------ fenced by hand, left alone


def test_a_broker_fenced_by_hand_stays_fenced_however_well_its_root_answers(live: LiveCluster) -> None:
    live.cluster.brokers.fence(2).raise_for_failures()
    with live.unchanged():
        assert probe(live).notes == ("broker 2 was fenced by hand, and remains fenced",)


def test_brokers_that_only_the_metadata_or_only_the_file_knows_are_left_alone(live: LiveCluster) -> None:
    text = live.file.read_text()
    live.file.write_text(text.replace("id = 3\n", "id = 4\n").replace("b3", "b4"))
    if live.root(3).exists():
        live.root(4).mkdir()
    driver = live.driver()
    with live.unchanged():
        probed = with_ports(probe_brokers, context(driver))()
    assert probed.notes == (
        f"broker 3 is registered but not in {live.file}: its state is not changed",
        f"broker 4 of {live.file} was never registered: format it, or remove it from the file",
    )
    assert live.cluster.image.brokers.keys() == {1, 2, 3}


# ------------------------------------------------------------------------------ commits, and races


def test_all_changes_of_a_run_are_one_commit(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=5, on_disk=True)
    live.topic(partitions=5, copies=4)
    live.wipe(2)
    format_root(live.store(2), "c", 2, live.new_id)
    live.store(4).delete([BROKER_FILE])
    live.store(4).create(BROKER_FILE, b"{")
    with live.unreachable(3):
        before = batches(live)
        assert len(probe(live).notes) == 3
        assert batches(live) == before + 1
    brokers = live.cluster.image.brokers
    assert [broker for broker in brokers if brokers[broker].fenced] == [3, 4]


class Interrupted(SerialProber):
    """Another driver intervenes after the first probe, and before the probe's result is used."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = [meanwhile]
        self.probes = 0

    def probe(self, question, items, deadline_s):  # type: ignore[no-untyped-def]
        self.probes += 1
        found: list[Outcome[int, object]] = super().probe(question, items, deadline_s)
        if self.meanwhile:
            self.meanwhile.pop()()
        return found


def test_a_broker_that_is_registered_between_look_and_commit_is_inspected_again(disks: LiveCluster) -> None:
    """The late prober found nothing; the root has been formatted and registered since."""
    disks.wipe(2)
    other = disks.driver()
    prober = Interrupted(lambda: other.brokers.add([2]).raise_for_failures())
    context(disks.cluster).storage.prober = prober
    probed = probe(disks)
    assert (probed.notes, prober.probes) == ((), 2)
    assert not probed.image.brokers[2].fenced


def test_a_broker_that_registers_again_and_again_is_reported(live: LiveCluster) -> None:
    other = live.driver()

    class Restless(CutOff):
        def probe(self, question, items, deadline_s):  # type: ignore[no-untyped-def]
            found = super().probe(question, items, deadline_s)
            live.wipe(2)
            other.brokers.add([2]).raise_for_failures()
            return found

    context(live.cluster).storage.prober = Restless(2)
    with pytest.raises(StaleBrokerError, match="probe its root again"):
        probe(live)


def test_two_drivers_that_settle_the_same_commit_it_once(live: LiveCluster) -> None:
    live.wipe(2)
    other = live.driver()
    first: list[ClusterImage] = []
    context(live.cluster).storage.prober = Interrupted(
        lambda: first.append(with_ports(probe_brokers, context(other))().image)
    )
    second = probe(live).image
    assert second.brokers[2].fenced
    assert replace(second, next_offset=first[0].next_offset) == first[0]  # no epoch was raised twice


# --------------------------------------------------------------------------- KIP-903, in every order


def _orders() -> list[tuple[str, ...]]:
    steps = ["add", "join", "wipe", "probe"]
    in_turn = (("add", "join"), ("wipe", "probe"))
    return [o for o in itertools.permutations(steps) if all(o.index(a) < o.index(b) for a, b in in_turn)]


@pytest.mark.parametrize(
    "order",
    [pytest.param(o, marks=[] if o.index("wipe") == 1 else [pytest.mark.slow]) for o in _orders()],
    ids=" ".join,
)
def test_kip_903_a_broker_that_lost_its_disk_and_came_back_joins_no_isr_by_a_delayed_proposal(
    live: LiveCluster, order: Sequence[str]
) -> None:
    """KIP-903: a driver that has seen that broker 3 is caught up adds it to the ISR of partition 0, in two
    commits. Meanwhile the broker loses its disk, returns empty, and is registered by another driver. In any order:
    at the end no replica without the data is in the ISR, and nothing acknowledged is lost.
    """
    live.cluster.brokers.fence(3).raise_for_failures()
    live.append({0: ["b0"]}).raise_for_failures()
    live.cluster.brokers.unfence(3).raise_for_failures()
    driver = context(live.driver())
    view = live.replicas().view
    assert set(view.isr) == {1, 2}
    answers: dict[str, PartitionAnswer] = {}
    for step in order:
        match step:
            case "wipe":
                live.wipe(3)
                format_root(live.store(3), "c", 3, live.new_id)
            case "probe":
                probe(live)
            case "add":
                (answers[step],) = driver.metadata.submit(AlterPartition((adding(view, [3]),)))
                if isinstance(answers[step], Altered):
                    view = driver.metadata.image().view(view.topic_id, 0)
            case "join":
                (answers[step],) = driver.metadata.submit(AlterPartition((joined(view, [3]),)))
    for step in ("add", "join"):
        assert isinstance(answers[step], RefusedPartition) == (order.index("probe") < order.index(step))
    if order.index("probe") < order.index("add"):
        # The partition has not changed since: only the broker epoch differs.
        assert isinstance(answers["add"], RefusedPartition)
        assert isinstance(answers["add"].error, IneligibleReplicaError)
    assert live.isr() == {1, 2}
    live.append({0: ["c0"]}).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.read(partitions=[0]) == {0: ["a0", "b0", "c0"]}
    live.cluster.verify().raise_for_failures()
