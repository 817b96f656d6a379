"""Heal, in the remote tier: damaged or missing objects are rebuilt from a replica that still has the records."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stratalog.partitions.paths import LocalStartName
from stratalog.partitions.producers import encode
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster, codes, rows_of
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.harness import batch
from tests.unit.remote_folder import listed, lying
from tests.unit.tampering import Spot, remote_spot, spot
from tests.unit.test_upkeep_heal import FAULTS, Died

pytestmark = pytest.mark.slow

KEPT = "604800000"
"""Milliseconds, a week: files that have left a log are not deleted within a test."""


def tiered(folder: Path, values: str = "abcde", *, copies: int = 3, **configs: str) -> LiveCluster:
    """``t`` holds one segment per value; all segments are tiered, and still on all brokers."""
    live = LiveCluster(folder)
    live.tiered(copies=copies, **{"local_retention_bytes": "-2", "file_delete_delay_ms": KEPT, **configs})
    live.fill(values)
    live.cluster.tier().raise_for_failures()
    return live


def table(live: LiveCluster, topic: str = "t") -> DeltaTable:
    """The table as any program opens it."""
    return DeltaTable(str(live.remote / f"{topic}-{live.cluster.image.topic(topic).topic_id}"))


def in_table(live: LiveCluster) -> str:
    """The values of a reader of the Delta table, with checked pages; each offset once."""
    files = [pq.ParquetFile(path, page_checksum_verification=True).read() for path in table(live).file_uris()]
    rows = pa.concat_tables(files, promote_options="default").sort_by("offset")
    assert rows.column("offset").to_pylist() == list(range(rows.num_rows))
    return b"".join(rows.column("value").to_pylist()).decode()


def assert_healed(live: LiveCluster, values: str = "abcde") -> None:
    live.driver().verify(deep=True).raise_for_failures()
    assert in_table(live) == values


def expired_locally(live: LiveCluster) -> LiveCluster:
    """Retention has passed all files on brokers except the last one; the files still exist, because their delay is
    not over.
    """
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "0"})
    live.cluster.retain().raise_for_failures()
    assert min(live.log(broker).local_start for broker in (1, 2, 3)) >= 4
    return live


@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("where", ["in the logs of brokers", "in files that they let go of"])
def test_a_bad_object_is_rebuilt_from_a_replica(tmp_path: Path, fault: str, where: str) -> None:
    live = tiered(tmp_path)
    if where == "in files that they let go of":
        expired_locally(live)
    FAULTS[fault](remote_spot(live, 1))
    healed = live.driver().heal()
    assert rows_of(healed, "broker", "start", "end", "source", "outcome") == [(None, 1, 2, "broker-1", "repaired")]
    assert_healed(live)
    assert live.driver().heal().rows == []


def test_the_damaged_object_stays_until_its_delay_is_over(tmp_path: Path) -> None:
    """No object in the remote tier is changed; the table lists the new object instead of the old one."""
    live = tiered(tmp_path)
    bad = remote_spot(live, 1)
    bad.flip(30)
    data, before = bad.read(), lying(live)
    live.driver().heal().raise_for_failures()
    (new,) = lying(live) - before
    assert new == f"0/1/{bad.name}"
    assert listed(live) == (before | {new}) - {f"0/{bad.name}"}
    assert bad.read() == data
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "0"})
    live.cluster.retain().raise_for_failures()
    assert lying(live) == listed(live)
    assert_healed(live)


def test_one_rebuilt_object_may_be_damaged_in_its_turn(tmp_path: Path) -> None:
    live = tiered(tmp_path)
    for _ in range(3):
        path = next(path for path in table(live).file_uris() if "00001.0" in path)
        Spot(LocalStore(str(live.remote)), str(Path(path).relative_to(live.remote))).flip(30)
        live.driver().heal().raise_for_failures()
        assert_healed(live)
    assert {path for path in listed(live) if path.count("/") > 1} == {f"0/3/{remote_spot(live, 1).name}"}


def test_a_missing_object_is_restored_under_its_name_and_every_version_can_be_read(tmp_path: Path) -> None:
    live = tiered(tmp_path)
    version, data = table(live).version(), remote_spot(live, 1).read()
    gone = remote_spot(live, 1)
    gone.remove()
    live.driver().heal().raise_for_failures()
    assert table(live).version() == version
    assert gone.read() == data


def test_a_reader_that_follows_the_table_takes_nothing_for_new_data(tmp_path: Path) -> None:
    live = tiered(tmp_path)
    remote_spot(live, 1).flip(30)
    live.driver().heal().raise_for_failures()
    log = table(live)
    with open(f"{log.table_uri.removeprefix('file://')}/_delta_log/{log.version():020d}.json") as entry:
        actions = [line for line in entry if '"add"' in line or '"remove"' in line]
    assert len(actions) == 2
    assert all('"dataChange":false' in line for line in actions)


def test_records_that_the_replicas_have_as_appends_are_merged_again(tmp_path: Path) -> None:
    live = tiered(tmp_path, "abcdefgh", segment_bytes="12000", segment_merge_min_files="99")
    assert "-" in remote_spot(live, 0).name
    remote_spot(live, 0).flip(30)
    live.driver().heal().raise_for_failures()
    assert_healed(live, in_table(live))
    assert live.read() == {0: list("abcdefgh")}


def test_records_in_a_longer_segment_of_a_replica_are_rebuilt_with_the_next_objects(tmp_path: Path) -> None:
    """A file has the producer state only at its end, so it is not cut before its end."""
    live = tiered(tmp_path, copies=1)
    replica = live.replica(live.leader())
    links = replica.log().chain
    merge_run(replica, Run(links[0:3]), compression="zstd")
    replica.store.delete([link.file.object.name for link in links[0:3]])
    remote_spot(live, 1).flip(30)
    assert rows_of(live.driver().heal(), "start", "end", "outcome") == [(1, 3, "repaired")]
    assert_healed(live)


def test_records_that_a_replica_has_in_a_segment_that_reaches_over_the_end_of_the_remote_log(
    tmp_path: Path,
) -> None:
    """The long segment comes from a late merge by a zombie. The rest of the segment is tiered first, as new data;
    after that, nothing is new.
    """
    live = tiered(tmp_path, "abc", copies=1)
    live.fill("de")
    replica = live.replica(live.leader())
    links = replica.log().chain
    merge_run(replica, Run(links[1:4]), compression="zstd")
    replica.store.delete([link.file.object.name for link in links[1:4]])
    remote_spot(live, 1).flip(30)
    assert rows_of(live.driver().heal(), "start", "end", "outcome") == [(1, 3, "repaired")]
    assert_healed(live, "abcd")
    assert live.read() == {0: list("abcde")}
    folder = Path(table(live).table_uri.removeprefix("file://")) / "_delta_log"
    new = [entry.read_text().count('"dataChange":true') for entry in sorted(folder.glob("*.json"))[-2:]]
    assert new == [1, 0]
    live.cluster.tier().raise_for_failures()
    assert_healed(live)


def test_several_replicas_together_cover_an_object(tmp_path: Path) -> None:
    live = expired_locally(tiered(tmp_path, "abcdefgh", segment_bytes="12000", segment_merge_min_files="99"))
    end = int(remote_spot(live, 0).name.split(".")[0].split("-")[1])
    left = {broker: sorted(f.object.name for f in live.log(broker).dead) for broker in (1, 2, 3)}
    for broker, kept in {1: {0}, 2: {1, 2}, 3: set(range(3, end))}.items():
        live.store(broker).delete(name for at, name in enumerate(left[broker][:end]) if at not in kept)
    remote_spot(live, 0).remove()
    assert rows_of(live.driver().heal(), "source", "outcome") == [("broker-1 broker-2 broker-3", "repaired")]
    assert_healed(live, in_table(live))
    assert in_table(live).startswith("abcdefgh"[:end])


def test_a_damaged_replica_is_no_source(tmp_path: Path) -> None:
    """The damaged replica is healed, too, from another one."""
    live = tiered(tmp_path)
    remote_spot(live, 1).flip(30)
    spot(live, 1, 1).flip(40)
    spot(live, 2, 1).flip(50)
    healed = rows_of(live.driver().heal(), "broker", "source", "outcome")
    assert healed == [(None, "broker-3", "repaired"), (1, "broker-3", "repaired"), (2, "broker-3", "repaired")]
    assert_healed(live)


def test_if_no_replica_has_the_records_the_object_is_left_to_a_person(tmp_path: Path) -> None:
    live = tiered(tmp_path, file_delete_delay_ms="0")
    expired_locally(live)
    live.cluster.retain().raise_for_failures()
    remote_spot(live, 1).flip(30)
    remote_spot(live, 3).remove()
    with live.unchanged():
        report = live.driver().heal(check=False)
    assert codes(report) == {"CORRUPT_SEGMENT": 1, "REMOTE_OBJECT_MISSING": 1}
    assert [note.partition(" any more")[0] for note in report.notes] == [
        "t-0: no replica has offsets [1, 2)",
        "t-0: no replica has offsets [3, 4)",
    ]


def test_segments_below_the_log_start_are_not_rebuilt_but_leave_the_table(tmp_path: Path) -> None:
    live = tiered(tmp_path)
    remote_spot(live, 1).flip(30)
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    live.driver().heal().raise_for_failures()
    live.driver().verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("de")}
    assert sorted(listed(live)) == [f"0/{remote_spot(live, at).name}" for at in (3, 4)]


def test_a_segment_in_which_the_log_starts_is_rebuilt_from_there_on(tmp_path: Path) -> None:
    live = tiered(tmp_path, "abcdefgh", segment_bytes="12000", segment_merge_min_files="99")
    live.cluster.topics.delete_records("t", {0: 1}).raise_for_failures()
    for broker in (1, 2, 3):
        spot(live, broker, 0).remove()  # the file is missing, as if retention had deleted it
        live.store(broker).create(live.replica(broker).path(LocalStartName(1)), encode({}))
    remote_spot(live, 0).flip(30)
    live.driver().heal().raise_for_failures()
    live.driver().verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("bcdefgh")}


def test_decided_transactions_stay_decided(tmp_path: Path) -> None:
    """The replicas have the appends and the markers; the remote tier gets their outcome again."""
    live = LiveCluster(tmp_path)
    live.tiered(local_retention_bytes="-2", file_delete_delay_ms=KEPT)
    for value in "ab":
        with suppress(ZeroDivisionError), live.cluster.transactions.begin("x") as transaction:
            transaction.append_batches("t", {0: [batch([value])]})
            if value == "b":
                raise ZeroDivisionError
    live.fill("cd")
    live.cluster.tier().raise_for_failures()
    before = {path: pq.read_table(path).column("control").to_pylist() for path in table(live).file_uris()}
    assert [flags for _, flags in sorted(before.items())][:3] == [[None], [1], [2]]
    for path in before:
        Spot(LocalStore(str(live.remote)), str(Path(path).relative_to(live.remote))).flip(30)
    live.driver().heal().raise_for_failures()
    live.driver().verify(deep=True).raise_for_failures()
    after = {path: pq.read_table(path).column("control").to_pylist() for path in table(live).file_uris()}
    assert sorted(after.values(), key=str) == sorted(before.values(), key=str)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    live = tiered(tmp_path)
    remote_spot(live, 1).flip(30)
    with live.unchanged():
        report = live.driver().heal(dry_run=True)
    assert rows_of(report, "damage", "source", "outcome") == [
        (f"0/{remote_spot(live, 1).name}", "broker-1", "planned")
    ]


def test_a_copy_that_is_damaged_on_its_way_is_not_committed(tmp_path: Path) -> None:
    """The replica's storage fails immediately after it was verified: the table does not change, and the error says
    so.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered(copies=1, local_retention_bytes="-2", file_delete_delay_ms=KEPT)
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    remote_spot(live, 1).flip(30)
    before = listed(live)

    faults.once(lambda: spot(live, live.leader(), 1).flip(40), "stage", at="/remote")
    report = live.driver().heal(check=False)
    assert report.failures
    assert listed(live) == before
    assert rows_of_any(report) == ["left alone"]


