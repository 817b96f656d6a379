"""One replica on one root: list it, then check the root's identity (protocol section 1; V3, V4)."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    LogDirError,
    SourceChangedError,
    StaleBrokerError,
)
from stratalog.partitions.identity import same_root
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import BROKER_FILE, DataName, EpochName, LocalStartName, WatermarkName
from stratalog.partitions.producers import ProducerEntry, encode
from stratalog.partitions.replica import LookMark, Replica
from stratalog.partitions.root import BrokerFile, format_root, inspect_root, read_broker_file
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store, StoredObject
from tests.unit.segments import records, write_segment

STATE = {"p": ProducerEntry(1, 2, 3, 4, 5)}


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(str(tmp_path))


def ids(first: int = 1) -> Callable[[], str]:
    """Ids that count up."""
    numbers = iter(range(first, 1_000_000))
    return lambda: f"{next(numbers):032x}"


def replica_on(store: Store) -> Replica:
    """A replica on a root that is formatted for it."""
    directory_id = format_root(store, "cluster", 1, ids()).directory_id
    return Replica(1, store, directory_id, "events", "e" * 32, 0, 17)


def append(replica: Replica, base: int, count: int = 1, epoch: int = 1) -> None:
    """A data file of the replica, with its own producer state."""
    write_segment(
        replica.store,
        DataName(base, None, epoch),
        [records([b"value"] * count)],
        folder=replica.folder,
        producers={"p": ProducerEntry(1, base, base, base + count, 0)},
    )


def put(replica: Replica, name: EpochName | WatermarkName | LocalStartName, data: bytes = b"") -> None:
    assert replica.store.create(replica.path(name), data)


def join(replica: Replica, *entries: tuple[int, int]) -> None:
    put(replica, EpochName(entries[-1][0]), Lineage(entries).to_json())


# -------------------------------------------------------------------------------- formatting


def test_formatting_a_root_makes_it_a_broker_s(store: Store) -> None:
    found = format_root(store, "cluster", 1, ids())
    assert (found.cluster_id, found.broker_id, len(found.directory_id)) == ("cluster", 1, 32)
    assert read_broker_file(store) == found


def test_formatting_again_finds_the_same_incarnation(store: Store) -> None:
    first = format_root(store, "cluster", 1, ids(1))
    assert format_root(store, "cluster", 1, ids(500)) == first


def test_a_root_of_another_cluster_is_refused(store: Store) -> None:
    format_root(store, "cluster", 1, ids())
    with pytest.raises(InconsistentClusterIdError, match=r"'cluster'.*'other'"):
        format_root(store, "other", 1, ids())


def test_two_brokers_on_one_folder_are_refused(store: Store) -> None:
    format_root(store, "cluster", 1, ids())
    with pytest.raises(LogDirError, match="belongs to broker 1"):
        format_root(store, "cluster", 2, ids())


def test_a_root_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDirError):
        format_root(LocalStore(str(tmp_path / "unmounted")), "cluster", 1, ids())


def test_an_unformatted_root_says_nothing(store: Store) -> None:
    assert read_broker_file(store) is None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"cluster_id":"\xff"}', b'{"cluster_id":"c","broker_id":"1"}']
)
def test_a_broker_file_that_cannot_be_read_is_corruption(store: Store, content: bytes) -> None:
    store.create(BROKER_FILE, content)
    with pytest.raises(CorruptionError, match=r"broker\.json"):
        read_broker_file(store)


# ------------------------------------------------------------------------------ list and check


def test_a_replica_without_a_folder_is_empty(store: Store) -> None:
    log = replica_on(store).log()
    assert (log.log_end, log.joined_epoch, log.lineage) == (0, 0, Lineage())


def test_v3_a_wiped_root_that_nobody_has_registered_is_stale(store: Store) -> None:
    """V3: the replica must not act as an empty one; register the new incarnation and start again."""
    replica = replica_on(store)
    store.delete([BROKER_FILE])
    format_root(store, "cluster", 1, ids(900))
    with pytest.raises(StaleBrokerError, match="register the broker first"):
        replica.list()


def test_v3_a_root_without_its_broker_file_is_unreachable_and_never_empty(store: Store) -> None:
    """An unmounted volume."""
    replica = replica_on(store)
    store.delete([BROKER_FILE])
    with pytest.raises(BrokerUnreachableError, match="mount its volume"):
        replica.list()


def test_v3_an_unmounted_volume_is_unreachable(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    replica = replica_on(LocalStore(str(root)))
    root.rename(tmp_path / "gone")
    with pytest.raises(BrokerUnreachableError):
        replica.list()


# ------------------------------------------------------------------------- identity of a root


def registered(replica: Replica) -> Replica:
    """The replica according to a registration of its current root."""
    found = inspect_root(replica.store)
    assert found is not None
    assert found.file.directory_id == replica.directory_id
    return replace(replica, root=found.identity)


def put_back(store: Store) -> None:
    """``broker.json`` is restored from a backup that preserves everything a copy can preserve."""
    if isinstance(store, LocalStore):
        file, backup = Path(store.root, BROKER_FILE), Path(store.root, "backup")
        shutil.copy2(file, backup)
        file.unlink()
        shutil.copy2(backup, file)
        backup.unlink()
    else:
        data = store.read(BROKER_FILE)
        store.delete([BROKER_FILE])
        store.create(BROKER_FILE, data)


def test_a_root_as_it_is_registered_costs_one_look_and_no_byte(store: Store) -> None:
    replica = registered(replica_on(store))
    before = store.counts.snapshot()
    assert replica.list().data == ()
    asked = store.counts - before
    assert (asked.reads, asked.read_bytes, asked.requests - asked.lists) == (1, 0, 1)


def test_a_root_restored_from_a_copy_is_stale_although_its_directory_is_the_same(store: Store) -> None:
    """The restored root lacks the appends since the copy, and must not count as the original replica."""
    replica = registered(replica_on(store))
    put_back(store)
    with pytest.raises(StaleBrokerError, match="an older copy was restored, or the root was moved"):
        replica.list()
    assert registered(replica).list().data == ()


def test_a_root_that_was_moved_counts_as_another_incarnation(tmp_path: Path) -> None:
    """The price of this check: a faithful copy on another disk cannot be distinguished from an older one."""
    (tmp_path / "here").mkdir()
    replica = registered(replica_on(LocalStore(str(tmp_path / "here"))))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    with pytest.raises(StaleBrokerError):
        replace(replica, store=LocalStore(str(tmp_path / "there"))).list()


def test_a_folder_that_was_renamed_is_the_same_root(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    replica = registered(replica_on(LocalStore(str(tmp_path / "here"))))
    (tmp_path / "here").rename(tmp_path / "there")
    assert replace(replica, store=LocalStore(str(tmp_path / "there"))).list().data == ()


def test_a_wiped_root_is_distinguished_from_a_copy(store: Store) -> None:
    replica = registered(replica_on(store))
    store.delete([BROKER_FILE])
    with pytest.raises(BrokerUnreachableError, match=r"has no broker\.json"):
        replica.list()
    format_root(store, "cluster", 1, ids(900))
    with pytest.raises(StaleBrokerError, match=f"registered with {replica.directory_id}"):
        replica.list()


def test_an_identity_that_is_not_known_compares_directories(store: Store) -> None:
    replica = replica_on(store)
    put_back(store)
    assert replica.list().data == ()


def test_a_time_of_birth_that_only_one_machine_reports_makes_no_difference(store: Store) -> None:
    """The time of birth on a file system, or under a kernel, that does not report it."""
    assert same_root("1.2.3@4+5", "1.2.3@4")
    assert same_root("1.2.3@4", "1.2.3@4+5")
    assert same_root("1.2.3@4", "")
    assert not same_root("1.2.3@4+5", "1.2.3@4+6")
    assert not same_root("1.2.3@4+5", "1.2.3@6+5")


class WipedWhileListed(MemoryStore):
    """A root that is wiped and formatted again between its listing and the check of its identity."""

    wipe = False

    def list(self, prefix: str, after: str = "", known=None):  # type: ignore[no-untyped-def]
        found = super().list(prefix, after)
        if self.wipe:
            self.delete([BROKER_FILE])
            self.create(
                BROKER_FILE,
                msgspec.json.encode(BrokerFile(cluster_id="cluster", broker_id=1, directory_id="9" * 32)),
            )
        return found


def test_v3_the_root_is_checked_after_the_listing() -> None:
    """Section 1 (!): the check follows every listing on which a decision depends."""
    store = WipedWhileListed()
    replica = replica_on(store)
    assert replica.list().data == ()
    store.wipe = True
    with pytest.raises(StaleBrokerError):
        replica.list()


def test_v4_each_incarnation_and_each_assignment_has_its_own_folder(store: Store) -> None:
    """V4: files that a zombie writes into the old folder are not seen."""
    replica = replica_on(store)
    append(replace(replica, directory_id="8" * 32), 0)
    append(replace(replica, assignment=16), 0)
    append(replace(replica, topic_id="d" * 32), 0)
    append(replace(replica, partition=1), 0)
    assert replica.list().data == ()


# --------------------------------------------------------------------------------------- log


def test_the_log_follows_from_names_lineage_and_one_footer(store: Store) -> None:
    replica = replica_on(store)
    join(replica, (1, 0))
    append(replica, 0, 3)
    append(replica, 3, 2)
    put(replica, WatermarkName(3, 1))
    log = replica.log()
    assert [(link.start, link.end) for link in log.chain] == [(0, 3), (3, 5)]
    assert (log.local_start, log.high_watermark, log.log_end) == (0, 3, 5)
    assert log.lineage == Lineage([(1, 0)])


def test_the_lineage_of_the_greatest_epoch_counts(store: Store) -> None:
    replica = replica_on(store)
    join(replica, (1, 0))
    append(replica, 0)
    append(replica, 1)
    join(replica, (1, 0), (3, 1))
    join(replica, (1, 0), (2, 2))
    log = replica.log()
    assert (log.joined_epoch, log.log_end) == (3, 1)


def test_a_register_in_place_of_another_one_is_read(store: Store) -> None:
    """Registers are written once, except by attackers and by a heal."""
    replica = replica_on(store)
    join(replica, (1, 0), (2, 1))
    assert replica.log().lineage == Lineage([(1, 0), (2, 1)])
    store.delete([replica.path(EpochName(2))])
    join(replica, (1, 0), (2, 7))
    assert replica.log().lineage == Lineage([(1, 0), (2, 7)])


def test_an_earlier_lineage_is_there_too(store: Store) -> None:
    replica = replica_on(store)
    join(replica, (1, 0))
    join(replica, (1, 0), (3, 1))
    listing = replica.list()
    assert replica.lineage(listing, 2) == replica.lineage(listing, 1) == Lineage([(1, 0)])
    assert replica.lineage(listing, 0) == Lineage()


def test_a_lineage_estimates_its_memory() -> None:
    """The cache is bounded by this estimate."""
    text = Lineage((epoch, epoch * 1000) for epoch in range(1, 20_001)).to_json()
    tracemalloc.start()
    try:
        lineage = Lineage.from_json(text, "a register")
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= lineage.memory_bytes <= 2 * taken


def test_lineages_are_remembered_by_bytes_not_by_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign registers, 16 MiB each, do not stay in memory."""
    most_bytes = 500_000
    remembered: BoundedCache[tuple[Store, StoredObject], Lineage] = BoundedCache(most_bytes)
    monkeypatch.setattr("stratalog.partitions.replica.remembered_lineages", remembered)
    first = replica_on(store)
    for partition in range(8):
        replica = replace(first, partition=partition)
        join(replica, *((epoch, epoch) for epoch in range(1, 1001)))
        assert replica.log().joined_epoch == 1000
    one_bytes = Lineage((epoch, epoch) for epoch in range(1, 1001)).memory_bytes
    assert remembered.weight == most_bytes // one_bytes * one_bytes, "three of the eight"


