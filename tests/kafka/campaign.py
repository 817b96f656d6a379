"""Topics of three real brokers are mirrored while all kinds of faults happen to the brokers and to mirrors.

A round fills the topics, kills mirrors (kill -9), each at some moment of its run, and causes one event in the
cluster. At the end everything is mirrored, each record is compared, and each copy here is verified. Then
everything is exported into fresh brokers (``way_back``).
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from stratalog import Report
from tests.kafka.kafka_clients import CLIENT, PRODUCER, WAIT_S, only
from tests.kafka.kafka_cluster import BROKERS, KafkaCluster
from tests.kafka.mirrored import killed, new_cluster
from tests.kafka.way_back import GROUP, WayBack, ends_there

PLAIN, TRANSACTED, COMPACTED, LOST = "plain", "transacted", "compacted", "lost"
TOPICS = PLAIN, TRANSACTED, COMPACTED, LOST
EVENTS = "kill a broker", "stop a broker", "delete records", "add a partition", "elect uncleanly", "leave it alone"
"""One event per round, in turn."""
_ROUNDS = 2 * len(EVENTS)
"""The maximum number of rounds: restarts of brokers take most of a round, so many kills share one."""
_SHARES = {PLAIN: 0.8, TRANSACTED: 0.15, COMPACTED: 0.05}
"""Shares of the records of a round."""
_IN_TRANSACTION = 5000
"""The approximate number of records: at the end each transaction's marker is made again, one by one."""
_ABORTED = 0.25
_KEYS = ["a", "b", "c"]
"""Few keys: each record that is compacted away between two others is a separate gap, and must be made again,
too."""
_AT_ONCE = 10_000
"""The number of records that a producer gets at once."""
_MOMENT_S = 0.3
"""The approximate time that a mirror of some thousand records takes after its first append."""
_MOVING = 100
"""The number of mirrors that may find a partition without a leader before it is a failure."""
_RUNS = 20
"""The number of runs within which an undisturbed mirror must have caught up."""
_SAFE = {"min.insync.replicas": "2", "segment.bytes": "4194304"}
_ROUND_THE_BROKERS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


