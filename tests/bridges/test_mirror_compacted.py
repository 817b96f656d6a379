"""Mirrors of a topic that its source compacts: the mirror compacts it by its own rules."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stratalog import Report
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.partitions.errors import InvalidConfigError
from tests.bridges.memory_source import MemoryLog, MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

Row = tuple[str | None, str | None]


class Mirrored(LiveCluster):
    """A cluster that mirrors the compacted topic ``t`` of ``source``. Each run makes a segment."""

    def __init__(self, folder: Path, **configs: str) -> None:
        super().__init__(folder)
        given = {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0",
            "delete_retention_ms": "0",
            "segment_bytes": "1",
            "retention_ms": "-1",
            **configs,
        }
        self.source = MemorySource(1, **{name.replace("_", "."): value for name, value in given.items()})
        self.tombstones: set[int] = set()
        """Tombstones that a compaction of the source has already seen."""

    @property
    def there(self) -> MemoryLog:
        return self.source.logs[0]

    def put(self, *rows: Row) -> None:
        log = self.there
        log.epochs.setdefault(log.epoch, 0)
        for key, value in rows:
            data = [None if one is None else one.encode() for one in (key, value)]
            log.records[log.end] = SourceRecord(log.end, 1_700_000_000_000, data[0], data[1], [], log.epoch)
            log.end += 1

    def compact_there(self, bound: int) -> None:
        """Compact like Kafka's cleaner. The second compaction removes a tombstone."""
        records = self.there.records
        last = {record.key: offset for offset, record in sorted(records.items()) if offset < bound}
        old = set(self.tombstones)
        self.tombstones |= {at for at in last.values() if records[at].value is None}
        for offset, record in list(records.items()):
            if offset < bound and (last[record.key] > offset or offset in old or record.key is None):
                del records[offset]

    def mirror(self) -> None:
        options = MirrorOptions(replication_factor=3)
        with_ports(mirror, ports_of(self.cluster))(self.source, ["t"], options).raise_for_failures()

    def compare(self) -> Report:
        return with_ports(compare, ports_of(self.cluster))(self.source, ["t"])

    def here(self) -> dict[int, Row]:
        found: dict[int, Row] = {}
        offset = 0
        while (got := self.cluster.fetch("t", 0, offset)).next_offset > offset:
            for row in got.records.to_pylist():
                key, value = (None if one is None else one.decode() for one in (row["key"], row["value"]))
                found[row["offset"]] = key, value
            offset = got.next_offset
        return found


def test_records_that_left_the_source_leave_the_mirror_at_the_same_offsets(tmp_path: Path) -> None:
    live = Mirrored(tmp_path)
    live.put(("a", "1"), ("b", "1"), (None, "x"), ("a", "2"), ("c", "1"))
    live.mirror()
    live.put(("c", None), ("b", "2"))
    live.compact_there(6)
    live.mirror()
    live.put(("z", "1"))
    live.mirror()
    assert live.cluster.compact().raise_for_failures().totals["removed"] == 4
    assert live.here() == {3: ("a", "2"), 5: ("c", None), 6: ("b", "2"), 7: ("z", "1")}
    report = live.compare().raise_for_failures()
    assert [report.rows[0][name] for name in ("there", "here", "compacted", "differences")] == [5, 4, 1, 0]
    assert live.cluster.verify(deep=True).ok


CASES: dict[str, tuple[list[int], str]] = {
    "the last record of a key is gone there": ([2], "2 is only here, and no later record has its key"),
    "the last of another one, and an earlier one": ([0, 4], "4 is only here, and no later record has its key"),
}


@pytest.mark.parametrize("gone", CASES)
def test_a_difference_that_no_rule_explains_is_named(tmp_path: Path, gone: str) -> None:
    live = Mirrored(tmp_path)
    live.put(("a", "1"), ("b", "1"), ("b", "2"), ("a", "2"), ("c", "1"), ("a", None))
    live.mirror()
    offsets, named = CASES[gone]
    for offset in offsets:
        del live.there.records[offset]
    report = live.compare()
    assert [one.message for one in report.failures] == [f"offsets that differ: {named}"]
    assert report.rows[0]["compacted"] == len(offsets) - 1


def test_a_tombstone_that_left_before_it_was_copied_is_a_difference(tmp_path: Path) -> None:
    """The mirror did not run for longer than ``delete.retention.ms`` of its source."""
    live = Mirrored(tmp_path)
    live.put(("a", "1"), ("b", "1"))
    live.mirror()
    live.put(("a", None), ("b", "2"))
    for _ in range(2):
        live.compact_there(4)
    live.mirror()
    assert "0 is only here, and no later record has its key" in str(live.compare().failures)