def test_an_epoch_file_whose_lineage_ends_otherwise_is_corruption(store: Store) -> None:
    """Section 1: the lineage up to and including this epoch."""
    replica = replica_on(store)
    put(replica, EpochName(2), Lineage([(1, 0)]).to_json())
    with pytest.raises(CorruptionError, match=r"0000000002\.epoch"):
        replica.log()


def test_an_epoch_file_that_cannot_be_read_is_corruption(store: Store) -> None:
    replica = replica_on(store)
    put(replica, EpochName(1), b"[[1,")
    with pytest.raises(CorruptionError, match=r"0000000001\.epoch"):
        replica.log()


def test_a_damaged_last_file_is_corruption_and_a_damaged_earlier_one_is_not_looked_at(store: Store) -> None:
    replica = replica_on(store)
    join(replica, (1, 0))
    store.create(replica.path(DataName(0, None, 1)), b"damaged")
    with pytest.raises(CorruptSegmentError):
        replica.log()
    append(replica, 1)
    assert replica.log().log_end == 2


class VanishingFiles(MemoryStore):
    """A root that deletes a file as soon as it is listed, a number of times."""

    vanishing: int = 0

    def list(self, prefix: str, after: str = "", known=None):  # type: ignore[no-untyped-def]
        found = super().list(prefix, after)
        data = [stored.name for stored in found if stored.name.endswith(".parquet")]
        if self.vanishing and data:
            self.vanishing -= 1
            self.delete(data[-1:])
        return found


