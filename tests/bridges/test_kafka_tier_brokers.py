"""Requests of a reader of the tier to brokers: the metadata topic, the log starts, and the current history."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

import pyarrow as pa
import pytest

from stratalog.bridges.kafka_tier.brokers import SourceBrokers
from stratalog.bridges.kafka_tier.metadata_log import TOPIC
from stratalog.bridges.kafka_tier.segment_states import folded
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.mirror.source import SourceBounds, SourceRange, SourceRead, SourceRecord, SourceTopic
from stratalog.partitions.errors import InvalidCallError, LogGapError, RetriableError, UnknownTopicOrPartitionError
from stratalog.partitions.identity import TopicPartition
from tests.bridges.kafka_tier_data import MAIN, Tier, real, rows_of
from tests.bridges.memory_source import OTHER_ID, MemorySource
from tests.bridges.test_kafka_tier_columns import decoded

pytestmark = real


class Cluster(MemorySource):
    """The metadata topic of the data, and one tiered topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(3, TOPIC)
        found = Tier(MAIN).truth(topic)
        self.topic = MemorySource(1, topic)
        self.topic.topic_id = found["topicId"]
        log = self.topic.logs[0]
        log.epochs = dict(found["partitions"][0]["leaderEpochCheckpoint"])
        log.end = found["partitions"][0]["readCommittedRanges"][-1][1] + 1
        for number, mine in enumerate(self.logs):
            name = f"remote-log-metadata/{TOPIC}-{number}/{0:020d}.log"
            rows: pa.RecordBatch = decoded((Tier(MAIN).path / name).read_bytes())
            for offset, value in zip(*(rows.column(of).to_pylist() for of in ("offset", "value")), strict=True):
                mine.records[offset] = SourceRecord(offset, None, None, value, (), 0)
                mine.end = offset + 1
        self.records_a_read = 50

    def _of(self, name: str) -> MemorySource:
        return self.topic if name == self.topic.name else self

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        if names == [self.topic.name]:
            return self.topic.topics(names)
        return super().topics(names)

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        return self.topic.bounds(keys) if keys[0][0] == self.topic.name else super().bounds(keys)

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        mine = next(iter(ranges))[0] == self.topic.name
        yield from self.topic.read(ranges) if mine else super().read(ranges)


def opened(source: MemorySource) -> KafkaTier:
    tier, brokers, notes = Tier(MAIN), SourceBrokers(source), list[str]()
    return KafkaTier(tier.store, tier.layout, folded(brokers.messages(notes)), brokers=brokers, notes=tuple(notes))


def test_the_metadata_are_those_of_the_files() -> None:
    source = Cluster("plain")
    assert opened(source).states == Tier(MAIN).states()
    source.logs[1].start = 5
    notes: list[str] = []
    list(SourceBrokers(source).messages(notes))
    assert notes == [f"{TOPIC}-1 begins at offset 5: segments that only earlier records describe are unknown"]
    source.logs[2].has_leader = False
    with pytest.raises(RetriableError, match=r"partitions \[2\] of __remote_log_metadata"):
        list(SourceBrokers(source).messages([]))
    with pytest.raises(UnknownTopicOrPartitionError):
        list(SourceBrokers(MemorySource(1, "t")).messages([]))


def test_brokers_know_where_a_log_starts() -> None:
    source = Cluster("delete-records")
    source.topic.logs[0].start = 777
    rows = rows_of(opened(source).read_arrow("delete-records").read_all())
    assert rows == [row for row in Tier(MAIN).records("delete-records-0") if 777 <= row[0] < 1800]


def test_a_topic_that_was_created_again_is_not_the_deleted_one() -> None:
    source = Cluster("plain")
    source.topic.topic_id = OTHER_ID
    tier = opened(source)
    found = rf"the topic 'plain' of the brokers \(id {OTHER_ID}\) has no tiered segments.*open the tier with"
    with pytest.raises(UnknownTopicOrPartitionError, match=found):
        tier.read_arrow("plain")
    assert any(re.match(found, note) for note in tier.describe().notes)


def test_brokers_are_asked_once_whether_they_have_the_history() -> None:
    source = Cluster("unclean")
    tier = opened(source)
    for _ in range(3):
        rows = rows_of(tier.read_arrow("unclean").read_all())
        assert rows == [row for row in Tier(MAIN).records("unclean-0") if row[0] < 1375]
    assert source.topic.asked == [[0]]


@pytest.mark.parametrize("bounds", [(0, 1375), (0, None), (100, None), (None, 1375), (None, None)])
def test_another_history_makes_all_offsets_unclear(bounds: tuple[int | None, int | None]) -> None:
    """After a second unclean election the brokers have a history of which nothing is tiered."""
    source = Cluster("unclean")
    log = source.topic.logs[0]
    log.epochs, log.end = {0: 0, 2: 500, 4: 900}, 2000
    with pytest.raises(LogGapError, match=r"unclean-0 offsets \[0, 1375\): the brokers' history differs"):
        opened(source).read_arrow("unclean", start=bounds[0], end=bounds[1])


def test_either_files_or_brokers_have_the_metadata() -> None:
    for given in ({}, {"metadata": "/m", "bootstrap": "127.0.0.1:9092"}):
        with pytest.raises(InvalidCallError, match="give either metadata"):
            KafkaTier.open("/t", layout="local", **given)  # type: ignore[arg-type]
