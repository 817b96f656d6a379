"""``check_store`` finds incorrect storages, and accepts correct ones."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.jobs.check_store import main
from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import StorageError, UnsupportedStoreError
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import StagedCopy, StagedWriter, Store, StoredObject, StoreOptions, open_store
from stratalog.partitions.store.checking import PART_BYTES, QUICK, StoreCheck
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.racing import race_in_threads
from tests.cloud_servers import CloudEndpoint
from tests.s3_server import S3Endpoint
from tests.unit.store_kinds import CLOUDS, S3

CLOCK = ManualClock(1_700_000_000_000)


def broken(store: Store) -> dict[str, str]:
    """The rules that a store was found to violate, with the reasons."""
    verdicts = StoreCheck(store, store, race_in_threads, CLOCK, random_id).verdicts()
    assert len({verdict.rule for verdict in verdicts}) == 13
    return {verdict.rule: verdict.result for verdict in verdicts if not verdict.kept}


def test_a_store_that_keeps_the_rules_is_believed_and_left_clean(tmp_path: Path) -> None:
    memory = MemoryStore(clock=CLOCK)
    assert broken(memory) == {}
    assert list(memory.list("")) == []
    LocalStore(str(tmp_path)).check()


class TwoWinners(MemoryStore):
    """The second of several concurrent creators of a name also gets the answer that it succeeded. Sequential
    creations are right.
    """

    def __init__(self) -> None:
        super().__init__(clock=CLOCK)
        self.winners: set[str] = set()

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if "race-put" in name and not created and name not in self.winners:
            self.winners.add(name)
            return True
        return created


class TwoOfParts(MemoryStore):
    """A store like ``TwoWinners``, for objects that are uploaded in parts."""

    def stage_writer(self, name: str) -> StagedWriter:
        staged = super().stage_writer(name)
        if "race-parts" not in name:
            return staged
        commit = staged.commit
        staged.commit = lambda: commit() or True  # type: ignore[method-assign]
        return staged


class NobodyWins(MemoryStore):
    """A free name counts as taken for all."""

    def create(self, name: str, data: bytes) -> bool:
        return super().create(name, data) and "race-put" not in name


class Replacing(MemoryStore):
    """A refused creation changes the object."""

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if not created and name.endswith("taken"):
            self.delete([name])
            super().create(name, data)
        return created


class LateListing(MemoryStore):
    """The newest name appears only in the listing after the next one."""

    def list(self, prefix: str, after: str = "") -> Sequence[StoredObject]:
        return super().list(prefix, after)[:-1] if prefix.endswith("/listed") else super().list(prefix, after)


class IgnoringAfter(MemoryStore):
    """A listing ignores its start."""

    def list(self, prefix: str, after: str = "") -> Sequence[StoredObject]:
        return super().list(prefix)


class StaysTaken(MemoryStore):
    """A deleted name cannot be created again."""

    def __init__(self) -> None:
        super().__init__(clock=CLOCK)
        self.deleted: set[str] = set()

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        self.deleted.update(name for name in doomed if name.endswith("again"))
        super().delete(doomed)

    def create(self, name: str, data: bytes) -> bool:
        return name not in self.deleted and super().create(name, data)


class ComesBack(MemoryStore):
    """A deleted name reappears after a while."""

    def __init__(self) -> None:
        super().__init__(clock=CLOCK)
        self.calls = itertools.count()

    def list(self, prefix: str, after: str = "") -> Sequence[StoredObject]:
        listed = super().list(prefix, after)
        if not prefix.endswith("again") and next(self.calls) == 20:
            super().create(f"{prefix}/again", b"")
            return super().list(prefix, after)
        return listed


class SameVersions(MemoryStore):
    """Two successive objects of one name have equal versions."""

    def stat(self, name: str) -> StoredObject:
        found = super().stat(name)
        return StoredObject(found.name, found.size_bytes, found.modified_ms, "1")


class KeepsInBulk(MemoryStore):
    """A bulk delete reports success, and does nothing."""

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if len(doomed) != 200:
            super().delete(doomed)


class OneTooMany(MemoryStore):
    """Ranges are closed, like those of HTTP."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return super().read(name, start, None if end is None else end + 1)


class UnconditionalReads(MemoryStore):
    """A store whose reads return the current object of the name."""

    def open(self, source_object: StoredObject) -> BinaryIO:
        return super().open(self.stat(source_object.name))


class DamagedCopies(MemoryStore):
    """A store whose copies have a flipped bit."""

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        data = bytearray(source.read(source_object.name))
        data[100] ^= 1
        staged = super().stage_writer(name)
        staged.file.write(data)
        return staged  # type: ignore[return-value]


class AnotherClock(MemoryStore):
    """A clock that is an hour ahead."""

    def stat(self, name: str) -> StoredObject:
        found = super().stat(name)
        return StoredObject(found.name, found.size_bytes, found.modified_ms + 3_600_000, found.version)


class NoDeletes(MemoryStore):
    """Deletes fail while the check runs."""

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if len(doomed) == 1 and doomed[0].endswith("again"):
            raise StorageError("cannot delete: no")
        super().delete(doomed)


