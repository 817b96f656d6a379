"""Mirrors of a topic of the tier's data, and the brokers that the data comes from."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import MirrorSource, SourceRange, SourceRead, SourceRecord
from stratalog.engine.driver.report import Report
from stratalog.partitions.identity import TopicPartition
from tests.bridges.kafka_tier_data import MAIN, Tier, opened
from tests.bridges.memory_source import MemorySource
from tests.bridges.test_mirror_in_bulk import TwoTasks
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

ONCE = MirrorOptions(replication_factor=2, tier=True)
BULK = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True)


class Brokers(MemorySource):
    """A topic of the data, as its brokers returned it to consumers of committed records."""

    def __init__(self, topic: str) -> None:
        found = Tier(MAIN).truth(topic)
        super().__init__(len(found["partitions"]), topic)
        self.topic_id, self.records_a_read, self.sent = found["topicId"], 200, 0
        moment = [found[name] for name in found if name.startswith("offsets")][-1]
        for number, (part, log) in enumerate(zip(found["partitions"], self.logs, strict=True)):
            ranges = part["readCommittedRanges"]
            log.epochs = dict(part["leaderEpochCheckpoint"])
            log.epoch = max(log.epochs)
            log.start = moment[str(number)]["earliest"]["offset"]
            log.end = moment[str(number)]["lastStable"]["offset"]
            for offset, time, _, epoch, key, value, headers in Tier(MAIN).records(f"{topic}-{number}"):
                if log.start <= offset and any(low <= offset <= high for low, high in ranges):
                    log.records[offset] = SourceRecord(
                        offset, None if time == -1 else time, key, value, headers, epoch
                    )

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        for read in super().read(ranges):
            self.sent += read.records.num_rows
            yield read


def starts(topic: str) -> dict[tuple[str, int], int]:
    return {(topic, number): log.start for number, log in enumerate(Brokers(topic).logs)}


def whole(topic: str) -> TieredSource:
    return TieredSource(opened(MAIN, log_starts=starts(topic)), Brokers(topic))


def run(live: LiveCluster, source: MirrorSource, topic: str, options: MirrorOptions = BULK) -> Report:
    """Run once with tasks, and compare with the brokers."""
    ports = ports_of(live.cluster).with_tasks(TwoTasks())
    report = with_ports(mirror, ports)(source, [topic], options).raise_for_failures()
    with_ports(compare, ports_of(live.cluster))(Brokers(topic), [topic]).raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    return report
