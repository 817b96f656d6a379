"""Erasing the records that a condition selects: only these, in the files that may hold one, and certified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.jobs import erase as job
from stratalog.jobs import verify as verify_job
from stratalog.partitions.errors import InvalidCallError, PolicyViolationError
from stratalog.partitions.rewrites import wanted_where
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.erase_harness import KEPT, KEY, OTHER, SECRET, Erasable, traces
from tests.unit.snapshot_harness import keyed
from tests.unit.test_upkeep_erase_certificate import states, verified

WHERE = f"key = '{KEY}' AND value LIKE '{SECRET}%'"
LEFT = {0: (OTHER, "1"), 2: (OTHER, "2"), 3: (KEY, None), 4: (OTHER, "3")}


def typed(folder: Path, *, on_disk: bool = False, **configs: str) -> LiveCluster:
    """Topic ``u`` with four files of two records: n is 0 to 7, and names repeat every three records."""
    folder.mkdir(exist_ok=True)
    live = LiveCluster(folder, on_disk=on_disk)
    given = {"file.delete.delay.ms": "0", "segment.bytes": "1", "retention.ms": "-1"}
    given.update({name.replace("_", "."): value for name, value in configs.items()})
    live.cluster.topics.create(
        "u", partitions=1, replication_factor=2, key="INT", value="n INT, name STRING", configs=given
    )
    for first in range(0, 8, 2):
        rows = [{"n": n, "name": f"name-{n % 3}"} for n in (first, first + 1)]
        kind = pa.struct({"n": pa.int32(), "name": pa.string()})
        numbers = pa.array([first % 4, first % 4 + 1], pa.int32())
        live.cluster.produce("u", pa.table({"key": numbers, "value": pa.array(rows, kind)}))
    return live


def left(live: LiveCluster) -> list[int]:
    found: list[int] = []
    offset = 0
    while (fetched := live.cluster.fetch("u", 0, offset)).records.num_rows or offset < fetched.next_offset:
        found += fetched.records.column("offset").to_pylist()
        offset = fetched.next_offset
    return found


def test_the_records_that_a_condition_selects_are_erased_and_no_others(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    report = live.erase(where=WHERE, certificate=tmp_path / "c")
    assert rows_of(report, "records", "files", "deleted_files", "not_erased") == [(2, 2, 6, 0)]
    assert report.whole
    assert live.everywhere() == LEFT
    assert traces(live, SECRET) == []
    assert live.cluster.verify(deep=True).ok
    assert live.cluster.heal().ok


@pytest.mark.parametrize(
    ("where", "gone", "files"),
    [
        ("value.n >= 6", [6, 7], 1),
        ("value.name = 'name-1' AND value.n < 4", [1], 1),
        ("value.name = 'name-1'", [1, 4, 7], 3),
        ("key = 2 OR value.n = 0", [0, 2, 6], 3),
        ("offset BETWEEN 1 AND 2", [1, 2], 2),
        ("value.n = 100", [], 0),
        ("value IS NULL OR key IS NULL", [], 0),
    ],
)
def test_a_condition_on_typed_values_prunes_files_by_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, gone: list[int], files: int
) -> None:
    live = typed(tmp_path)
    plain = wanted_where.read_row_groups
    read: list[object] = []

    def reading(store: Any, file: Any, start: int, end: int, columns: Any, wanted: Any) -> Any:
        for first, table in plain(store, file, start, end, columns, wanted):
            read.append(file.name)
            yield first, table

    monkeypatch.setattr(wanted_where, "read_row_groups", reading)
    with live.unchanged():
        planned = live.cluster.erase("u", where=where, dry_run=True)
    if where.startswith("value.n "):
        assert len(set(read)) == files, "statistics prune the others"
    report = live.cluster.erase("u", where=where)
    assert rows_of(planned, "records", "files") == rows_of(report, "records", "files") == [(len(gone), files)]
    assert report.whole
    assert left(live) == [n for n in range(8) if n not in gone]
    again = live.cluster.erase("u", where=where)
    assert rows_of(again, "records", "files") == [(0, 0)], "gaps and markers are no records"


def test_keys_and_a_time_narrow_a_condition(tmp_path: Path) -> None:
    live = typed(tmp_path / "a")
    live.cluster.erase("u", [2, 3], where="value.name = 'name-0'")
    assert left(live) == [0, 1, 2, 4, 5, 7], "3 has key 3, and 6 key 2"
    live = typed(tmp_path / "b")
    live.cluster.erase("u", where="value.n < 4", before="1970-01-01T00:00:01Z")
    assert left(live) == [*range(8)]


def test_a_file_of_an_earlier_schema_has_nulls_in_what_it_lacks(tmp_path: Path) -> None:
    live = typed(tmp_path)
    live.cluster.topics.alter("u", value="n BIGINT, name STRING, late DOUBLE")
    with live.unchanged():
        planned = live.cluster.erase("u", where="value.late > 1.0", dry_run=True)
    assert rows_of(planned, "records") == [(0,)]
    live.cluster.erase("u", where="value.late IS NULL AND value.n > 5")
    assert left(live) == [*range(6)]


def test_open_transactions_are_counted_and_markers_stay(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    with live.cluster.transactions.begin("tx") as transaction:
        transaction.append_batches("t", {0: [keyed([("late", f"{SECRET}-late")], 1)]})
        first = live.erase(where=f"value LIKE '{SECRET}%'", certificate=tmp_path / "c")
    assert "above the last stable offset" in str(first.failures)
    assert states(verified(live, tmp_path / "c")) == {"unknown"}
    report = live.erase(where=f"value LIKE '{SECRET}%' OR offset >= 6")
    assert report.whole
    assert rows_of(report, "records") == [(3,)], "with the two that the first run has found"
    assert live.cluster.verify(deep=True).ok
    assert traces(live, SECRET) == []


@pytest.mark.parametrize(
    ("configs", "where", "error", "why"),
    [
        ({}, "value.nme = 'x'", InvalidCallError, "topic 'u': the condition, character 7: there is no such"),
        ({}, "value.n = 'x'", InvalidCallError, "character 11: this is not a literal"),
        ({}, "", InvalidCallError, "character 1"),
        ({"cleanup_policy": "compact"}, "value.n = 1", PolicyViolationError, "it is compacted.*without value.n"),
        ({"cleanup_policy": "compact"}, "key = 1 OR offset = 3", PolicyViolationError, "without offset"),
    ],
)
def test_bad_conditions_are_refused_before_anything_changes(
    tmp_path: Path, configs: dict[str, str], where: str, error: type[Exception], why: str
) -> None:
    live = typed(tmp_path, **configs)
    with live.unchanged(), pytest.raises(error, match=why):
        live.cluster.erase("u", where=where, dry_run=True)
    with pytest.raises(error, match=why):
        live.cluster.erase("u", where=where, certificate=tmp_path / "c")
    assert left(live) == [*range(8)]
    assert not (tmp_path / "c").exists()


def test_whole_keys_of_a_compacted_topic_are_erased_by_a_condition(tmp_path: Path) -> None:
    live = typed(tmp_path, cleanup_policy="compact")
    assert live.cluster.erase("u", where="key > 1").whole
    assert left(live) == [0, 1, 4, 5]


def test_the_certificate_and_the_history_do_not_have_the_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    live = Erasable(tmp_path)
    live.erase(KEY, where=WHERE, certificate=tmp_path / "c")
    text = (tmp_path / "c").read_text()
    assert SECRET not in text
    assert KEY not in text
    (topic,) = read_certificate(tmp_path / "c").topics
    assert topic.where is not None
    assert (topic.where.columns, len(topic.key_digests)) == (("key", "value"), 1)
    assert traces(live, SECRET) == []
    events = [row for row in live.cluster.history().rows if row["operation"] == "erase"]
    assert events
    assert SECRET not in str(events)


def test_a_condition_is_verified_by_its_text_or_else_by_its_offsets(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    live.erase(where=WHERE, certificate=tmp_path / "c")
    report = verified(live, tmp_path / "c")
    assert report.ok
    assert states(report) == {"erased"}
    assert "only its offsets are checked" in str(report.notes)
    assert live.cluster.verify_erased(tmp_path / "c", where=WHERE).ok
    with pytest.raises(InvalidCallError, match="was not made for this condition on topic 't'"):
        live.cluster.verify_erased(tmp_path / "c", where=WHERE + " ")
    live.erase(KEY, certificate=tmp_path / "keys")
    with pytest.raises(InvalidCallError, match="was not made for this condition"):
        live.cluster.verify_erased(tmp_path / "keys", where=WHERE)
    assert live.everywhere() == KEPT


@pytest.mark.parametrize(("keys", "state"), [((), "not erased"), ((KEY,), "not erased"), ((OTHER,), "erased")])
def test_a_copy_with_such_a_record_is_not_erased(tmp_path: Path, keys: tuple[str, ...], state: str) -> None:
    """The erasure did not find the record, so the certificate does not name its offset."""
    live = Erasable(tmp_path, on_disk=True, fill=False)
    live.put((KEY, "found"), (OTHER, "stays"))
    live.put((KEY, SECRET))
    data = {name: data for name, data in live.on_brokers().items() if SECRET.encode() in data}
    assert live.erase(KEY, now=True).whole
    where = f"value = '{SECRET}'"
    assert live.erase(*keys, where=where, certificate=tmp_path / "c").whole
    name = next(name for name in data if "/b2/" in name)
    Path(name.removeprefix("file://")).write_bytes(data[name])
    report = live.cluster.verify_erased(tmp_path / "c", where=where)
    assert [row["state"] for row in report.rows] == ["erased", state, "erased"]


def test_a_certificate_without_offsets_needs_the_text(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    where = "value = 'nobody'"
    assert live.erase(where=where, certificate=tmp_path / "c").whole
    assert states(verified(live, tmp_path / "c")) == {"unknown"}
    assert states(live.cluster.verify_erased(tmp_path / "c", where=where)) == {"erased"}


def test_the_command_takes_a_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = typed(tmp_path, on_disk=True)
    at = ["--cluster", str(live.file)]
    (tmp_path / "keys").write_text("2")
    keys = ["--keys-file", str(tmp_path / "keys"), "--key-format", "json"]
    given = ["--where", "value.n > 5", "--certificate", str(tmp_path / "c"), "--now", "--yes", "--json"]
    assert job.main(["u", *keys, *given, *at]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["records"] == 1
    assert left(live) == [0, 1, 2, 3, 4, 5, 7]
    assert verify_job.main(["--erased", str(tmp_path / "c"), "--where", "value.n > 5", *at]) == 0
    assert job.main(["u", "--where", "value.n > ", "--yes", *at]) != 0
    assert "character 10: a literal is missing" in capsys.readouterr().err