@pytest.mark.parametrize(
    ("lying", "rule", "says"),
    [
        (TwoWinners, "a name is created once", "2 of 16 concurrent writers created the same name"),
        (TwoOfParts, "a large object is created once", "16 of 16 concurrent writers created the same name"),
        (
            NobodyWins,
            "a name is created once",
            "the storage reported to all 16 concurrent writers that a free name was taken",
        ),
        (Replacing, "a taken name stays as it is", "a refused create changed"),
        (LateListing, "a listing shows all that was written", "another driver.s listing showed 0"),
        (IgnoringAfter, "a listing shows all that was written", "after a name"),
        (StaysTaken, "a deleted name is gone, and free again", "could not be created again"),
        (ComesBack, "a deleted name is gone, and free again", "reappeared"),
        (SameVersions, "a deleted name is gone, and free again", "cannot be distinguished"),
        (KeepsInBulk, "a bulk delete deletes", "200 still exist"),
        (OneTooMany, "a range has exactly its bytes", r"of 2048 bytes returned 2 other bytes"),
        (UnconditionalReads, "a listed object is the one that is read", "returned another object"),
        (DamagedCopies, "a copy has the same bytes", "the checksum"),
        (AnotherClock, "its clock agrees with ours", "differ by 3600 s"),
        (NoDeletes, "a deleted name is gone, and free again", "could not be tested: cannot delete: no"),
    ],
)
def test_each_false_answer_is_found_and_named(lying: Callable[[], MemoryStore], rule: str, says: str) -> None:
    store = lying() if lying in (TwoWinners, StaysTaken, ComesBack) else lying(clock=CLOCK)  # type: ignore[call-arg]
    found = broken(store)
    assert list(found) == [rule]
    assert re.search(says, found[rule])


@pytest.mark.parametrize(
    ("lying", "says"),
    [
        (TwoWinners, "a name is created once: 2 of 6 concurrent writers created the same name"),
        (TwoOfParts, "a large object is created once: 6 of 6 concurrent writers created the same name"),
        (LateListing, "a listing shows all that was written: "),
        (StaysTaken, "a deleted name is gone, and free again: a deleted name could not be created again"),
    ],
)
def test_format_refuses_object_storage_that_gives_false_answers_and_leaves_nothing_there(
    lying: Callable[[], MemoryStore], says: str, tmp_path: Path
) -> None:
    store = lying() if lying in (TwoWinners, StaysTaken) else lying(clock=CLOCK)  # type: ignore[call-arg]
    honest = MemoryStore("s3://good/b1", CLOCK)
    store.uri = "s3://odd/b2"
    roots = {each.uri: each for each in (honest, store)}
    file = tmp_path / "cluster.toml"
    brokers = (f'[[brokers]]\nid = {n}\nlog_dir = "{uri}"\n' for n, uri in enumerate(roots, start=1))
    file.write_text('[cluster]\nid = "c"\nvoters = [1]\n' + "".join(brokers))
    with pytest.raises(UnsupportedStoreError, match=f"s3://odd/b2 breaks the rule that {says}"):
        with_parts(Cluster, clock=CLOCK, opener=lambda uri, _options, _clock: roots[uri]).format(file)
    assert [list(each.walk("")) for each in roots.values()] == [[], []]


def test_the_quick_check_of_a_root_takes_few_requests() -> None:
    """There are so few requests that a format of a root takes seconds, at 100 ms per request and with some
    concurrency.
    """
    store = MemoryStore(clock=CLOCK)
    StoreCheck(store, store, race_in_threads, CLOCK, random_id, QUICK).must_hold()
    assert list(store.walk("")) == []
    assert store.counts.requests < 100


@pytest.mark.slow
def test_the_job_races_with_processes_and_exits_with_1_when_a_rule_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["verdict"] for row in report["rows"]] == ["kept"] * 13
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    assert main([str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().out


@S3
@pytest.mark.nightly
@pytest.mark.long("races for names, again and again, on a server")
@pytest.mark.parametrize("kind", ["s3", *CLOUDS])
def test_real_servers_keep_the_rules(kind: str, request: pytest.FixtureRequest) -> None:
    """The exception is the completion of uploads on SeaweedFS, which is not tested by default."""
    endpoint: CloudEndpoint | S3Endpoint = request.getfixturevalue(f"{kind}_endpoint")
    if isinstance(endpoint, S3Endpoint):
        options = StoreOptions(endpoint.url, endpoint.region, part_bytes=PART_BYTES)
        url = f"s3://{endpoint.bucket}/checked"
    else:
        options, url = StoreOptions(part_bytes=PART_BYTES), f"{endpoint.root}/checked"
    store, other = (open_store(url, options) for _ in range(2))
    verdicts = StoreCheck(store, other, race_in_threads, SystemClock(), random_id).verdicts()
    assert [(verdict.rule, verdict.result) for verdict in verdicts if not verdict.kept] == []


class LostAnswers(MemoryStore):
    """The answer to each first create is lost, and the retry finds the name taken."""

    def create(self, name: str, data: bytes) -> bool:
        super().create(name, data)
        return False


def test_a_lost_answer_does_not_make_a_store_unfit() -> None:
    LostAnswers(clock=CLOCK).check()


class RefusesAnUpload(MemoryStore):
    """Refuses to begin one upload."""

    refused = False

    def stage_writer(self, name: str) -> StagedWriter:
        if not self.refused:
            self.refused = True
            raise StorageError("503 SlowDown")
        return super().stage_writer(name)


def test_a_writer_that_fails_before_the_race_is_reported_and_holds_up_no_other() -> None:
    found = broken(RefusesAnUpload(clock=CLOCK))
    assert {rule: "1 of 16 concurrent writers failed" in result for rule, result in found.items()} == {
        "a large object is created once": True
    }


class ReadsLate(MemoryStore):
    """Shows nothing of what was just created."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        raise FileNotFoundError(name)


def test_a_store_whose_created_names_cannot_be_read_breaks_a_rule() -> None:
    store = ReadsLate("s3://odd/b2", CLOCK)
    with pytest.raises(
        UnsupportedStoreError, match=r"a name is created once: a created name cannot be read: .*race"
    ):
        StoreCheck(store, store, race_in_threads, CLOCK, random_id, QUICK).must_hold()