def test_a_file_that_vanishes_after_the_listing_means_to_list_again() -> None:
    store = VanishingFiles()
    replica = replica_on(store)
    join(replica, (1, 0))
    append(replica, 0)
    append(replica, 1)
    store.vanishing = 1
    assert replica.log().log_end == 1


def test_files_that_vanish_without_end_are_reported() -> None:
    store = VanishingFiles()
    replica = replica_on(store)
    join(replica, (1, 0))
    for base in range(20):
        append(replica, base)
    store.vanishing = 100
    with pytest.raises(SourceChangedError, match="events-0 on broker 1"):
        replica.log()


# --------------------------------------------------------------------------------- producers


def test_producers_are_those_of_the_last_file(store: Store) -> None:
    """Section 2, Append step 2: cumulative, in the last file's footer."""
    replica = replica_on(store)
    join(replica, (1, 0))
    append(replica, 0)
    append(replica, 1, 4)
    assert replica.producers(replica.log()) == {"p": ProducerEntry(1, 1, 1, 5, 0)}


def test_a_log_that_starts_over_has_the_producers_of_its_local_start(store: Store) -> None:
    """Section 1: ``<offset>.local`` carries the producer state at the offset."""
    replica = replica_on(store)
    put(replica, LocalStartName(3), encode({}))
    put(replica, LocalStartName(7), encode(STATE))
    log = replica.log()
    assert (log.local_start, log.log_end) == (7, 7)
    assert replica.producers(log) == STATE


def test_an_empty_log_from_zero_has_no_producers(store: Store) -> None:
    replica = replica_on(store)
    assert replica.producers(replica.log()) == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"\xff":[1,2,3,4,5]}', b'{"p":[1]}'])
def test_a_local_start_that_cannot_be_read_is_corruption(store: Store, content: bytes) -> None:
    replica = replica_on(store)
    put(replica, LocalStartName(7), content)
    with pytest.raises(CorruptionError, match=r"00000000000000000007\.local"):
        replica.producers(replica.log())


def test_a_log_since_a_mark_is_listed_again_unless_this_process_has_looked_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica, lists = replica_on(MemoryStore()), 0
    listing = MemoryStore.list

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal lists
        lists += 1
        return listing(*given, **more)

    monkeypatch.setattr(MemoryStore, "list", counted)
    before = LookMark.now()
    log = replica.log(since=before)
    assert lists == 1
    assert replica.log(since=before) is log
    assert lists == 1
    replica.log(since=LookMark.now())
    assert lists == 2
    replica.log(since=replace(before, process=(before.process[0] + 1, before.process[1])))
    assert lists == 3
    replica.log()
    assert lists == 4
