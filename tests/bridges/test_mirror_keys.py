"""Keys of mirrored topics: their partitions after the mirror, and the partitioner that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import end_mirror, mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.config.topic_config import CRC32, MURMUR2, SPARK_HASH
from stratalog.engine.driver.report import Report
from stratalog.engine.records.partitioner import partitions_of
from stratalog.partitions.errors import InvalidConfigError
from tests.bridges.memory_source import MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.test_partitioner import KEYS, ROWS, dealt


@pytest.mark.parametrize(("expected", "wanted"), [({}, MURMUR2), ({"partitioner": SPARK_HASH}, SPARK_HASH)])
def test_keys_of_a_mirrored_topic_keep_their_partitions(
    expected: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """A source that is a cluster of this product reports its partitioner."""
    live, source = LiveCluster(tmp_path), MemorySource(5, **expected)
    with_ports(mirror, ports_of(live.cluster))(
        source, ["t"], MirrorOptions(replication_factor=1)
    ).raise_for_failures()
    with_ports(end_mirror, ports_of(live.cluster))(["t"]).raise_for_failures()
    live.cluster.produce("t", ROWS, key="k").raise_for_failures()
    found = dealt(live, "t")
    assert [found[row["value"]] for row in ROWS[:30]] == partitions_of(KEYS, 5, wanted).tolist()


def mirrored_by(live: LiveCluster, partitioner: str, extra: int | None = None) -> tuple[MemorySource, Report]:
    """A topic whose producers have a partitioner, and a key in another partition; mirrored, and compared."""
    source = MemorySource(5)
    for number, (key, partition) in enumerate(zip(KEYS, partitions_of(KEYS, 5, partitioner), strict=True)):
        log = source.logs[partition if number or extra is None else extra]
        log.append("v")
        log.records[log.end - 1] = log.records[log.end - 1]._replace(key=key.as_py().encode())
    with_ports(mirror, ports_of(live.cluster))(
        source, ["t"], MirrorOptions(replication_factor=1)
    ).raise_for_failures()
    return source, with_ports(compare, ports_of(live.cluster))(source, ["t"]).raise_for_failures()


def test_a_comparison_says_where_keys_would_go_elsewhere(tmp_path: Path) -> None:
    """The partitioner of the mirror can still be changed at that time."""
    live = LiveCluster(tmp_path)
    source, report = mirrored_by(live, CRC32)
    (note,) = report.notes
    assert note.startswith("t: ")
    assert "of 30 sampled keys are not in the partitions that partitioner = murmur2 chooses" in note
    assert note.endswith(
        "30 are in the partitions that crc32 chooses: before mirror --end, run stratalog topics alter-configs "
        "t --set partitioner=crc32"
    )
    live.cluster.topics.alter_configs("t", {"partitioner": CRC32})
    assert with_ports(compare, ports_of(live.cluster))(source, ["t"]).notes == []


def test_a_comparison_says_that_no_partitioner_fits(tmp_path: Path) -> None:
    home = int(partitions_of(KEYS, 5, MURMUR2)[0])
    _, report = mirrored_by(LiveCluster(tmp_path), MURMUR2, extra=(home + 1) % 5)
    assert report.notes == [
        "t: 1 of 30 sampled keys are not in the partitions that partitioner = murmur2 chooses: "
        "after mirror --end new records of these keys go to other partitions, unless producers set the partition"
    ]


def test_a_mirror_may_be_given_another_partitioner_as_long_as_nobody_else_appends(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    with_ports(mirror, ports_of(live.cluster))(MemorySource(), ["t"], MirrorOptions(replication_factor=1))
    live.cluster.topics.alter_configs("t", {"partitioner": SPARK_HASH})
    with_ports(end_mirror, ports_of(live.cluster))(["t"]).raise_for_failures()
    with pytest.raises(InvalidConfigError, match="cannot change from spark_hash to murmur2"):
        live.cluster.topics.alter_configs("t", {"partitioner": MURMUR2})