def rows_of_any(report: object) -> list[object]:
    """The outcomes of a report with failures."""
    return [row["outcome"] for row in report.rows]  # type: ignore[attr-defined]


def _run(folder: Path, at: int, what: str) -> int:
    """Run a heal during which ``what`` happens at the mutating call number ``at``; returns the number of calls."""
    calls = 0
    faults = Faults()
    folder.mkdir()
    live = LiveCluster(folder, through=faults.wrap)
    live.tiered(copies=2, local_retention_bytes="-2", file_delete_delay_ms=KEPT)
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    remote_spot(live, 1).flip(30)
    remote_spot(live, 2).remove()
    first, second = live.driver(), live.driver()

    def meanwhile(uri: str, kind: str, name: str) -> None:
        nonlocal calls
        if kind in CHANGES:
            calls += 1
            if calls == at:
                faults.none()
                if what == "it dies":
                    raise Died
                second.heal()

    faults.before = meanwhile
    with suppress(Died):
        first.heal()
    faults.none()
    live.driver().heal()
    assert_healed(live, "abcd")
    return calls


STEPS: dict[str, Callable[[int], bool]] = {"some": lambda at: at % 3 == 1, "every one": lambda at: True}


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", ["it dies", "another one runs"])
@pytest.mark.parametrize("steps", ["some", pytest.param("every one", marks=pytest.mark.slow)])
def test_a_heal_may_end_or_meet_another_one_at_any_call(tmp_path: Path, what: str, steps: str) -> None:
    """Protocol, I7."""
    calls = 4
    for at in itertools.count(1):
        if STEPS[steps](at):
            calls = _run(tmp_path / str(at), at, what)
            if calls < at:
                break
    assert at > 3