class Campaign:
    """One seed, which determines records, events and moments (the effect of a moment depends on the machine)."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder, self._rng, self._say = folder, random.Random(seed), say
        self._counts: Counter[str] = Counter()
        self._spent_s: dict[str, float] = defaultdict(float)
        self._values = [self._rng.randbytes(self._rng.randrange(20, 120)) for _ in range(1000)]

    def run(self, records: int, kills: int) -> Counter[str]:
        """Run the campaign; returns the number of each kind of event. Raises: AssertionError, or the failures of a
        report, for any fault."""
        (self._folder / "here").mkdir()
        (self._folder / "there").mkdir()
        with (
            closing(KafkaCluster(self._folder / "there")) as self._kafka,
            closing(new_cluster(self._folder / "here")) as self._cluster,
        ):
            self._create()
            rounds = len(EVENTS) if kills <= len(EVENTS) else _ROUNDS
            for number in range(rounds):
                self._round(records // rounds, kills * (number + 1) // rounds - kills * number // rounds)
                event = EVENTS[number % len(EVENTS)]
                self._say(f"round {number + 1} of {rounds}: {event}")
                with self._takes(f"to {event}"):
                    self._happens(event)
            self._end(kills)
        return self._counts + Counter({f"seconds {what}": round(s) for what, s in self._spent_s.items()})

    @contextmanager
    def _takes(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._spent_s[what] += time.monotonic() - began

    def _create(self) -> None:
        tiered = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        often = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"}
        self._kafka.create(PLAIN, _ROUND_THE_BROKERS, {**_SAFE, **tiered})
        self._kafka.create(TRANSACTED, _ROUND_THE_BROKERS[:2], _SAFE)
        self._kafka.create(COMPACTED, [[3, 1, 2]], {**_SAFE, **often, "cleanup.policy": "compact"})
        self._kafka.create(LOST, [[1, 2]], {"min.insync.replicas": "1"})

    # ------------------------------------------------------------------------------------- records

    def _round(self, records: int, kills: int) -> None:
        """Fill all topics, one of them before each kill."""
        shares = {topic: int(records * share) for topic, share in _SHARES.items()}
        with self._takes("to fill the topics"):
            self._append(COMPACTED, shares[COMPACTED], keys=_KEYS)
            self._transact(shares[TRANSACTED])
            self._append(LOST, 10, acks="1")
        for number in range(max(1, kills)):
            with self._takes("to fill the topics"):
                self._append(PLAIN, shares[PLAIN] // max(1, kills))
            if number < kills:
                with self._takes("to kill mirrors"):
                    self._kill_a_mirror()

    def _producer(self, **configs: str) -> Producer:
        """A producer that knows the current partitions and leaders."""
        given = {**PRODUCER, "bootstrap.servers": self._kafka.bootstrap, "queue.buffering.max.messages": 200_000}
        return Producer({**given, **{key.replace("_", "."): value for key, value in configs.items()}})

    def _append(self, topic: str, records: int, keys: list[str] | None = None, acks: str = "all") -> None:
        producer = self._producer(acks=acks, compression_type="lz4")
        self._produce(producer, topic, records, keys=keys)
        assert producer.flush(WAIT_S) == 0
        self._counts[f"records of {topic}"] += records

    def _produce(
        self, producer: Producer, topic: str, records: int, partition: int = -1, keys: list[str] | None = None
    ) -> None:
        """Produce some thousands of records at a time; records that do not fit into the queue are repeated."""
        for start in range(0, records, _AT_ONCE):
            count = min(_AT_ONCE, records - start)
            left: list[dict[str, Any]] = [{"value": value} for value in self._rng.choices(self._values, k=count)]
            if keys is not None:
                for record, key in zip(left, self._rng.choices(keys, k=count), strict=True):
                    record["key"] = key
            while left:
                producer.produce_batch(topic, left, partition)
                producer.poll(0)
                left = [record for record in left if record.pop("_error", None) is not None]
                if left:  # the queue is full
                    producer.poll(0.05)

    def _transact(self, records: int) -> None:
        """Append each transaction to some partition."""
        producer = self._producer(transactional_id="campaign", compression_type="lz4")
        producer.init_transactions(WAIT_S)
        partitions = len(self._kafka.state(TRANSACTED))
        transactions = max(1, records // _IN_TRANSACTION)
        for _ in range(transactions):
            producer.begin_transaction()
            self._produce(producer, TRANSACTED, records // transactions, self._rng.randrange(partitions))
            producer.flush(WAIT_S)
            if self._rng.random() < _ABORTED:
                producer.abort_transaction(WAIT_S)
                self._counts["transactions aborted"] += 1
            else:
                producer.commit_transaction(WAIT_S)
                self._counts["transactions committed"] += 1

    # -------------------------------------------------------------------------------------- events

    def _happens(self, event: str) -> None:
        self._counts[event] += 1
        broker = self._rng.choice(BROKERS)
        match event:
            case "kill a broker":
                self._kafka.kill(broker)
                self._append(PLAIN, 1000)
                self._comes_back(broker)
            case "stop a broker":
                self._kafka.stop(broker)
                self._append(PLAIN, 1000)
                self._comes_back(broker)
            case "delete records":
                end = ends_there(self._kafka, PLAIN)[0]
                where = TopicPartition(PLAIN, 0, self._rng.randrange(end // 2 + 1))
                only(self._kafka.admin.delete_records([where]))
            case "add a partition":
                now = len(self._kafka.state(TRANSACTED))
                self._kafka.add_partition(TRANSACTED, now + 1)
            case "elect uncleanly":
                self._elect_uncleanly()
            case _:
                pass

    def _comes_back(self, *brokers: int) -> None:
        for broker in brokers:
            self._kafka.start(broker)
        for topic in TOPICS:
            self._kafka.await_all_in_sync(topic, 2 if topic == LOST else len(BROKERS))

    def _elect_uncleanly(self) -> None:
        """Elect another leader of ``LOST``, whose last records only one broker has. Reports name the topic while
        it has no leader and from then on; finally it is mirrored again from the start."""
        leader = self._kafka.state(LOST)[0][0]
        assert leader is not None
        other = 3 - leader
        self._kafka.kill(other)
        self._kafka.await_state(LOST, lambda states: states[0][1] == {leader})
        self._append(LOST, 20, acks="1")
        self._mirror().raise_for_failures()
        self._kafka.kill(leader)
        self._kafka.await_state(LOST, lambda states: states[0][0] is None)
        self._only_lost_fails("LEADER_NOT_AVAILABLE")
        self._kafka.start(other)
        self._kafka.elect_unclean(LOST, 0)
        self._kafka.await_state(LOST, lambda states: states[0][0] == other)
        self._only_lost_fails("LOG_TRUNCATION")
        self._append(LOST, 40, acks="1")
        self._only_lost_fails("LOG_TRUNCATION")
        self._comes_back(leader)
        self._only_lost_fails("LOG_TRUNCATION")
        self._cluster.topics.delete(LOST)
        self._mirror().raise_for_failures()

    def _only_lost_fails(self, code: str) -> None:
        found = [(failure.item, failure.code) for failure in self._mirror().failures]
        assert found == [(f"{LOST}-0", code)], found
        self._counts[code] += 1

    # ------------------------------------------------------------------------------------- mirrors

    def _mirror(self) -> Report:
        """Mirror again while the leader of a topic other than ``LOST`` moves."""
        while True:
            report = self._cluster.mirror(list(TOPICS), self._kafka.bootstrap, replication_factor=2, check=False)
            moving = [f for f in report.failures if f.code == "LEADER_NOT_AVAILABLE" and f.item != f"{LOST}-0"]
            if not moving:
                return report
            self._counts["mirrors that met a moving leader"] += 1
            assert self._counts["mirrors that met a moving leader"] < _MOVING, moving
            time.sleep(1)

    def _kill_a_mirror(self) -> None:
        """Kill a mirror some time after it has appended something, or at its end if it has nothing to do."""
        arguments = ["mirror", "--from", self._kafka.bootstrap, ",".join(TOPICS)]
        arguments += ["--cluster", str(self._folder / "here" / "cluster.toml")]
        before = self._files_here()
        alive = killed(arguments, lambda: self._files_here() > before, _MOMENT_S * self._rng.random())
        self._counts["mirrors killed" if alive else "mirrors ended before"] += 1

    def _files_here(self) -> int:
        return sum(1 for _ in (self._folder / "here" / "b1").rglob("*.parquet"))

    def _ends_here(self) -> list[int]:
        there = [name for name in TOPICS if name in self._cluster.image.topic_ids]
        return [int(row["log_end"] or 0) for name in there for row in self._cluster.describe(name).rows]

    # ----------------------------------------------------------------------------------------- end

    def _end(self, kills: int) -> None:
        began, before = time.monotonic(), sum(self._ends_here())
        with self._takes("to mirror the rest"):
            self._commit()
            for _ in range(_RUNS):
                if self._mirror().raise_for_failures().totals["lag"] == 0:
                    break
        self._counts["offsets of the last mirror"] = offsets = sum(self._ends_here()) - before
        self._counts["offsets a second, mirrored last"] = int(offsets / (time.monotonic() - began))
        self._say("all is mirrored: compared, verified, and exported to fresh brokers")
        with self._takes("to verify"):
            self._cluster.verify(deep=True).raise_for_failures()
        (self._folder / "back").mkdir()
        with closing(WayBack(self._folder, self._cluster, TOPICS, self._rng, self._takes)) as back:
            back.look(self._kafka)
            self._kafka.close()
            back.run(max(1, kills // 20))
        self._counts += back.counts

    def _commit(self) -> None:
        """Commit offsets for a group in the topic that is mirrored last, and in a topic with transactions."""
        places = [
            TopicPartition(topic, number, end * 2 // 3)
            for topic in (PLAIN, TRANSACTED)
            for number, end in enumerate(ends_there(self._kafka, topic))
        ]
        configs = {**CLIENT, "bootstrap.servers": self._kafka.bootstrap, "group.id": GROUP}
        with closing(Consumer({**configs, "enable.auto.commit": False})) as consumer:
            consumer.commit(offsets=places, asynchronous=False)
