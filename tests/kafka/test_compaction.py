"""Compacted topics: KIP-58, KIP-71, KIP-354, KIP-534. The same records, cleaned by Kafka's cleaner and by ours.

Both clean up to a bound. Kafka's bound is the start of its active segment, and ours is the start of the last file;
neither bound is above the last stable offset. The records end with one that begins a segment there and a file
here, so both bounds are equal: the test asserts that. It compares all records of the log, below and above it, at
both isolation levels, and the offsets of named positions and of times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TopicPartition

from stratalog.partitions.isolation import Isolation
from tests.kafka.compacted import SEGMENT_MS, Here, Record, Script, Step, There, read_here
from tests.kafka.kafka_clients import KafkaClients, wait_until
from tests.kafka.kafka_log import KafkaLog
from tests.kafka.log import LATER_MS, At
from tests.kafka.our_log import OurLog
from tests.ports import ports_of

pytestmark = pytest.mark.kafka

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
PLAIN = {"cleanup.policy": "delete"}
FOREVER = {"retention.ms": "-1", "segment.ms": str(SEGMENT_MS)}


class Two:
    """The topic ``t`` in Kafka and here. Both are compacted only when the test calls ``compact``."""

    def __init__(
        self, ours: OurLog, kafka: KafkaLog, clients: KafkaClients, folder: Path, delete_retention_ms: int
    ) -> None:
        self.ours, self.kafka = ours, kafka
        self._clients = clients
        self._folder = folder
        configs = {**FOREVER, **PLAIN, "delete.retention.ms": str(delete_retention_ms)}
        kafka.create_topic("t", configs=configs)
        ours.create_topic("t", configs={**configs, "segment.bytes": "1"})
        self._there, self._here = There(clients, kafka, "t"), Here(ours.cluster, "t")

    def take(self, step: Step) -> None:
        there = self._there.take(step)
        assert self._here.take(step) == there

    def compact(self) -> int:
        """Compact once, and return the common bound."""
        self.kafka.alter_configs("t", COMPACTED)
        self.ours.alter_configs("t", COMPACTED)
        self.ours.cluster.compact().raise_for_failures()
        here = ports_of(self.ours.cluster).metadata.image().views("t")[0].rules[-1].rule.bound
        wait_until(lambda: self._bound_there() >= here, every_s=0.1)
        assert self._bound_there() == here
        self.kafka.alter_configs("t", PLAIN)
        self.ours.alter_configs("t", PLAIN)
        return here

    def _bound_there(self) -> int:
        """The bound up to which the cleaner has cleaned, as the broker records it."""
        lines = (self._folder / "data" / "cleaner-offset-checkpoint").read_text().splitlines()
        found = [line.split() for line in lines]
        return max([int(one[2]) for one in found if one[:2] == [self.kafka.name("t"), "0"]], default=0)

    def same_records(self, *, committed: bool) -> dict[int, Record]:
        """The records by offset, which must be the same at the same offsets."""
        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        here, there = read_here(self.ours.cluster, "t", isolation), self._read_there(committed)
        differing = [at for at in sorted({*here, *there}) if here.get(at) != there.get(at)]
        assert not differing, [(at, here.get(at), there.get(at)) for at in differing[:5]]
        return here

    def same_positions(self, times_ms: Sequence[int]) -> None:
        """Check that the offsets of names and times are the same. Kafka finds nothing at some times although it
        has later records: it looks into the first segment that had a batch of that time, even if that segment has
        no records any more.
        """
        names = At.EARLIEST, At.LATEST, At.MAX_TIMESTAMP
        missed = 0
        for at in (*names, *times_ms):
            for committed in (False, True):
                here, there = (log.list_offsets("t", at, committed=committed) for log in (self.ours, self.kafka))
                if at not in names and here != there == {0: None}:
                    missed += 1
                else:
                    assert here == there, (at, committed)
        assert missed < len(times_ms)

    def _read_there(self, committed: bool) -> dict[int, Record]:
        found: dict[int, Record] = {}
        with self._clients.consumer("read_committed" if committed else "read_uncommitted") as consumer:
            consumer.assign([TopicPartition(self.kafka.name("t"), 0, 0)])
            while True:
                for message in consumer.consume(10_000, 0.5):
                    if message.error() is not None:
                        return found
                    kind, at_ms = message.timestamp()
                    assert kind == TIMESTAMP_CREATE_TIME
                    found[message.offset() or 0] = (
                        *(at_ms, message.key(), message.value()),
                        [(name, value) for name, value in message.headers() or ()],
                    )


@pytest.mark.parametrize("tombstones_stay", [False, True], ids=["tombstones leave", "tombstones stay"])
@pytest.mark.parametrize(
    ("records", "together", "keys"),
    [
        pytest.param(2_000, 100, 300, id="quick"),
        pytest.param(
            200_000,
            2_000,
            20_000,
            id="200,000 records",
            marks=[pytest.mark.nightly, pytest.mark.long("200,000 records, appended and read four times")],
        ),
    ],
)
def test_both_cleaners_keep_the_same_records_at_the_same_offsets(
    ours: OurLog,
    kafka: KafkaLog,
    clients: KafkaClients,
    kafka_folder: Path,
    records: int,
    together: int,
    keys: int,
    tombstones_stay: bool,
) -> None:
    two = Two(ours, kafka, clients, kafka_folder, 10**12 if tombstones_stay else 0)
    script = Script(seed=44, keys=keys)
    held: list[dict[int, Record]] = []
    for share in (0.7, 0.3):  # the second compaction removes tombstones that the first one has kept
        for step in script.steps(int(records * share), together, keyless=True):
            two.take(step)
        bound = two.compact()
        committed = two.same_records(committed=True)
        everything = two.same_records(committed=False)
        assert committed == everything, "no record of an aborted transaction is left"
        below = [record for offset, record in committed.items() if offset < bound]
        assert len(below) == len({key for _, key, _, _ in below}) > keys // 4
        assert None not in {key for _, key, _, _ in below}
        end_ms = max(at_ms for at_ms, *_ in committed.values())
        rng = random.Random(records)
        two.same_positions([LATER_MS, end_ms + 1, *(rng.randint(LATER_MS, LATER_MS + records) for _ in range(40))])
        held.append(committed)
    tombstones = [offset for offset, (_, _, value, _) in held[0].items() if value is None]
    superseded = {record[1] for offset, record in held[1].items() if offset > max(held[0])}
    stay = [offset for offset in tombstones if held[0][offset][1] not in superseded]
    assert len(stay) > 5
    assert (set(stay) <= held[1].keys()) == tombstones_stay
    assert tombstones_stay or not set(stay) & held[1].keys()
    ours.cluster.verify(deep=True).raise_for_failures()
