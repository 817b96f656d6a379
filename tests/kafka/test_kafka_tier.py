"""A real broker with tiered storage: its tier is read directly, and mirrored."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from confluent_kafka import TopicPartition

from stratalog import Cluster, KafkaTier, KafkaTierOptions, Report
from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.brokers import SourceBrokers
from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.mirror import kafka_source
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import SourceRange
from stratalog.partitions.clock import SystemClock
from tests.bridges.mirror_tier_victim import AtOnce, killed_mirrors
from tests.depth import at_depth
from tests.kafka.kafka_clients import WAIT_S, KafkaClients, wait_until
from tests.kafka.test_mirror import EPOCH_MS, Topic
from tests.ports import ports_of, with_ports

pytestmark = [pytest.mark.kafka, pytest.mark.filterwarnings("ignore:left out")]  # a transaction is open on purpose

TIERED = {
    "remote_storage_enable": "true",
    "local_retention_bytes": "1",
    "segment_ms": "1000",
    "file_delete_delay_ms": "0",
}
KILLS = at_depth(test=5, nightly=100)
LATEST_TIERED = -5
"""The number in ListOffsets."""


def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of LocalTieredStorage; the fixture ``clients`` names it."""
    found = sorted(tmp_path_factory.getbasetemp().glob("kafka*/remote/kafka-tiered-storage"))
    return str(found[-1])


def opened(clients: KafkaClients, tmp_path_factory: pytest.TempPathFactory) -> KafkaTier:
    return KafkaTier.open(address(tmp_path_factory), layout="local", bootstrap=clients.address)


def filled(clients: KafkaClients, name: str) -> Topic:
    """Transactions of both outcomes, and plain records, in several segments; all but the last one are tiered."""
    topic = Topic(clients, name, 2, **TIERED)
    for number in range(4):
        for partition in (0, 1):
            topic.append(*(f"{number}-{at}" for at in range(20)), partition=partition, key=f"k{number}")
            topic.transact("a", "b", None, commit=number % 2 == 0, partition=partition)
        # The next batch begins a segment if it is later than the segment's first batch. Markers have the current
        # time.
        topic.now_ms = max(topic.now_ms, SystemClock().now_ms() - EPOCH_MS) + 5000
    for partition in (0, 1):
        wait_until(lambda: listed(clients, name, partition, LATEST_TIERED) >= 48)  # noqa: B023 - at once
    return topic


def listed(clients: KafkaClients, name: str, partition: int, at: int) -> int:
    return clients.wire.list_offset(clients.address, name, partition, at)


def test_the_brokers_know_the_metadata_the_starts_and_the_history(
    clients: KafkaClients, prefix: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request per partition, however often the tier is planned."""
    topic = filled(clients, f"{prefix}history")
    tier = opened(clients, tmp_path_factory)
    assert topic.name in tier.topics()
    asked: list[dict[tuple[str, int], SourceRange]] = []
    read = kafka_source.KafkaSource.read

    def counted(self: kafka_source.KafkaSource, ranges: dict[tuple[str, int], SourceRange]) -> Any:
        asked.append(ranges)
        return read(self, ranges)

    monkeypatch.setattr(kafka_source.KafkaSource, "read", counted)
    for _ in range(3):
        rows = tier.read_arrow(topic.name, isolation="read_committed").read_all()
    assert [list(one) for one in asked] == [[(topic.name, 0)], [(topic.name, 1)]]
    ends = [listed(clients, topic.name, partition, LATEST_TIERED) + 1 for partition in (0, 1)]
    assert [(row["end"], row["unclear"]) for row in tier.describe().rows if row["topic"] == topic.name] == [
        (end, None) for end in ends
    ]
    plan = tier.plan(topic.name, isolation="read_committed")
    certain = [max(task.piece.end for task in plan.tasks if task.partition == number) for number in (0, 1)]
    with clients.consumer("read_committed") as consumer:
        for partition, end in enumerate(certain):
            consumer.assign([TopicPartition(topic.name, partition, 0)])
            found = []
            while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
                found.append((message.offset(), message.key(), message.value()))
            mine = rows.filter(pc.equal(rows.column("partition"), partition))
            columns = [mine.column(name).to_pylist() for name in ("offset", "key", "value")]
            assert list(zip(*columns, strict=True)) == [one for one in found if one[0] < end]


def test_another_history_of_a_real_broker_makes_all_offsets_unclear(
    clients: KafkaClients, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The tier seems to have records of the current epoch beyond the end of the log."""
    topic = filled(clients, f"{prefix}other")
    plan = opened(clients, tmp_path_factory)._plan_of(topic.name, 0)
    last = plan.pieces[-1]
    longer = replace(plan, pieces=(*plan.pieces[:-1], replace(last, end=last.end + 1_000_000)))
    with closing(open_source(clients.address)) as source:
        refused = SourceBrokers(source).confirmed(longer)
        assert SourceBrokers(source).confirmed(plan) == plan
    assert (refused.pieces, [one.start for one in refused.unclear]) == ((), [0])
    assert "the brokers' history differs" in refused.unclear[0].reason


@pytest.mark.parametrize("by_tasks", [False, True], ids=["threads", "tasks"])
def test_a_mirror_reads_the_tier_and_the_brokers_send_the_rest(
    clients: KafkaClients,
    cluster: Cluster,
    prefix: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    by_tasks: bool,
) -> None:
    topic = filled(clients, f"{prefix}mirrored-{by_tasks}")
    tier = address(tmp_path_factory)

    def mirrored() -> Report:
        if not by_tasks:
            found: Report = cluster.mirror(
                topic.name, clients.address, tier=KafkaTierOptions(tier, "local"), replication_factor=2
            )
            return found.raise_for_failures()
        source = TieredSource(opened(clients, tmp_path_factory), open_source(clients.address))
        options = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True)
        ports = ports_of(cluster).with_tasks(AtOnce(4))
        return with_ports(mirror, ports)(source, [topic.name], options).raise_for_failures()

    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 1000)
    report = mirrored()
    cluster.compare(topic.name, clients.address).raise_for_failures()
    tiered = opened(clients, tmp_path_factory).read_arrow(topic.name, isolation="read_committed").read_all()
    assert report.totals["from_tier"] == tiered.num_rows
    assert tiered.num_rows >= 80
    assert report.totals["lag"] == 0
    topic.append("later")
    again = mirrored()
    assert again.totals["records"] == 1
    cluster.compare(topic.name, clients.address).raise_for_failures()
    cluster.verify(deep=True).raise_for_failures()


@pytest.mark.long("a process for each kill")
def test_killed_mirrors_of_a_tier_copy_each_record_once(
    clients: KafkaClients, prefix: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each copy is mirrored until a process ends by itself. Both sides then have the same records at the same
    offsets, so that no record is duplicated.
    """
    topic = filled(clients, f"{prefix}killed")
    tier = address(tmp_path_factory)
    given = (topic.name, clients.address, tier)
    for cluster in killed_mirrors(tmp_path, KILLS, "kills of mirrors of a tier", 4.0, *given):
        cluster.compare(topic.name, clients.address).raise_for_failures()
        cluster.verify(deep=True).raise_for_failures()
