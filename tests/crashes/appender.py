"""An appender of the unattended run: small appends with acks=all, one after the other, until SIGTERM. It may be
killed at any moment and started again.

    python -m tests.crashes.appender CLUSTER_FILE NAME SEED ACKS_FILE RATE

The records of a sequence follow from the seed, so an append without an answer is repeated unchanged. The appender
whose name is ``TRANSACTIONAL`` writes to two topics in a transaction each time, and stores its last sequence with
them, as the metadata of a group's offset. Each acknowledged append is a line of ``ACKS_FILE``: ``Ack``.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from stratalog import Cluster
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.records import physical_schema

KEPT, TIERED, EXPIRING, LEDGER = "kept", "tiered", "expiring", "ledger"
PARTITIONS = {KEPT: 3, TIERED: 4, EXPIRING: 2, LEDGER: 2}
TRANSACTIONAL = "ledger"
PAUSE_S = 0.3
"""The pause after an append without a positive answer."""

Values = dict[str, dict[int, list[str]]]
"""Values, keyed by topic and partition."""


@dataclass(frozen=True, slots=True)
class Ack:
    """A sequence that is durably in the log."""

    sequence: int
    seconds: float
    """The time from the first attempt of this process to the answer."""
    attempts: int
    requests: int


def records_of(seed: int, name: str, sequence: int) -> Values:
    """The records of one append, or of one transaction."""
    rng = random.Random(f"{seed} {name} {sequence}")
    topics = [TIERED, LEDGER] if name == TRANSACTIONAL else [rng.choice([KEPT, TIERED, EXPIRING])]
    found: Values = {}
    for topic in topics:
        chosen = sorted(rng.sample(range(PARTITIONS[topic]), k=rng.randint(1, 2)))
        found[topic] = {
            partition: [
                f"{name} {sequence:06} {number:02} {rng.randbytes(80).hex()}"
                for number in range(rng.randint(5, 30))
            ]
            for partition in chosen
        }
    return found


def acks(file: Path) -> list[Ack]:
    """The acknowledgements in order. A killed process leaves whole lines."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Ack(**json.loads(line)) for line in lines]


def _batches(values: dict[int, list[str]]) -> dict[int, list[pa.RecordBatch]]:
    return {partition: [_batch(texts)] for partition, texts in values.items()}


def _batch(texts: list[str]) -> pa.RecordBatch:
    schema = physical_schema()
    columns = {
        "timestamp": pa.nulls(len(texts), schema.field("timestamp").type),
        "key": pa.nulls(len(texts), pa.binary()),
        "value": pa.array([text.encode() for text in texts], pa.binary()),
        "headers": pa.nulls(len(texts), schema.field("headers").type),
    }
    return pa.RecordBatch.from_pydict(columns)


def _append(cluster: Cluster, name: str, sequence: int, values: Values) -> None:
    [(topic, of_partitions)] = values.items()
    cluster.append_batches(topic, _batches(of_partitions), producer=name, sequence=sequence).raise_for_failures()


def _transact(cluster: Cluster, name: str, sequence: int, values: Values) -> None:
    """Append the sequence unless an earlier attempt, whose answer was lost, has committed it."""
    place = (LEDGER, 0)
    with cluster.transactions.begin(name) as transaction:
        if place in (found := cluster.groups.committed(name)) and int(found[place].metadata) >= sequence:
            return
        for topic, of_partitions in values.items():
            transaction.append_batches(topic, _batches(of_partitions))
        transaction.commit_offsets(name, {place: OffsetAndMetadata(0, metadata=str(sequence))})


def _run(cluster: Cluster, name: str, seed: int, file: Path, rate: float, stop: Callable[[], bool]) -> None:
    append = _transact if name == TRANSACTIONAL else _append
    sequence = len(acks(file))
    with file.open("a", encoding="utf-8", buffering=1) as lines:
        while not stop():
            began, attempts, values = time.monotonic(), 0, records_of(seed, name, sequence)
            with cluster.measured() as measure:
                while True:
                    attempts += 1
                    try:
                        append(cluster, name, sequence, values)
                        break
                    except StratalogError as error:
                        print(f"{name} {sequence}: {error.code}: {error}", flush=True)
                        time.sleep(PAUSE_S)
            seconds = time.monotonic() - began
            ack = Ack(sequence, round(seconds, 4), attempts, measure.counts.requests)
            lines.write(json.dumps(asdict(ack)) + "\n")
            sequence += 1
            time.sleep(max(0.0, 1 / rate - seconds))


def main() -> None:
    """See the module. An error that is not one of stratalog's ends the process."""
    cluster_file, name, seed, file, rate = sys.argv[1:]
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    cluster = None
    while cluster is None:
        try:
            cluster = Cluster.open(cluster_file)
        except StratalogError as error:
            print(f"{name}: {error.code}: {error}", flush=True)
            time.sleep(PAUSE_S)
    _run(cluster, name, int(seed), Path(file), float(rate), stopped.is_set)
    cluster.close()


if __name__ == "__main__":
    main()