def test_a_record_that_a_later_one_superseded_after_the_compared_range_is_no_difference(tmp_path: Path) -> None:
    live = Mirrored(tmp_path)
    live.put(("a", "1"), ("b", "1"))
    live.mirror()
    live.put(("a", "2"), ("z", "1"))
    live.compact_there(3)
    report = live.compare()
    assert [one.message for one in report.failures] == [
        "offsets that differ: 2 and all later ones up to 4 are only in Kafka"
    ]
    assert report.rows[0]["compacted"] == 1


def test_without_a_rule_here_nothing_explains_a_record_that_is_only_there(tmp_path: Path) -> None:
    live = Mirrored(tmp_path)
    live.put(("a", "1"), ("a", "2"))
    del live.there.records[0]
    live.mirror()
    live.there.records[0] = live.there.records[1]._replace(offset=0)
    assert "0 is only in the source" in str(live.compare().failures)


UNEXPLAINED = (
    "0 is only in the source, and no later record below offset 3, up to which this log is compacted, has its key"
)
LOST: dict[str, tuple[list[Row], list[Row], str | None]] = {
    "superseded below the bound": ([("k", "1"), ("k", "2"), ("a", "1")], [("a", "2")], None),
    "superseded from the bound on": (
        [("k", "1"), ("b", "1"), ("a", "1")],
        [("k", "2")],
        UNEXPLAINED,
    ),
    "superseded nowhere": (
        [("k", "1"), ("b", "1"), ("a", "1")],
        [("a", "2")],
        UNEXPLAINED,
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_only_what_is_below_the_bound_of_the_last_compaction_explains_what_is_missing_here(
    tmp_path: Path, name: str
) -> None:
    before, after, why = LOST[name]
    live = Mirrored(tmp_path)
    live.put(*before)
    lost = live.there.records.pop(0)
    live.mirror()
    live.put(("z", "1"))
    live.mirror()
    live.cluster.compact().raise_for_failures()
    assert [one.rule.bound for one in live.cluster.image.views("t")[0].rules] == [3]
    live.put(*after)
    live.mirror()
    live.there.records[0] = lost
    report = live.compare()
    assert [one.message for one in report.failures] == ([] if why is None else [f"offsets that differ: {why}"])
    assert report.rows[0]["compacted"] == (1 if why is None else 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_compacted_when_both_end_with_the_same_records(tmp_path: Path, seed: int) -> None:
    """Some runs of the mirror stop early, and some topics also delete by age."""
    rng = random.Random(seed)
    live = Mirrored(tmp_path, cleanup_policy=rng.choice(["compact", "compact,delete"]))
    live.put(("first", "1"))
    live.mirror()
    last: dict[str, tuple[int, str | None]] = {"first": (0, "1")}
    for number in range(60):
        for _ in range(rng.randint(1, 8)):
            key, value = f"k{rng.randrange(12)}", None if rng.random() < 0.2 else str(number)
            last[key] = live.there.end, value
            live.put((key, value))
        if rng.random() < 0.7:
            live.mirror()  # so that it sees each tombstone, which exists for two compactions
            if rng.random() < 0.5:
                live.compact_there(live.there.end - rng.randint(1, 5))
        if rng.random() < 0.3:
            live.cluster.compact().raise_for_failures()
            live.cluster.retain().raise_for_failures()
    live.mirror()
    live.compact_there(live.there.end)
    live.put(("end", "1"))
    live.mirror()
    for _ in range(2):
        live.cluster.compact().raise_for_failures()
    live.compare().raise_for_failures()
    here = live.here()
    for key, (offset, value) in last.items():
        assert here.get(offset, (key, None)) == (key, value)
    below = [key for offset, (key, _) in here.items() if offset < live.there.end - 1]
    assert len(below) == len(set(below))
    assert live.cluster.verify(deep=True).ok


def test_an_archive_keeps_what_its_source_compacts_and_is_not_compacted(tmp_path: Path) -> None:
    live = Mirrored(tmp_path)
    live.put(("a", "1"), ("a", "2"), ("a", "3"))
    options = MirrorOptions(replication_factor=3, archive=True)
    with_ports(mirror, ports_of(live.cluster))(live.source, ["t"], options).raise_for_failures()
    assert "cleanup.policy" not in live.cluster.image.topic("t").configs
    with pytest.raises(InvalidConfigError, match=r"mirror\.archive\.enable = true: an archive keeps"):
        live.cluster.topics.alter_configs("t", {"cleanup.policy": "compact"})
