"""Hostile entries in the log of a table: refused by name, before delta-rs reads them, which would end the
process."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering import delta_entries
from stratalog.tiering.delta_entries import check_checkpoint, check_nesting
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import OURS, segment, table_in, uploaded

pytestmark = pytest.mark.slow

DEEP = 100_000


def made(folder: Path, commits: int = 2) -> DeltaTopicTable:
    table = table_in(LocalStore(str(folder)))
    table.ensure(SCHEMA)
    for number in range(commits):
        table.commit([uploaded(segment(number * 10, number * 10 + 10))], histories=OURS)
    return table


def log_of(folder: Path, table: DeltaTopicTable) -> Path:
    return folder / table.folder / "_delta_log"


def open_brackets(log: Path) -> Path:
    """SIGSEGV in delta-rs 1.6."""
    (file := log / f"{3:020d}.json").write_text("[" * DEEP)
    return file


def statistics(log: Path) -> Path:
    """The same, in a string."""
    deep = '{"numRecords":1,"minValues":{"a":' + "[" * DEEP + "]" * DEEP + "}}"
    add = {"path": "x", "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": True, "stats": deep}
    (file := log / f"{3:020d}.json").write_text(json.dumps({"add": add}) + "\n")
    return file


def statistics_in_escapes(log: Path) -> Path:
    """The same, without a bracket in it."""
    file = statistics(log)
    file.write_text(file.read_text().replace("[", "\\u005b"))
    return file


def statistics_in_a_checkpoint(log: Path) -> Path:
    DeltaTable(str(log.parent)).create_checkpoint()
    (file,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(file)
    changed = rows.to_pylist()
    for row in changed:
        if row["add"] is not None:
            row["add"]["stats"] = f'{{"minValues":{{"offset":{"[" * DEEP}{"]" * DEEP}}}}}'
    pq.write_table(pa.Table.from_pylist(changed, rows.schema), file)
    return file


def behind_a_harmless_one(log: Path) -> Path:
    """A folder in the log is not part of it, whatever its name is."""
    (log / "folder").mkdir()
    (log / "folder" / f"{3:020d}.json").write_text("{}")
    (log / "folder" / f"{99:020d}.checkpoint.parquet").write_text("")
    (file := log / f"{3:020d}.json").write_text("[" * DEEP + "]" * DEEP)
    return file


def in_a_string_of_a_string(log: Path) -> Path:
    (file := log / f"{3:020d}.json").write_text(json.dumps({"metaData": {"schemaString": json.dumps("{" * DEEP)}}))
    return file


def hidden_behind_closing_ones(log: Path) -> Path:
    """Brackets in strings close nothing."""
    (file := log / f"{3:020d}.json").write_text('["]",' * DEEP)
    return file


def last_checkpoint(log: Path) -> Path:
    (file := log / "_last_checkpoint").write_text("[" * DEEP + "]" * DEEP)
    return file


def checksums(log: Path) -> Path:
    (file := log / f"{2:020d}.crc").write_text('{"a":' * DEEP + "1" + "}" * DEEP)
    return file


def sparse(log: Path) -> Path:
    """Three gigabytes."""
    (file := log / f"{3:020d}.json").touch()
    os.truncate(file, 3 * 1024**3)
    return file


def large_checkpoint(log: Path) -> Path:
    (file := log / f"{2:020d}.checkpoint.parquet").touch()
    os.truncate(file, 3 * 1024**3)
    return file


def no_checkpoint(log: Path) -> Path:
    (file := log / f"{2:020d}.checkpoint.parquet").write_bytes(b"PAR1" + b"\xff" * 99 + b"\x20\0\0\0PAR1")
    return file


def a_sidecar(log: Path) -> Path:
    (log / "_sidecars").mkdir()
    (file := log / "_sidecars" / "x.parquet").write_bytes(b"PAR1")
    return file


def a_checkpoint_of_the_second_kind(log: Path) -> Path:
    sidecar = {"path": "/etc/anything.parquet", "sizeInBytes": 1, "modificationTime": 1, "tags": {}}
    name = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (file := log / name).write_text(json.dumps({"sidecar": sidecar}) + "\n")
    return file


def one_in_parquet(log: Path) -> Path:
    name = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"
    (file := log / name).write_bytes(b"PAR1")
    return file


def one_by_a_classic_name(log: Path) -> Path:
    """Delta's protocol allows that, too."""
    DeltaTable(str(log.parent)).create_checkpoint()
    (file,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(file)
    of = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64())])
    sidecars = [{"path": "../../x.parquet", "sizeInBytes": 1}] + [None] * (rows.num_rows - 1)
    at = rows.schema.get_field_index("sidecar")
    pq.write_table(rows.set_column(at, "sidecar", pa.array(sidecars, of)), file)
    return file


