"""Mirrors topics of a real Kafka with tiered storage, through the broker and from their tier.

    python -m bench.kafka_tier --bytes 1GB --partitions 8 --topics 3

The benchmark starts a broker with ``LocalTieredStorage``, fills the topics, and waits until the broker has
uploaded all but the active segments, and deleted them from its own disk. It prints the records per second of both
mirrors, the bytes that the broker sent for the second one, the bytes that a read of 1 % by time reads, and a
task's memory. The second mirror reaches the broker through a counting proxy in this process. With
``--mirror-maker``, Kafka's MirrorMaker then copies the first topic into another broker, as in ``bench.mirroring``:
its rate is the rate of the second half of its records.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pyarrow.compute as pc
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import kafka_topics
from bench.bench import TOPIC, cluster_file, pairs_of_records
from bench.kafka_server import PINS, KafkaNode, broker_properties, running_kafka
from bench.measuring import in_child
from bench.memory import own_peak_so_far
from bench.mirror_maker import MirrorMaker
from bench.s3_server import HOST, free_ports
from stratalog import Cluster, FirstAt, KafkaTier, KafkaTierOptions
from stratalog.bridges.kafka_tier.reading import TierTask, read_task
from stratalog.jobs.arguments import size
from stratalog.jobs.jars import fetch_jars, jar_folder
from stratalog.partitions.identity import random_id
from stratalog.partitions.isolation import Isolation

RECORD_BYTES = 1024
SEGMENT_BYTES = 16 * 1024 * 1024
SEGMENT_MS = 20_000
_WITHIN_S = 600.0
_CONFIGS = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "segment.bytes": str(SEGMENT_BYTES),
    "segment.ms": str(SEGMENT_MS),
    "file.delete.delay.ms": "0",
}
_SETTINGS = """remote.log.storage.system.enable=true
remote.log.manager.task.interval.ms=500
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
log.retention.check.interval.ms=500
log.initial.task.delay.ms=0
"""


class Counted:
    """A proxy to one port, which counts the bytes that come back."""

    def __init__(self, port: int, to: int) -> None:
        self.sent = 0
        self._to = to
        self._listening = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                there, _ = self._listening.accept()
                back = socket.create_connection((HOST, self._to))
                for one, other, count in ((there, back, False), (back, there, True)):
                    threading.Thread(target=self._pass_on, args=(one, other, count), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, count: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 18):
                self.sent += len(data) if count else 0
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


@contextmanager
def tiered_broker(folder: Path) -> Iterator[tuple[str, str, Counted]]:
    """Start a broker with tiered storage; yields its address, its address through the proxy, and the proxy."""
    fetch_jars(jar_folder(), PINS)
    port, controller, behind, counted = free_ports(4)
    text = broker_properties(1, port, controller) + _SETTINGS + f"rsm.config.dir={folder / 'remote'}\n"
    text += (
        f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller},COUNTED://{HOST}:{behind}\n"
        f"advertised.listeners=PLAINTEXT://{HOST}:{port},COUNTED://{HOST}:{counted}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,COUNTED:PLAINTEXT\n"
    )
    node = KafkaNode(folder, random_id(), text, ("kafka-broker", "kafka-tiers"))
    with closing(Counted(counted, behind)) as proxy:
        try:
            node.start()
            yield f"{HOST}:{port}", f"{HOST}:{counted}", proxy
        finally:
            node.kill()


def fill(server: str, topics: Sequence[str], partitions: int, records: int) -> None:
    """Write this number of records to each topic, in batches of 16 KiB, as Java's producer makes them, and one
    more to each partition, which begins another segment."""
    admin = AdminClient({"bootstrap.servers": server})
    for made in admin.create_topics(
        [NewTopic(topic, partitions, 1, config=_CONFIGS) for topic in topics]
    ).values():
        made.result(60)
    producer = Producer(kafka_topics.producing(server) | {"batch.size": 16_384})
    for topic in topics:
        for number, (key, value) in enumerate(pairs_of_records(records, 382)):
            kafka_topics.send(producer, topic, number % partitions, key, value)
        producer.flush(600)
    time.sleep(SEGMENT_MS / 1000 + 1)
    for topic, partition in product(topics, range(partitions)):
        kafka_topics.send(producer, topic, partition, b"last", b"last")
    producer.flush(600)


def wait_for_tier(open_tier: str, server: str, ends: list[int]) -> KafkaTier:
    """Wait until the tier has all but the last segments."""
    give_up, seen, since = time.monotonic() + _WITHIN_S, -1, time.monotonic()
    while time.monotonic() < give_up:
        with suppress(Exception):
            tier = KafkaTier.open(open_tier, layout="local", bootstrap=server)
            tiered = sum(int(row["end"] or 0) for row in tier.describe().rows)
            if tiered != seen:
                seen, since = tiered, time.monotonic()
            elif time.monotonic() - since > 10 and tiered > 0.5 * sum(ends):
                return tier
        time.sleep(1)
    raise SystemExit("the broker does not upload its segments")


def mirrored(folder: Path, server: str, topics: Sequence[str], tier: str | None) -> tuple[float, float, int, int]:
    """The seconds, the CPU seconds, the records, and the number of records that came from the tier."""
    (folder / "remote").mkdir(parents=True)
    (folder / "broker-1").mkdir()
    with closing(Cluster.format(cluster_file(folder, folder.name, 1, str(folder / "remote")))) as cluster:
        began, processor = time.monotonic(), time.process_time()
        report = cluster.mirror(
            list(topics), server, tier=KafkaTierOptions(tier, "local") if tier else None, replication_factor=1
        ).raise_for_failures()
        spent = time.monotonic() - began, time.process_time() - processor
        cluster_records = int(report.totals["records"] or 0)
        for note in report.notes:
            print(f"  note: {note}")
    while folder.exists():  # a merge in the background may still write
        shutil.rmtree(folder, ignore_errors=True)
    return *spent, cluster_records, int(report.totals.get("from_tier") or 0)


def by_mirror_maker(folder: Path, server: str, topic: str, partitions: int, records: int) -> tuple[float, float]:
    """The seconds, and the CPU seconds, of MirrorMaker's process, which copies from the broker into another
    broker.
    """
    folder.mkdir()
    with running_kafka(folder) as target:
        # The target has no tier, and refuses the configs of a tier.
        maker = MirrorMaker(folder / "maker", server, target, "source", topic, "config.properties.exclude = .*\n")
        return maker.copy(partitions, records)


def task_memory(task: TierTask) -> tuple[int, int, int]:
    """The peak memory of this process before and after it reads a task, and the number of records."""
    before = own_peak_so_far()
    records = sum(rows.num_rows for rows in read_task(task))
    return before or 0, own_peak_so_far() or 0, records


def one_percent(tier: KafkaTier, topic: str) -> tuple[int, int]:
    """Records and bytes of a read of 1 % of a topic's time, by ``FirstAt``."""
    whole = tier.plan(topic)
    first = min(
        pc.min(next(read_task(task)).column("timestamp")).as_py() for task in whole.tasks if not task.piece.start
    )
    last = max(task.piece.segment.max_timestamp_ms for task in whole.tasks)
    end = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=last)
    start = first + (end - first) / 2
    before = tier.store.counts.snapshot()
    rows = tier.read_arrow(topic, start=FirstAt(start), end=FirstAt(start + (end - first) / 100)).read_all()
    return rows.num_rows, (tier.store.counts - before).read_bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=size, default=size("1GB"), metavar="SIZE", help="of a topic's values")
    parser.add_argument("--partitions", type=int, default=8, metavar="N", help="of each topic")
    parser.add_argument("--topics", type=int, default=1, metavar="N")
    parser.add_argument("--turns", type=int, default=2, metavar="N", help="how often each mirror runs")
    parser.add_argument("--mirror-maker", action="store_true", help="measure Kafka's MirrorMaker as well")
    given = parser.parse_args()
    records = given.bytes // RECORD_BYTES
    topics = [f"{TOPIC}-{number}" for number in range(given.topics)]
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as named:
        folder = Path(named)
        (folder / "kafka").mkdir()
        with tiered_broker(folder / "kafka") as (server, through, proxy):
            fill(server, topics, given.partitions, records)
            ends = [end for topic in topics for end in kafka_topics.log_ends(server, topic, given.partitions)]
            address = str(folder / "kafka" / "remote" / "kafka-tiered-storage")
            tier = wait_for_tier(address, server, ends)
            rows = tier.describe().rows
            all_bytes = sum(int(row["bytes"] or 0) for row in rows)
            tiered = sum(int(row["end"] or 0) for row in rows)
            print(
                f"{sum(ends):,} records, {given.topics} topics, {given.partitions} partitions of each; tiered: "
                f"{tiered:,}, {all_bytes:,} bytes",
                flush=True,
            )
            for turn in range(given.turns):
                for what, of, at in (("through the broker", None, server), ("from the tier", address, through)):
                    before = proxy.sent
                    spent, core, copied, from_tier = mirrored(
                        folder / f"{turn}-{at.rpartition(':')[2]}", at, topics, of
                    )
                    sent = f", broker sent {proxy.sent - before:,} bytes" if of else ""
                    print(
                        f"mirror {what}: {spent:.1f} s, {copied / spent:,.0f} records/s, {copied / core:,.0f} per "
                        f"second and core, {from_tier:,} of {copied:,} from the tier{sent}",
                        flush=True,
                    )
            if given.mirror_maker:
                held = sum(ends[: given.partitions])
                spent_s, core_s = by_mirror_maker(folder / "target", server, topics[0], given.partitions, held)
                print(
                    f"MirrorMaker: {spent_s:.1f} s, {held / spent_s:,.0f} records/s, "
                    f"{held / core_s:,.0f} per second and core",
                    flush=True,
                )
            rows_read, touched = one_percent(tier, topics[0])
            topic_bytes = sum(int(row["bytes"] or 0) for row in rows if row["topic"] == topics[0])
            print(
                f"1 % of a topic by time: {rows_read:,} records, {touched:,} bytes touched, "
                f"{touched / topic_bytes:.2%} of all"
            )
            task = max(
                tier.plan_all(topics[0], 0, None, Isolation.READ_COMMITTED).tasks,
                key=lambda one: one.piece.segment.size_bytes,
            )
            base, peak, in_task = in_child(task_memory, task)
            print(
                f"a task with {in_task:,} committed records, {task.piece.segment.size_bytes:,} bytes: at most "
                f"{peak:,} bytes of memory, {base:,} before it began"
            )


if __name__ == "__main__":
    main()
