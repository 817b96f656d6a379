"""The engine's view of a compacted log: offsets without records in the middle, and at its ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog import FoundOffset, OffsetSpec
from stratalog.engine.records.append import append_batches
from stratalog.partitions.isolation import Isolation
from tests.ports import ports_of
from tests.unit.harness import batch
from tests.unit.test_upkeep_compact import Compacted, fill

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = "aababcadae"
"""There is one record for each, at second 1, 2, ... Compaction keeps 4 (b), 5 (c) and 7 (d), and the tail from 8
on: 8, 9.
"""
LEFT = [4, 5, 7, 8, 9]


class Timed(Compacted):
    """A compacted topic with ``KEYS``, one per append; compacted up to its last file."""

    def __init__(self, folder: Path, **configs: str) -> None:
        super().__init__(folder, **configs)
        for number, key in enumerate(KEYS, start=1):
            self.put_at(key, number)
        self.cluster.compact().raise_for_failures()
        self.cluster.retain().raise_for_failures()

    def put_at(self, key: str, second: int) -> None:
        ports = ports_of(self.cluster)
        made = batch([f"{second}"], second * 1_000_000)
        made = made.set_column(1, "key", pa.array([key.encode()], pa.binary()))
        append_batches(
            *(ports.metadata, ports.storage, ports.clock, ports.memory), "t", {0: [made]}, None
        ).raise_for_failures()


def test_the_remaining_records_are_those_of_this_file(tmp_path: Path) -> None:
    assert [*Timed(tmp_path).everywhere()] == LEFT


@pytest.mark.sample(8)
@pytest.mark.parametrize("start", range(len(KEYS) + 1))
@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_fetch_from_any_offset_gets_all_that_is_left_from_there_on(
    tmp_path: Path, start: int, isolation: Isolation
) -> None:
    live = Timed(tmp_path)
    found, offset = [], start
    while (got := live.cluster.fetch("t", 0, offset, max_bytes=1, isolation=isolation)).next_offset > offset:
        found += got.records.column("offset").to_pylist()
        offset = got.next_offset
    assert found == [at for at in LEFT if at >= start]
    assert offset == len(KEYS)


@pytest.mark.parametrize(
    ("second", "offset"), [(0, 4), (1, 4), (5, 4), (6, 5), (7, 7), (8, 7), (9, 8), (10, 9), (11, None)]
)
def test_a_time_is_found_at_the_first_record_that_is_left(tmp_path: Path, second: int, offset: int | None) -> None:
    live = Timed(tmp_path)
    found = live.cluster.offsets("t", EPOCH + timedelta(seconds=second))[0]
    assert isinstance(found, FoundOffset) == (offset is not None)
    if isinstance(found, FoundOffset):
        assert (found.offset, found.timestamp_us) == (offset, ((offset or 0) + 1) * 1_000_000)


def test_the_named_positions_are_those_of_before(tmp_path: Path) -> None:
    live = Timed(tmp_path)
    specs = OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP
    assert [live.cluster.offsets("t", spec)[0].offset for spec in specs] == [0, 10, 9]  # type: ignore[union-attr]


def test_lag_counts_offsets_as_in_kafka_and_a_position_in_a_gap_stays(tmp_path: Path) -> None:
    live = Timed(tmp_path)
    live.cluster.groups.commit("g", {("t", 0): 6}).raise_for_failures()
    (row,) = live.cluster.groups.lag("g").raise_for_failures().rows
    assert (row["committed"], row["lag"]) == (6, 4)


@pytest.mark.parametrize(
    ("configs", "log_start"),
    [
        ({"retention.ms": "-1"}, 0),
        ({"retention.ms": "1000"}, 10),
        ({"retention.bytes": "1"}, 9),
    ],
)
def test_compact_and_delete_deletes_whole_files_from_the_start_with_gaps_or_without(
    tmp_path: Path, configs: dict[str, str], log_start: int
) -> None:
    """The times are those of the remaining records of a file: a file without records has none, and does not delay
    others."""
    live = Timed(tmp_path, cleanup_policy="compact,delete")
    live.cluster.topics.alter_configs("t", configs)
    live.clock.sleep(60)
    live.cluster.retain().raise_for_failures()
    assert live.cluster.image.views("t")[0].log_start_offset == log_start
    fill(live, [("z", "1"), ("z", "2"), ("y", "1")])
    live.cluster.compact().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.cluster.verify(deep=True).ok
    start = live.cluster.image.views("t")[0].log_start_offset
    assert start >= log_start
    assert live.cluster.fetch("t", 0, start).records.num_rows > 0
