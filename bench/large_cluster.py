"""Measures the cost of one small record in a cluster like KIP-630's example: 100 brokers and 1,000,000 partitions,
in topics of ten partitions with three replicas.

The costs are its bytes, compared with one record per partition (KIP-630, "Motivation"), its replay, the reads
after it, and an ordinary commit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from bench.measuring import in_child, in_turn, seconds_of
from bench.options import size_text
from bench.table import Limit, Line
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.partition_commands import AlterPartition, IsrProposal, Member
from stratalog.engine.metadata.records import (
    FenceBrokerRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    encode,
)
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.identity import random_id
from stratalog.partitions.root import format_root
from stratalog.partitions.store.local import LocalStore

CLUSTER = "bench"
BROKERS = 100
PARTITIONS_PER_TOPIC = 10
REPLICAS = 3
SMALL = 10_000
"""The number of partitions of the small cluster; its commits are compared with those of the large cluster."""
INTERACTIVE_S = 1.0
"""The longest interactive wait, in seconds."""
FENCED = 5
COMMITS = 1000
NOTE = (
    "KIP-630's example: 100 brokers, topics of 10 partitions, 3 replicas. The peer writes one record per "
    "partition that changes. Neither size includes the log's framing."
)

if TYPE_CHECKING:
    from bench.bench import Bench

_SEED = 630
_RECORDS_AT_ONCE = 10_000


def metadata(bench: Bench) -> list[Line]:
    """The cost of one small record for a cluster with many partitions."""
    partitions = bench.options.metadata_partitions
    bench.say(f"an image of {partitions:,} partitions")
    return fencing_lines(in_child(measure_fencing, partitions), in_child(measure_fencing, min(SMALL, partitions)))


@dataclass(frozen=True, slots=True)
class Fencing:
    """The measurements on an image with this number of partitions, in bytes and seconds."""

    partitions: int
    changed: int
    """The number of partitions that the broker led, or in whose ISR it was."""
    record_bytes: int
    bytes_per_partition: int
    """The bytes of one record for each of ``changed``."""
    replay_s: float
    views_s: float
    """Reading the partitions of a topic with their brokers."""
    led_s: float
    """Finding all partitions that a broker leads."""
    commit_s: float
    """One ``AlterPartition``, decided and folded."""


def example_records(partitions: int, brokers: int = BROKERS) -> Iterator[MetadataRecord]:
    """The records of such a cluster, without the first record of a log. They register ``brokers`` brokers, with
    ids from 1 on; 0 means none.
    """
    rng = random.Random(_SEED)
    for broker_id in range(1, brokers + 1):
        yield RegisterBrokerRecord(
            broker_id=broker_id,
            directory_id=_id(rng),
            log_dir=f"file:///brokers/{broker_id}",
            rack=f"r{broker_id % REPLICAS}",
        )
    yield from topic_records(partitions, range(1, brokers + 1))


def topic_records(partitions: int, brokers: range) -> Iterator[MetadataRecord]:
    """The records for a number of partitions in topics of ten, spread over registered brokers."""
    rng = random.Random(_SEED + 1)
    for topic in range(-(-partitions // PARTITIONS_PER_TOPIC)):
        topic_id = _id(rng)
        yield TopicRecord(name=f"topic-{topic:06}", topic_id=topic_id)
        for partition in range(min(PARTITIONS_PER_TOPIC, partitions - topic * PARTITIONS_PER_TOPIC)):
            replicas = tuple(rng.sample(brokers, REPLICAS))
            yield PartitionRecord(
                topic_id=topic_id, partition=partition, replicas=replicas, isr=replicas, leader=replicas[0]
            )


def folded(image: ClusterImage, records: Iterator[MetadataRecord]) -> ClusterImage:
    """The image after these records; only a few records are in memory at a time."""
    while some := list(islice(records, _RECORDS_AT_ONCE)):
        image = apply(image, image.next_offset, some)
    return image


def voter_in(folder: Path) -> Voter:
    """The only voter of ``CLUSTER``, with its root in a folder; formatted at first use."""
    folder.mkdir(parents=True, exist_ok=True)
    store = LocalStore(str(folder))
    return Voter(1, store, format_root(store, CLUSTER, 1, random_id).directory_id)


def measure_fencing(partitions: int) -> Fencing:
    """Measure the fencing of a broker, the reads after it, and changes of single partitions."""
    image = folded(ClusterImage(), example_records(partitions))
    record = FenceBrokerRecord(broker_id=FENCED)
    after = [image]

    def replay() -> float:
        return seconds_of(lambda: after.append(apply(image, image.next_offset, [record])))

    def views() -> float:
        return seconds_of(lambda: after[-1].views("topic-000000"))

    def led() -> float:
        return seconds_of(lambda: partitions_led(after[-1], FENCED + 1))

    def commits() -> float:
        return seconds_of(lambda: commit_each(image, COMMITS)) / COMMITS

    replay_s, views_s, led_s, commit_s = in_turn(replay, views, led, commits)
    changes = list(one_record_each(image, after[-1]))
    return Fencing(
        partitions=partitions,
        changed=len(changes),
        record_bytes=len(encode(record)),
        bytes_per_partition=sum(len(encode(change)) for change in changes),
        replay_s=replay_s,
        views_s=views_s,
        led_s=led_s,
        commit_s=commit_s,
    )


def partitions_led(image: ClusterImage, broker_id: int) -> list[tuple[str, int]]:
    return [
        (topic.name, partition.partition)
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == broker_id
    ]


def commit_each(image: ClusterImage, commits: int) -> ClusterImage:
    """Run a number of commands, each on the result of the previous one: the first removes the last member from an
    ISR, the second adds it, the third makes it a member again, and so on.
    """
    topic = image.topic("topic-000000")
    for number in range(commits):
        partition = image.partition(topic.topic_id, number % len(topic.partitions))
        last = partition.replicas[-1]
        isr, adding = partition.isr, partition.adding
        if last in isr:
            isr, adding = isr[:-1], ()
        elif last in adding:
            isr, adding = partition.replicas, ()
        else:
            adding = (last,)
        proposal = IsrProposal(
            topic_id=topic.topic_id,
            partition=partition.partition,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple(Member(one, image.brokers[one].broker_epoch) for one in isr),
            adding=tuple(Member(one, image.brokers[one].broker_epoch) for one in adding),
        )
        image = apply(image, image.next_offset, AlterPartition((proposal,)).decide(image).records)
    return image


def one_record_each(before: ClusterImage, after: ClusterImage) -> Iterator[PartitionChangeRecord]:
    """The records that would be necessary if nothing were derived."""
    for topic_id, topic in before.topics.items():
        for old, new in zip(topic.partitions, after.topics[topic_id].partitions, strict=True):
            if old != new:
                leader = UNSET if new.leader == old.leader else new.leader
                yield PartitionChangeRecord(topic_id=topic_id, partition=old.partition, isr=new.isr, leader=leader)


def fencing_lines(large: Fencing, small: Fencing) -> list[Line]:
    return [
        Line(
            f"fence a broker, {large.partitions:,} partitions",
            f"{large.record_bytes} B",
            f"{size_text(large.bytes_per_partition)}, {large.changed:,} records",
            large.bytes_per_partition / large.record_bytes,
            Limit(100),
            NOTE,
        ),
        _interactive("    its replay", large.replay_s),
        _interactive("    then reading the partitions of a topic", large.views_s),
        _interactive("    then finding all that a broker leads", large.led_s),
        Line(
            f"    one AlterPartition, decided and folded; of {small.partitions:,}",
            _ms(large.commit_s),
            _ms(small.commit_s),
            large.commit_s / small.commit_s,
            Limit(4, at_most=True),
            "The cost of a small commit depends on its changes, not on the size of the cluster. Storage is not "
            "included.",
        ),
    ]


def _interactive(what: str, seconds: float) -> Line:
    return Line(
        what,
        _ms(seconds),
        _ms(INTERACTIVE_S),
        seconds / INTERACTIVE_S,
        Limit(1, at_most=True),
        "Interactive means within a second.",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.{0 if seconds >= 0.1 else 3}f} ms"


def _id(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"
