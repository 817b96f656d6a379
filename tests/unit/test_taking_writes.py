"""A broker whose root answers reads and accepts no writes stops leading, and no operation waits for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.records.append import end_appends
from stratalog.engine.replicas.taking_writes import FAILED_CREATES
from stratalog.engine.replication.append import NotAppended
from stratalog.partitions.paths import MAINTENANCE, folder_of, probe_name
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.store.local_rights import failure_of
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, codes, report_of, rows_of, the_failure
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.mounts import fill_up, remount, tmpfs

NUMBERS = [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO]


class Broken:
    """Roots that accept no writes: those of brokers 1 to 3, of which only 1 votes."""

    def __init__(self, folder: Path, number: int = errno.EROFS) -> None:
        faults = Faults()
        self.refused: list[tuple[int, str]] = []
        """Refused calls in order: broker and call."""
        self.brokers: dict[int, Callable[[str, str], bool]] = {}
        """Calls and names to refuse, by broker."""

        def before(uri: str, what: str, name: str) -> None:
            broker = int(uri.removeprefix("memory://b")) if uri.startswith("memory") else 0
            if broker in self.brokers and what in CHANGES - {"delete"} and self.brokers[broker](what, name):
                self.refused.append((broker, what))
                raise failure_of("create", f"{uri}/{name}", OSError(number, os.strerror(number)))

        faults.before = before
        self.live = LiveCluster(folder, through=faults.wrap)
        self.live.topic()
        self.live.fill("ab")

    def root(self, broker: int) -> None:
        """Let a root accept no writes from now on."""
        self.brokers[broker] = lambda what, name: True


@pytest.mark.parametrize("number", NUMBERS, ids=os.strerror)
def test_a_leader_that_takes_no_writes_resigns_and_the_append_continues_elsewhere(
    tmp_path: Path, number: int
) -> None:
    broken = Broken(tmp_path, number)
    live = broken.live
    before = lead_by_another_than_the_voter(live)
    broken.root(before)
    began_s = live.clock.monotonic_s()
    report = live.append("c")
    assert rows_of(report, "outcome", "base_offset") == [("acknowledged", 2)]
    assert live.clock.monotonic_s() == began_s, "it has waited for nobody"
    assert live.leader() != before
    assert live.isr() == {1, 2, 3} - {before}
    (note,) = [note for note in report.notes if "leaves the ISR" in note]
    assert note.startswith(
        f"t-0: broker {before} leaves the ISR, and broker {live.leader()} leads: cannot create "
    )
    assert os.strerror(number) in note
    assert f"`stratalog brokers fence {before}`" in note
    assert len(broken.refused) == FAILED_CREATES
    live.append("d", driver=live.driver()).raise_for_failures()
    assert live.read() == {0: list("abcd")}
    assert len(broken.refused) == FAILED_CREATES, "nobody tries it again"


def test_a_leader_resigns_for_an_append_that_waits_for_nobody(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    live = broken.live
    before = lead_by_another_than_the_voter(live)
    broken.root(before)
    live.append("c", acks="leader").raise_for_failures()
    assert live.leader() != before


def test_a_leader_resigns_where_tasks_elsewhere_have_failed(tmp_path: Path) -> None:
    """An example is the tasks of a stream, whose batch Spark retries."""
    broken = Broken(tmp_path)
    live = broken.live
    before = lead_by_another_than_the_voter(live)
    broken.root(before)
    failed = NotAppended(UnwritableStorageError("cannot create 'x': no"), tried=False, ours=False)
    outcomes = {0: (live.replicas().view, failed)}
    report = with_ports(end_appends, ports_of(live.cluster))("t", ProducerAppend("p", 0, 0), outcomes)
    assert the_failure(report) == "t-0: KAFKA_STORAGE_ERROR: cannot create 'x': no"
    assert live.leader() != before
    assert [note for note in report.notes if f"broker {before} leaves the ISR, and broker" in note]


def test_one_failed_create_is_no_reason_to_resign(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    live = broken.live
    leader = live.leader()
    broken.brokers[leader] = lambda what, name: len(broken.refused) < 1
    live.append("c").raise_for_failures()
    assert live.leader() == leader
    assert live.isr() == {1, 2, 3}


def test_a_root_with_room_for_a_probe_and_not_for_the_append_resigns_too(tmp_path: Path) -> None:
    broken = Broken(tmp_path, errno.ENOSPC)
    live = broken.live
    leader = lead_by_another_than_the_voter(live)
    broken.brokers[leader] = lambda what, name: not name.endswith(".probe")
    live.append("c").raise_for_failures()
    assert live.leader() != leader
    assert len(broken.refused) == FAILED_CREATES


def test_if_nobody_else_takes_writes_the_append_fails_by_name_and_no_isr_shrinks(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    live = broken.live
    leader = live.leader()
    for broker in (1, 2, 3):
        broken.root(broker)
    failed = the_failure(live.append("c"))
    assert failed.startswith("t-0: KAFKA_STORAGE_ERROR: cannot create ")
    assert "Read-only file system. Remount it read-write" in failed
    assert f"`stratalog brokers fence {leader}`" in failed
    assert (live.leader(), live.isr()) == (leader, {1, 2, 3})


def test_a_leader_that_takes_the_records_and_no_high_watermark_resigns(tmp_path: Path) -> None:
    """The disk becomes full at that moment: the records are everywhere, and are acknowledged under the next
    leader, once.
    """
    broken = Broken(tmp_path, errno.ENOSPC)
    live = broken.live
    leader = lead_by_another_than_the_voter(live)
    broken.brokers[leader] = lambda what, name: name.endswith((".hw", ".probe"))
    report = live.append("c", producer="p")
    assert rows_of(report, "outcome", "base_offset") == [("acknowledged", 2)]
    assert live.leader() != leader
    assert live.read() == {0: list("abc")}


@pytest.mark.parametrize("number", NUMBERS, ids=os.strerror)
def test_a_follower_that_takes_no_writes_leaves_the_isr_at_once(tmp_path: Path, number: int) -> None:
    broken = Broken(tmp_path, number)
    live = broken.live
    follower = next(broker for broker in live.followers() if broker != 1)
    broken.root(follower)
    began_s = live.clock.monotonic_s()
    report = live.append("c", driver=live.driver())
    report.raise_for_failures()
    assert live.clock.monotonic_s() == began_s, "nobody waits for the end of replica.lag.time.max.ms"
    (note,) = [note for note in report.notes if "leaves the ISR" in note]
    assert note.startswith(f"t-0: broker {follower} leaves the ISR: cannot create ")
    assert live.isr() == {1, 2, 3} - {follower}
    refused = len(broken.refused)
    live.append("d", driver=live.driver()).raise_for_failures()
    assert len(broken.refused) == refused
    broken.brokers.clear()
    live.cluster.replicate()
    assert live.isr() == {1, 2, 3}


def test_replicate_lets_a_follower_that_takes_no_writes_go_at_once(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    live = broken.live
    follower = next(broker for broker in live.followers() if broker != 1)
    live.append("c", acks="leader").raise_for_failures()
    broken.root(follower)
    report = live.cluster.replicate(check=False)
    assert codes(report) == {"KAFKA_STORAGE_ERROR": 1}
    assert live.isr() == {1, 2, 3} - {follower}


@pytest.mark.parametrize("by", ["elect", "maintain"])
def test_it_is_not_preferred_again_before_it_takes_files(tmp_path: Path, by: str) -> None:
    """A root may accept the few bytes for joining the ISR, but no file of the size of an append."""
    broken = Broken(tmp_path, errno.ENOSPC)
    live = broken.live
    preferred = lead_by_another_than_the_voter(live)
    broken.root(preferred)
    live.append("c").raise_for_failures()
    broken.brokers[preferred] = lambda what, name: name.endswith(".probe")
    live.cluster.replicate()
    assert live.isr() == {1, 2, 3}
    leader = live.leader()

    def again() -> list[str]:
        if by == "elect":
            report = report_of(lambda: live.cluster.elect(["t"]))
            assert codes(report) in ({}, {"PREFERRED_LEADER_NOT_AVAILABLE": 1})
        else:
            report = live.cluster.maintain(only=["elect"])
        return [str(note) for note in report.notes]

    (note,) = [note for note in again() if "is not elected" in note]
    assert f"broker {preferred} is not elected: cannot create" in note
    assert live.leader() == leader
    broken.brokers.clear()
    assert not [note for note in again() if "is not elected" in note]
    assert live.leader() == preferred


def test_replicate_replaces_a_leader_that_cannot_take_over(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    live = broken.live
    preferred = lead_by_another_than_the_voter(live)
    live.cluster.elect(["t"], [0], leader=1)
    live.cluster.replicate()
    live.cluster.elect(["t"])
    broken.root(preferred)
    report = live.cluster.replicate(check=False)
    assert live.leader() != preferred
    assert [note for note in report.notes if f"broker {preferred} leaves the ISR, and broker" in note]
    live.append("c").raise_for_failures()


def lead_by_another_than_the_voter(live: LiveCluster) -> int:
    """Elect the preferred leader, which is not broker 1, so that metadata can always be changed."""
    live.cluster.reassign({("t", 0): [2, 3, 1]})
    live.cluster.elect(["t"])
    assert live.leader() == 2
    return 2


def test_a_probe_that_a_crash_has_left_goes_with_a_vacuum(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    live = broken.live
    live.cluster.maintain()
    (hint, *_) = sorted(stored.name for stored in live.store(1).list("") if MAINTENANCE in stored.name)
    probe = f"{folder_of(hint)}/{probe_name('a' * 32)}"
    live.store(1).create(probe, b"x")
    live.cluster.vacuum()
    assert probe in live.store(1).names("")
    live.clock.sleep(2 * 24 * 60 * 60)
    live.cluster.vacuum()
    assert probe not in live.store(1).names("")
    assert hint in live.store(1).names("")


# ------------------------------------------------------------------------------ real file systems


@pytest.mark.parametrize("kind", ["read-only", "full"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_real_file_system_that_takes_no_writes(tmp_path: Path, kind: str, role: str) -> None:
    root = tmp_path / "b2"
    root.mkdir()
    with tmpfs(root, "512k"):
        live = LiveCluster(tmp_path, on_disk=True)
        live.topic()
        lead_by_another_than_the_voter(live)
        if role == "follower":
            live.cluster.elect(["t"], [0], leader=3)
        live.fill("ab")
        ballast = fill_up(root) if kind == "full" else None
        if ballast is None:
            remount(root, "ro")
        text = "No space left on device" if kind == "full" else "Read-only file system"
        began_s = live.clock.monotonic_s()
        report = live.append("c", driver=live.driver())
        report.raise_for_failures()
        assert live.clock.monotonic_s() == began_s
        assert (live.leader(), live.isr()) == (3, {1, 3})
        assert [note for note in report.notes if "broker 2 leaves the ISR" in note and text in note]
        check_named(live, text)
        if ballast is None:
            remount(root, "rw")
        else:
            ballast.unlink()
        live.cluster.replicate()
        assert live.isr() == {1, 2, 3}
        assert live.cluster.describe().failures == []


def check_named(live: LiveCluster, message: str) -> None:
    """Check that every look at the cluster names the root."""
    for described in (live.cluster.describe(), live.cluster.brokers.list()):
        assert [one.item for one in described.failures if message in one.message] == ["broker 2"]
    kinds = ("read-only-log-dir", "log-dir-used-ratio")
    (finding,) = [one for one in live.cluster.health().findings if one.kind in kinds]
    assert finding.subjects == ("broker 2",)
    assert message in finding.what
    assert "stratalog brokers fence 2" in finding.what
    if "Read-only" in message:
        assert finding.do == f"mount -o remount,rw {live.root(2)}"
