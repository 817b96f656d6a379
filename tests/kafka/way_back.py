"""The end of a campaign: all mirrored topics are exported into fresh brokers, and all three copies are equal.

Each record of the source is compared with the record here, and each record here with the record in the fresh
brokers; ranges and digests must be equal. A group continues at the same record in each of the three.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

from confluent_kafka import OFFSET_STORED, Consumer, TopicPartition

from stratalog import Cluster
from stratalog.partitions.errors import RetriableError
from tests.kafka.kafka_clients import CONSUMER, WAIT_S
from tests.kafka.kafka_cluster import KafkaCluster
from tests.kafka.mirrored import killed

GROUP = "readers"
_RUNS = 20
"""The number of runs within which an undisturbed export must have written everything."""

Place = tuple[str, int]
Found = tuple[int, bytes | None]
"""Offset and value of a record."""


class WayBack:
    """Fresh brokers, which run until ``close``."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        topics: Sequence[str],
        rng: random.Random,
        takes: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """``folder`` is that of the campaign, with ``here/cluster.toml``, and an empty ``back``."""
        self._folder, self._cluster, self._topics, self._rng, self._takes = folder, cluster, topics, rng, takes
        self.counts: Counter[str] = Counter()
        self._compared: dict[Place, tuple[object, ...]] = {}
        self._next: dict[Place, Found | None] = {}
        self._fresh: KafkaCluster | None = None

    def close(self) -> None:
        """Stop the fresh brokers."""
        if self._fresh is not None:
            self._fresh.close()

    def look(self, kafka: KafkaCluster) -> None:
        """Compare with the mirrored brokers for the last time. Raises: AssertionError for a difference."""
        with self._takes("to compare, there and here"):
            self._compared = self._compare(kafka)
        self._next = next_records(kafka, self._places())
        assert self._next == self._next_here(), (self._next, self._next_here())

    def run(self, kills: int) -> None:
        """Export everything. Raises: AssertionError, or the failures of a report, if the fresh brokers differ."""
        self._fresh = fresh = KafkaCluster(self._folder / "back")
        with self._takes("to kill exports"):
            for _ in range(kills):
                self._kill_an_export(fresh)
        with self._takes("to export"):
            for _ in range(_RUNS):
                report = self._cluster.export(list(self._topics), fresh.bootstrap, configs=_QUICK, check=False)
                if {failure.code for failure in report.failures} - {RetriableError.code}:
                    report.raise_for_failures()
                if report.ok and report.totals["lag"] == 0:
                    break
                self.counts["exports that were run again"] += 1
        with self._takes("to compare, here and in fresh brokers"):
            back = self._compare(fresh)
        assert back == self._compared, [place for place in back if back[place] != self._compared.get(place)]
        found = next_records(fresh, self._places())
        assert found == self._next, (found, self._next)
        self.counts["places of the group, the same record in all three"] = len(found)

    def _kill_an_export(self, fresh: KafkaCluster) -> None:
        arguments = ["export", "--to", fresh.bootstrap, ",".join(self._topics)]
        arguments += ["--cluster", str(self._folder / "here" / "cluster.toml")]
        for key, value in _QUICK.items():
            arguments += ["--config", f"{key}={value}"]
        before = _all_ends(fresh, self._topics)
        alive = killed(arguments, lambda: _all_ends(fresh, self._topics) != before, 3 * self._rng.random())
        self.counts["exports killed" if alive else "exports ended before"] += 1

    def _compare(self, kafka: KafkaCluster) -> dict[Place, tuple[object, ...]]:
        """Compare range and digest of each partition here with those of these brokers."""
        report = self._cluster.compare(list(self._topics), kafka.bootstrap).raise_for_failures()
        self.counts["records compared"] += int(report.totals["here"] or 0)
        return {
            (str(row["topic"]), int(row["partition"] or 0)): tuple(
                row[name] for name in ("start", "end", "digest")
            )
            for row in report.rows
        }

    def _places(self) -> dict[Place, int]:
        """The group's offsets here."""
        return {place: one.offset for place, one in self._cluster.groups.committed(GROUP).items()}

    def _next_here(self) -> dict[Place, Found | None]:
        found: dict[Place, Found | None] = {}
        for (topic, partition), offset in self._places().items():
            while True:
                fetched = self._cluster.fetch(
                    topic, partition, offset, isolation="read_committed", max_bytes=100_000
                )
                if fetched.records.num_rows or fetched.next_offset == offset:
                    break
                offset = fetched.next_offset
            rows = fetched.records.slice(0, 1).select(["offset", "value"]).to_pylist()
            found[topic, partition] = (rows[0]["offset"], rows[0]["value"]) if rows else None
        return found


_QUICK = {"message.timeout.ms": "4000"}
"""The waits of an export that runs after a killed one."""


def next_records(kafka: KafkaCluster, places: dict[Place, int]) -> dict[Place, Found | None]:
    """The records at which the group continues there; None if it has read everything. Raises: AssertionError if
    its committed offsets differ from these."""
    found: dict[Place, Found | None] = {}
    configs = {**CONSUMER, "group.id": GROUP, "isolation.level": "read_committed"}
    with closing(Consumer({**configs, "bootstrap.servers": kafka.bootstrap})) as consumer:
        seen = consumer.committed([TopicPartition(*place) for place in places], WAIT_S)
        assert {(one.topic, one.partition): one.offset for one in seen} == places, seen
        for place in places:
            consumer.assign([TopicPartition(*place, OFFSET_STORED)])
            message = consumer.poll(WAIT_S)
            assert message is not None, place
            found[place] = None if message.error() is not None else (message.offset() or 0, message.value())
            consumer.unassign()
    return found


def ends_there(kafka: KafkaCluster, topic: str) -> list[int]:
    with closing(Consumer({**CONSUMER, "bootstrap.servers": kafka.bootstrap, "group.id": "ends"})) as asking:
        numbers = range(len(kafka.state(topic)))
        return [asking.get_watermark_offsets(TopicPartition(topic, number), WAIT_S)[1] for number in numbers]


def _all_ends(kafka: KafkaCluster, topics: Sequence[str]) -> list[int]:
    there = kafka.admin.list_topics(timeout=WAIT_S).topics
    return [end for topic in topics if topic in there for end in ends_there(kafka, topic)]
