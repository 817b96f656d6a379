"""Timestamps at the limits of Kafka, Spark and the log: each path keeps a timestamp exactly, or refuses it and
names the record. No path changes a timestamp silently.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stratalog.bridges.export.export import export
from stratalog.bridges.export.options import ExportOptions
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.jobs.produce import main as produce_job
from stratalog.partitions.errors import InvalidRecordError, StratalogError
from stratalog.partitions.records import TIMESTAMP
from tests.bridges.memory_target import MemoryCluster, MemoryTarget
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

KEPT, REFUSED, NONE = "kept", "refused", "none"
EDGES_MS = [-1, -2, 0, 1, 2**53, 9223372036854775, 9223372036854776, 2**63 - 1]
"""Milliseconds. From 9223372036854776 on the log cannot express them in microseconds; -1 is Kafka's value for no
timestamp."""
TOO_FAR = {9223372036854776, 2**63 - 1}
WAYS = {
    "append_batches": {ms: REFUSED if ms in TOO_FAR else KEPT for ms in EDGES_MS},
    "produce": {ms: REFUSED if ms in TOO_FAR else KEPT for ms in EDGES_MS},
    "mirror": {**{ms: REFUSED if ms in TOO_FAR else KEPT for ms in EDGES_MS}, -1: NONE},
    "export": {ms: REFUSED if ms in (-1, 0) else KEPT for ms in EDGES_MS if ms not in TOO_FAR},
}


def append_batches(live: LiveCluster, ms: int) -> list[int | None]:
    one = batch(["a"])
    stamps = pa.array([ms], pa.timestamp("ms", "UTC"))
    stamps = stamps if ms in TOO_FAR else stamps.cast(TIMESTAMP)
    live.cluster.append_batches("t", {0: [one.set_column(0, "timestamp", stamps)]}).raise_for_failures()
    return [us // 1000 for us in here(live)]


def produce(live: LiveCluster, ms: int) -> list[int | None]:
    rows = pa.table({"value": ["a"], "at": pa.array([ms], pa.timestamp("ms", "UTC"))})
    live.cluster.produce("t", rows, timestamp="at").raise_for_failures()
    return [us // 1000 for us in here(live)]


def mirror(live: LiveCluster, ms: int) -> list[int | None]:
    pytest.importorskip("confluent_kafka")
    from stratalog.bridges.mirror.kafka_source import _Taken

    given: dict[str, Any] = {"topic": "t", "partition": 3, "offset": 7, "timestamp": (1, ms), "error": None}
    given |= {"key": None, "value": b"v", "headers": None, "leader_epoch": 0}
    taken = _Taken()
    taken.add([SimpleNamespace(**{name: lambda one=one: one for name, one in given.items()})])
    (read,) = taken.reads()
    if read.error is not None:
        raise read.error
    found = read.records.column("timestamp").cast(pa.int64()).to_pylist()
    return [None if us is None else us // 1000 for us in found]


def exported(live: LiveCluster, ms: int) -> list[int | None]:
    live.cluster.append_batches("t", {0: [batch(["before"], 5000)]})
    live.cluster.append_batches("t", {0: [batch(["a"], ms * 1000)]})
    there = MemoryCluster()
    report = with_ports(export, ports_of(live.cluster))(MemoryTarget(there), ["t"], ExportOptions())
    before, *found = (one.timestamp_ms for one in there.topics["t"][0].slots if isinstance(one, SourceRecord))
    assert before == 5, "what comes before it is there"
    if report.failures:
        assert (report.failures[0].item, report.rows[0]["exported"], found) == ("t-0", 1, [])
        assert f"offset 1 has the timestamp {ms} ms" in report.failures[0].message
        raise InvalidRecordError(report.failures[0].message)
    return found


def here(live: LiveCluster) -> list[int]:
    found: list[int] = live.cluster.fetch("t", 0, 0).records.column("timestamp").cast(pa.int64()).to_pylist()
    return found


RUN = {"append_batches": append_batches, "produce": produce, "mirror": mirror, "export": exported}


@pytest.mark.parametrize(("way", "ms", "wanted"), [(w, ms, one) for w in WAYS for ms, one in WAYS[w].items()])
def test_a_timestamp_is_kept_or_refused(way: str, ms: int, wanted: str, tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    if wanted == REFUSED:
        with pytest.raises(StratalogError):
            RUN[way](live, ms)
        return
    assert RUN[way](live, ms) == [None if wanted == NONE else ms]


@pytest.mark.parametrize("us", [-1, 0, 2**63 - 1, -(2**63)])
def test_every_microsecond_is_kept(us: int, tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.cluster.append_batches("t", {0: [batch(["a"], us)]}).raise_for_failures()
    rows = pa.table({"value": ["b"], "at": pa.array([us], TIMESTAMP)})
    live.cluster.produce("t", rows, timestamp="at").raise_for_failures()
    assert here(live) == [us, us]


UNKNOWN: dict[str, tuple[Any, str]] = {
    "milliseconds": (1_700_000_000_000, "1700000000000, and a number does not say its unit"),
    "seconds": (1.5, "1.5, and a number does not say its unit"),
    "numpy": (np.int64(5), "5, and a number does not say its unit"),
    "nanoseconds": (pd.Timestamp(1_500, unit="ns", tz="UTC"), ".*, and the log stores microseconds: round it"),
}


@pytest.mark.parametrize(("value", "message"), UNKNOWN.values(), ids=list(UNKNOWN))
def test_a_row_whose_time_would_become_another_is_refused(value: Any, message: str, tmp_path: Path) -> None:
    """Arrow reads a number as microseconds, and truncates finer values."""
    live = LiveCluster(tmp_path)
    live.topic()
    with live.unchanged(), pytest.raises(InvalidRecordError, match=f"row 1: column 'at' is {message}"):
        live.cluster.produce("t", [{"value": "a", "at": None}, {"value": "b", "at": value}], timestamp="at")


def test_a_frame_with_numbers_or_finer_times_is_refused(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    for stamps in (pa.array([5], pa.int64()), pa.array([1_500], pa.timestamp("ns", "UTC"))):
        with (
            live.unchanged(),
            pytest.raises(InvalidRecordError, match=r"column 'at' is .*, but is declared as timestamp"),
        ):
            live.cluster.produce("t", pa.table({"value": ["a"], "at": stamps}), timestamp="at")


def test_the_terminal_takes_the_times_that_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times beyond the range of Python's datetime are shown as numbers of microseconds."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "timestamp": "9223372036854775807 us"}\n')
    asked = ["--cluster", str(live.file), "t", "--input", str(lines), "--format", "json"]
    assert produce_job(asked) == 0, capsys.readouterr().err
    assert here(live) == [2**63 - 1]
    lines.write_text('{"value": "a", "timestamp": "9223372036854775808 us"}\n')
    assert produce_job(asked) != 0
    assert "'9223372036854775808 us' is not of type timestamp" in capsys.readouterr().err


def test_a_record_without_a_timestamp_has_none_in_kafka() -> None:
    pytest.importorskip("confluent_kafka")
    from stratalog.bridges.export.kafka_target import KafkaTarget, _Delivered

    given: list[int] = []
    producer = SimpleNamespace(produce=lambda *_, timestamp, **__: given.append(timestamp))
    records = [SourceRecord(0, ms, None, b"v", (), None) for ms in (None, 1, -2)]
    KafkaTarget._produce(SimpleNamespace(), producer, "t", 0, records, _Delivered("t"))  # type: ignore[arg-type]
    assert given == [-1, 1, -2]
