"""The ISR: replicas in sync, and the committed records if the ISR is too small (KIP-966), or after an election
(KIP-207)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stratalog.engine.replicas.in_sync import lags
from tests.kafka.both import Both
from tests.kafka.kafka_clients import KafkaClients
from tests.kafka.log import Log, Trace
from tests.kafka.three_brokers import KafkaTrio, OurTrio, Trio

pytestmark = pytest.mark.kafka

THREE = {"min.insync.replicas": "3"}


@pytest.fixture
def trios(tmp_path: Path, clients: KafkaClients) -> Iterator[tuple[Trio, Trio]]:
    (tmp_path / "ours").mkdir()
    with closing(KafkaTrio(tmp_path / "kafka", clients.wire, THREE)) as kafka:
        yield OurTrio(tmp_path / "ours", THREE), kafka


def test_nothing_is_committed_while_the_isr_is_too_small(trios: tuple[Trio, Trio]) -> None:
    """No setting of acks changes this. Records that were known to be committed remain committed. A newly elected
    leader does not know yet where they end, because its own epoch begins above that offset.
    """

    def script(trio: Trio) -> Trace:
        trace: Trace = [trio.append("all three"), trio.latest()]
        trio.third_leaves()
        trace += [trio.append("refused"), trio.append("two", acks_all=False), trio.latest()]
        trio.leader_leaves()
        trace += [trio.latest(), trio.append("refused")]
        trio.all_come_back()
        return [*trace, trio.latest(), trio.append("all three again"), trio.latest()]

    ours, kafka = map(script, trios)
    assert ours == kafka
    too_few, unknown = "NOT_ENOUGH_REPLICAS", "OFFSET_NOT_AVAILABLE"
    assert kafka == [1, 2, too_few, 2, 2, unknown, too_few, 3, 3, 4]


def test_a_partition_with_fewer_replicas_needs_all_of_them_and_no_more(both: Both) -> None:
    """min.insync.replicas cannot require more replicas than there are."""

    def script(log: Log) -> Trace:
        log.create_topic("t", configs=THREE)
        return [log.append("t", ["a"]), log.read("t")]

    assert both.same(script)[0] == [0]


@pytest.mark.parametrize("behind_ms", [0, 299, 300, 301])
def test_a_replica_is_out_of_sync_after_replica_lag_time_max_ms(clients: KafkaClients, behind_ms: int) -> None:
    """A lag of exactly that time is still in sync."""
    assert lags(behind_ms, 300) != clients.wire.is_caught_up(behind_ms, 300)
