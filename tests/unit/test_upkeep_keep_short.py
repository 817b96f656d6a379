"""Logs that drivers keep short: a driver's background work after its acknowledgements."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.upkeep.replication.keep_short import shorten_log
from stratalog.partitions.errors import StorageError
from stratalog.partitions.paths import DataName, WatermarkName, base_name, parse_name
from stratalog.partitions.store.memory import MemoryStore
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster


def short(live: LiveCluster, **configs: str) -> Cluster:
    """A driver that keeps the log of a topic short, in which four appends make a segment, without waits."""
    live.topic(**{"segment_merge_min_files": "4", "file_delete_delay_ms": "0", **configs})
    return live.driver(keeps_short=True)


def names(live: LiveCluster, broker: int) -> Counter[type]:
    """The number of names of each kind in a replica's folder."""
    stored = live.store(broker).list(live.replica(broker).path(""))
    return Counter(type(parse_name(base_name(one.name))) for one in stored)


def merged(live: LiveCluster, broker: int) -> int:
    """The number of segments of several appends in a replica's log."""
    return sum(link.name.merged for link in live.replica(broker).log().chain)


@pytest.mark.slow
def test_every_replica_stays_short_and_loses_nothing(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    driver = short(live)
    for number in range(100):
        live.append([str(number)], driver=driver).raise_for_failures()
        driver.close()
    for broker in live.cluster.stores:
        found = names(live, broker)
        assert found[DataName] <= 12
        assert found[WatermarkName] <= 9
    assert live.read() == {0: [str(number) for number in range(100)]}
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_replaced_appends_stay_for_running_readers(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    driver = short(live, file_delete_delay_ms="60000")
    for _ in range(16):
        live.append(["a"], driver=driver).raise_for_failures()
        driver.close()
    assert merged(live, 1)
    assert names(live, 1)[DataName] > 16
    live.clock.advance_ms(60_000)
    for _ in range(16):
        live.append(["a"], driver=driver).raise_for_failures()
        driver.close()
    assert names(live, 1)[DataName] < 16 + 12


@pytest.mark.slow
def test_its_requests_are_not_those_of_the_append(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    driver = short(live)
    asked = []
    for _ in range(20):
        with driver.measured() as measure:
            live.append(["a"], driver=driver).raise_for_failures()
            driver.close()
        asked.append(measure.counts)
    assert merged(live, 1)
    assert len({(count.lists, count.creates, count.deletes) for count in asked[2:]}) == 1


def test_zero_bytes_leave_it_to_merge(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    driver = short(live, segment_merge_inline_bytes="0")
    for _ in range(20):
        live.append(["a"], driver=driver).raise_for_failures()
    driver.close()
    assert names(live, 1)[DataName] == 20


@pytest.mark.slow
def test_segments_are_no_larger_than_what_may_be_merged_at_once(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    driver = short(live, segment_merge_inline_bytes="20000")
    for _ in range(40):
        live.append(["a" * 1000], driver=driver).raise_for_failures()
        driver.close()
    log = live.replica(1).log()
    assert 2 <= merged(live, 1) < len(log.chain)
    assert max(link.file.object.size_bytes for link in log.chain) <= 20_000
    live.cluster.merge().raise_for_failures()
    assert merged(live, 1) == 1


class NoDelete(MemoryStore):
    """Storage without the right to delete."""

    refused = 0

    def delete(self, names: list[str], *, dry_run: bool = False) -> int:  # type: ignore[override]
        NoDelete.refused += 1
        raise StorageError(f"{self.uri}: delete is not allowed")


@pytest.mark.slow
def test_a_failure_after_appends_fails_none_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveCluster(tmp_path)
    driver = short(live)
    monkeypatch.setattr(MemoryStore, "delete", NoDelete.delete)
    with caplog.at_level(logging.WARNING, "stratalog.engine.upkeep"):
        for _ in range(40):
            live.append(["a"], driver=driver).raise_for_failures()
            driver.close()
    assert len(caplog.records) == 1
    assert "t-0 was not kept short" in caplog.text
    assert 0 < NoDelete.refused < 40 * 3
    assert merged(live, 1)


def test_a_damaged_segment_keeps_what_it_has_hidden(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    driver = short(live, file_delete_delay_ms="60000")
    for _ in range(16):
        live.append(["a"], driver=driver).raise_for_failures()
        driver.close()
    follower = live.replica(live.followers()[0])
    (segment, *_) = [link for link in follower.log().chain if link.name.merged]
    body = bytearray(follower.store.read(segment.file.object.name))
    body[len(body) // 3] ^= 1
    follower.store.delete([segment.file.object.name])
    follower.store.create(segment.file.object.name, bytes(body))
    live.clock.advance_ms(60_000)
    hidden = {file.name for file in follower.log().hidden}
    ports = ports_of(live.cluster)
    image = ports.metadata.image()
    done = shorten_log(ports.storage, ports.clock, image, image.view(image.topic("t").topic_id, 0))
    assert done is not None
    assert [error.code for error in done.failed] == ["CORRUPT_SEGMENT"]
    covered = {name for name in hidden if segment.start <= name.base_offset < segment.end}
    assert covered <= {file.name for file in follower.log().hidden}
    assert not covered & {file.name for file in live.replica(live.leader()).log().hidden}


def test_no_merge_crosses_the_end_of_the_remote_log(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(segment_merge_min_files="3", local_retention_bytes="-2")
    driver = live.driver(keeps_short=True)
    live.fill("abcde")
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.alter_configs("t", {"segment.bytes": "1000000"})
    for value in "fghijklm":
        live.append([value], driver=driver).raise_for_failures()
        driver.close()
    assert [link.start for link in live.replica(1).log().chain if link.name.merged] == [5]
    assert live.read() == {0: list("abcdefghijklm")}


def test_records_that_only_the_remote_tier_has_are_left_to_retain(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(segment_merge_min_files="2", file_delete_delay_ms="100")
    live.fill("abcde")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    dead = {file.name for file in live.replica(1).log().dead}
    assert dead
    live.clock.advance_ms(1000)
    ports = ports_of(live.cluster)
    image = ports.metadata.image()
    shorten_log(ports.storage, ports.clock, image, image.view(image.topic("t").topic_id, 0))
    assert {file.name for file in live.replica(1).log().dead} == dead


def test_a_topic_that_is_gone_or_led_by_another_one_is_no_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    ports = ports_of(live.cluster)
    image = ports.metadata.image()
    view = image.view(image.topic("t").topic_id, 0)
    driver = live.driver(keeps_short=True)
    live.fill("a" * 40)
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.append(["b"]).raise_for_failures()
    behind = ports_of(driver).memory.behind_appends
    end = ports_of(live.cluster).memory.log_ends.of([live.replicas().view])[0]
    with caplog.at_level(logging.WARNING, "stratalog.engine.upkeep"):
        behind.appended(image, [(view, end)])
        behind.wait()
        live.cluster.topics.delete("t").raise_for_failures()
        now = ports.metadata.image()
        behind.appended(now, [(view, end)])
        behind.wait()
    assert not caplog.records


ONCE = """
import sys, pyarrow as pa
from stratalog import Cluster
from tests.unit.harness import batch
Cluster.open(sys.argv[1]).append_batches("t", {0: [batch(["last"])]}).raise_for_failures()
"""


@pytest.mark.slow
def test_a_process_that_appends_once_does_its_share_before_it_ends(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic(segment_merge_min_files="4")
    live.fill("a" * 20)
    subprocess.run([sys.executable, "-c", ONCE, str(live.file)], check=True, cwd=Path(__file__).parents[2])
    assert [merged(live, broker) for broker in (1, 2, 3)] == [1, 1, 1]
    assert len(live.replica(1).log().chain) == 1