def sidecars_without_a_size(log: Path) -> Path:
    DeltaTable(str(log.parent)).create_checkpoint()
    (file,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(file)
    none = pa.nulls(rows.num_rows, pa.struct([("path", pa.string())]))
    at = rows.schema.get_field_index("sidecar")
    pq.write_table(rows.set_column(at, "sidecar", none), file)
    return file


def a_hint_at_the_second_kind(log: Path) -> Path:
    hint = {"version": 2, "size": 1, "v2Checkpoint": {"path": "x", "sizeInBytes": 1, "modificationTime": 1}}
    (file := log / "_last_checkpoint").write_text(json.dumps(hint))
    return file


@pytest.mark.parametrize(
    "leave",
    [
        a_sidecar,
        a_checkpoint_of_the_second_kind,
        one_in_parquet,
        one_by_a_classic_name,
        sidecars_without_a_size,
        a_hint_at_the_second_kind,
        open_brackets,
        statistics,
        statistics_in_escapes,
        statistics_in_a_checkpoint,
        behind_a_harmless_one,
        in_a_string_of_a_string,
        hidden_behind_closing_ones,
        last_checkpoint,
        checksums,
        sparse,
        large_checkpoint,
        no_checkpoint,
    ],
)
def test_a_hostile_file_in_the_log_of_a_table_is_named_and_not_opened(
    tmp_path: Path, leave: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path)
    file = leave(log_of(tmp_path, table))
    monkeypatch.setattr(
        "stratalog.tiering.delta_reader.DeltaTable", lambda *_, **__: pytest.fail("delta-rs would read it")
    )
    with pytest.raises(CorruptionError, match=file.name) as raised:
        table.load()
    assert "restore it from a copy" in str(raised.value)
    file.unlink()


def test_entries_before_the_latest_checkpoint_are_read_by_nobody_and_judged_by_nobody(tmp_path: Path) -> None:
    table = made(tmp_path, commits=25)
    log = log_of(tmp_path, table)
    assert list(log.glob("*.checkpoint.parquet"))
    (log / f"{0:020d}.json").write_text("[" * DEEP)
    assert table.load().end(0) == 250


def test_a_log_of_very_many_entries_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read individually, by delta-rs too: 100,000 take minutes, on S3 an hour."""
    table = made(tmp_path)
    most = 30
    monkeypatch.setattr(delta_entries, "MOST_FILES", most)
    log = log_of(tmp_path, table)
    for version in range(3, most):
        (log / f"{version:020d}.json").write_text('{"commitInfo":{"operation":"x"}}\n')
    assert table.load().end(0) == 20
    (log / f"{most:020d}.json").write_text('{"commitInfo":{"operation":"x"}}\n')
    with pytest.raises(CorruptionError, match=f"{most + 1} files since its latest checkpoint") as raised:
        table.load()
    assert "write a checkpoint" in str(raised.value)
    monkeypatch.undo()
    DeltaTable(str(log.parent)).create_checkpoint()
    monkeypatch.setattr(delta_entries, "MOST_FILES", most)
    assert table.load().end(0) == 20


def test_an_entry_is_inspected_once(tmp_path: Path) -> None:
    table = made(tmp_path, commits=5)
    table.load()
    before = table.remote.counts.snapshot()
    table.load()
    assert (table.remote.counts - before).reads == 0
    table.commit([uploaded(segment(50, 60))], histories=OURS)
    table.load()
    assert (table.remote.counts - before).reads == 1, "the new one"


def test_depth_is_that_of_brackets_outside_of_strings() -> None:
    """Any text: never less than the needs of Python's decoder, never an error for honest ones."""
    dice = random.Random(3)
    for _ in range(300):
        depth = dice.choice([3, delta_entries.MOST_DEPTH, delta_entries.MOST_DEPTH + 1, 5_000])
        text = "".join(dice.choice(['["[]{}\\"",', '{"]":', "["]) for _ in range(depth)).encode()
        if depth > delta_entries.MOST_DEPTH:
            with pytest.raises(ValueError, match="nest more"):
                check_nesting(text)
        else:
            check_nesting(text)
    check_nesting(json.dumps({"stats": json.dumps([{}] * 100_000)}).encode())


def test_a_text_of_quotes_and_backslashes_is_looked_through_once() -> None:
    """No regular expression restarts at each of them: that would take hours."""
    for text in (b'"' + b'\\"' * 2_000_000, b'"\\' * 2_000_000, b'"' * 3_000_001, b"\\" * 4_000_000):
        check_nesting(text)


def test_the_checkpoints_of_delta_rs_are_taken(tmp_path: Path) -> None:
    log = log_of(tmp_path, made(tmp_path, commits=25))
    data = next(log.glob("*.checkpoint.parquet")).read_bytes()
    check_checkpoint(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])


def test_a_checkpoint_with_a_column_of_sidecars_that_names_none_is_taken(tmp_path: Path) -> None:
    """delta-rs writes the column."""
    table = made(tmp_path)
    log = log_of(tmp_path, table)
    DeltaTable(str(log.parent)).create_checkpoint()
    (file,) = log.glob("*.checkpoint.parquet")
    assert pq.read_table(file)["sidecar"].null_count == len(pq.read_table(file))
    assert table.load().end(0) == 20


def test_a_checkpoint_without_statistics_is_read(tmp_path: Path) -> None:
    table = made(tmp_path)
    log = log_of(tmp_path, table)
    DeltaTable(str(log.parent)).create_checkpoint()
    (file,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(file)
    add = rows.schema.field("add").type
    kept = pa.struct([add.field(number) for number in range(add.num_fields) if add.field(number).name != "stats"])
    bare = [
        None if row is None else {name: row[name] for name in row if name != "stats"}
        for row in rows["add"].to_pylist()
    ]
    at = rows.schema.get_field_index("add")
    pq.write_table(rows.set_column(at, "add", pa.array(bare, kept)), file)
    assert table.load().end(0) == 20


def test_a_hostile_entry_of_one_topic_is_that_topic_s_failure(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    for topic in ("bad", "good"):
        live.tiered(topic)
        live.fill("abc", topic)
    live.cluster.tier()
    (log,) = (tmp_path / "remote").glob("bad-*/_delta_log")
    newest = max(log.glob("*.json")).name
    open_brackets(log).rename(log / f"{int(newest[:20]) + 1:020d}.json")
    for topic in ("bad", "good"):
        live.fill("def", topic)
    report = live.cluster.tier(check=False)
    assert {failure.item for failure in report.failures} == {"bad"}
    assert live.read("good")[0] == list("abcdef")
