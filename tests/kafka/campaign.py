"""Topics of three real brokers that are mirrored while everything happens that may happen to them, and to mirrors.

A round fills the topics, lets something happen to the cluster, and kills a mirror (kill -9) at some moment of its
run. At the end everything is mirrored, each record is compared, and each copy here is verified.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from stratalog import Report
from tests.kafka.kafka_clients import CLIENT, PRODUCER, WAIT_S, only, wait_until
from tests.kafka.kafka_cluster import BROKERS, KafkaCluster
from tests.kafka.mirrored import new_cluster

PLAIN, TRANSACTED, COMPACTED, LOST = "plain", "transacted", "compacted", "lost"
TOPICS = PLAIN, TRANSACTED, COMPACTED, LOST
EVENTS = "kill a broker", "stop a broker", "delete records", "add a partition", "elect uncleanly", "leave it alone"
"""One a round, in turn."""
_ROOT = Path(__file__).resolve().parents[2]
_SHARES = {PLAIN: 0.8, TRANSACTED: 0.15, COMPACTED: 0.05}
"""Of the records of a round."""
_IN_TRANSACTION = 500
_ABORTED = 0.25
_GROUP = "readers"
_RUNS = 20
"""Until a mirror that nobody kills must have caught up."""
_SAFE = {"min.insync.replicas": "2", "segment.bytes": "4194304"}
_ROUND_THE_BROKERS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


class Campaign:
    """One seed, from which records, events and moments follow (what a moment meets depends on the machine)."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder, self._rng, self._say = folder, random.Random(seed), say
        self._counts: Counter[str] = Counter()
        self._filled_s = 0.0
        self._values = [self._rng.randbytes(self._rng.randrange(20, 120)) for _ in range(1000)]

    def run(self, records: int, kills: int) -> Counter[str]:
        """What happened how often. Raises: AssertionError, or what a report tells, for anything that is wrong."""
        (self._folder / "here").mkdir()
        (self._folder / "there").mkdir()
        with (
            closing(KafkaCluster(self._folder / "there")) as self._kafka,
            closing(new_cluster(self._folder / "here")) as self._cluster,
        ):
            self._create()
            rounds = max(len(EVENTS), kills)
            for number in range(rounds):
                event = EVENTS[number % len(EVENTS)]
                self._fill(records // rounds)
                if number < kills:
                    self._kill_a_mirror()
                self._say(f"round {number + 1} of {rounds}: {event}")
                self._happens(event)
            self._end()
        return self._counts

    def _create(self) -> None:
        tiered = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        often = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"}
        self._kafka.create(PLAIN, _ROUND_THE_BROKERS, {**_SAFE, **tiered})
        self._kafka.create(TRANSACTED, _ROUND_THE_BROKERS[:2], _SAFE)
        self._kafka.create(COMPACTED, [[3, 1, 2]], {**_SAFE, **often, "cleanup.policy": "compact"})
        self._kafka.create(LOST, [[1, 2]], {"min.insync.replicas": "1"})

    # ------------------------------------------------------------------------------------- records

    def _fill(self, records: int) -> None:
        began = time.monotonic()
        shares = {topic: int(records * share) for topic, share in _SHARES.items()}
        self._append(PLAIN, shares[PLAIN])
        self._append(COMPACTED, shares[COMPACTED], keys=50)
        self._transact(shares[TRANSACTED])
        self._append(LOST, 10, acks="1")
        self._filled_s += time.monotonic() - began

    def _producer(self, **configs: str) -> Producer:
        """One that knows the partitions and the leaders of now."""
        given = {**PRODUCER, "bootstrap.servers": self._kafka.bootstrap, "queue.buffering.max.messages": 200_000}
        return Producer({**given, **{key.replace("_", "."): value for key, value in configs.items()}})

    def _append(self, topic: str, records: int, keys: int = 0, acks: str = "all") -> None:
        producer = self._producer(acks=acks, compression_type="lz4")
        for number in range(records):
            key = str(self._rng.randrange(keys)) if keys else None
            self._produce(producer, topic, key)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        self._counts[f"records of {topic}"] += records

    def _produce(self, producer: Producer, topic: str, key: str | None = None) -> None:
        value = self._rng.choice(self._values)
        try:
            producer.produce(topic, value, key)
        except BufferError:
            producer.poll(WAIT_S)
            assert producer.flush(WAIT_S) == 0
            producer.produce(topic, value, key)

    def _transact(self, records: int) -> None:
        producer = self._producer(transactional_id="campaign")
        producer.init_transactions(WAIT_S)
        for _ in range(max(2, records // _IN_TRANSACTION)):
            producer.begin_transaction()
            for _ in range(_IN_TRANSACTION):
                self._produce(producer, TRANSACTED)
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
                end = self._ends_there(PLAIN)[0]
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
        """Of ``LOST``, whose last records one broker alone has. It is named while nobody leads, and from then on;
        at last it is mirrored anew."""
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
        return self._cluster.mirror(self._kafka.bootstrap, list(TOPICS), replication_factor=2)

    def _kill_a_mirror(self) -> None:
        """Some moment after it has appended something, or at its end where it finds nothing to do."""
        command = [sys.executable, "-m", "stratalog.jobs.mirror", "--from", self._kafka.bootstrap]
        command += ["--cluster", str(self._folder / "here" / "cluster.toml"), "--topics", ",".join(TOPICS)]
        before = self._ends_here()
        process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: process.poll() is not None or self._ends_here() != before, every_s=0.05)
            time.sleep(self._rng.random())
            self._counts["mirrors killed" if process.poll() is None else "mirrors ended before"] += 1
        finally:
            process.kill()
            process.wait()

    def _ends_here(self) -> list[object]:
        there = [name for name in TOPICS if name in self._cluster.image.topic_ids]
        return [row["log_end"] for name in there for row in self._cluster.describe(name).rows]

    def _ends_there(self, topic: str) -> list[int]:
        with closing(
            Consumer({**CLIENT, "bootstrap.servers": self._kafka.bootstrap, "group.id": "ends"})
        ) as asking:
            numbers = range(len(self._kafka.state(topic)))
            return [asking.get_watermark_offsets(TopicPartition(topic, number), WAIT_S)[1] for number in numbers]

    # ----------------------------------------------------------------------------------------- end

    def _end(self) -> None:
        read = self._ends_there(PLAIN)[1] * 2 // 3
        configs = {**CLIENT, "bootstrap.servers": self._kafka.bootstrap, "group.id": _GROUP}
        with closing(Consumer({**configs, "enable.auto.commit": False})) as consumer:
            consumer.commit(offsets=[TopicPartition(PLAIN, 1, read)], asynchronous=False)
        began, before = time.monotonic(), sum(map(int, map(str, self._ends_here())))
        for _ in range(_RUNS):
            if self._mirror().raise_for_failures().totals["lag"] == 0:
                break
        took_s = time.monotonic() - began
        offsets = sum(map(int, map(str, self._ends_here()))) - before
        compared = self._cluster.compare(self._kafka.bootstrap, list(TOPICS)).raise_for_failures()
        assert self._cluster.groups.committed(_GROUP)[PLAIN, 1].offset == read
        self._cluster.verify(deep=True).raise_for_failures()
        self._counts["records compared"] = int(compared.totals["here"] or 0)
        self._counts["offsets a second, filled"] = int(self._counts[f"records of {PLAIN}"] / self._filled_s)
        self._counts["offsets of the last mirror"] = offsets
        self._counts["offsets a second, mirrored last"] = int(offsets / took_s)
