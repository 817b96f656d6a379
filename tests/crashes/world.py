"""A cluster of three folders, the source of its records, and the comparison of the two."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from stratalog import Cluster
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.replica import Replica
from stratalog.partitions.store.rules import STAGING_FOLDER
from tests.spark.reading_back import read_back
from tests.spark.spark_cluster import TIERED, write_cluster_file

TOPIC = "t"
PARTITIONS = 2
BATCH = 300
"""The number of records in an append."""

PRODUCERS = ("bulk", "stream")
_BEGIN = datetime(2013, 1, 1, tzinfo=UTC)


class World:
    """The cluster and its expected content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = write_cluster_file(folder, brokers=3)
        self.cluster = Cluster.format(self.file)
        self.cluster.topics.create(TOPIC, partitions=PARTITIONS, replication_factor=3, configs=TIERED)
        self.wanted: dict[int, dict[str, list[bytes]]] = {
            p: {producer: [] for producer in PRODUCERS} for p in range(PARTITIONS)
        }
        """The acknowledged or pending records, in order, keyed by partition and producer."""
        self._made = dict.fromkeys(PRODUCERS, 0)

    def arriving(self, producer: str) -> Path:
        """The folder of a producer's input."""
        return self.folder / f"in-{producer}"

    def make_input(self, producer: str) -> tuple[Path, int]:
        """The next batch of a producer: its file, and its sequence."""
        sequence, self._made[producer] = self._made[producer], self._made[producer] + 1
        numbers = range(sequence * BATCH, (sequence + 1) * BATCH)
        values = [f"{producer} {number}".encode() for number in numbers]
        partitions = [number % 7 % PARTITIONS for number in numbers]
        table = pa.table(
            {
                "k": [f"k{number % 7}".encode() for number in numbers],
                "v": values,
                "p": pa.array(partitions, pa.int32()),
                "at": pa.array(
                    [_BEGIN + timedelta(seconds=number) for number in numbers], pa.timestamp("us", "UTC")
                ),
            }
        )
        self.arriving(producer).mkdir(exist_ok=True)
        file = self.arriving(producer) / f"{sequence:05}.parquet"
        pq.write_table(table, file)
        for partition, value in zip(partitions, values, strict=True):
            self.wanted[partition][producer].append(value)
        return file, sequence

    def names(self) -> set[str]:
        """All files of brokers and of the remote tier, including staged ones."""
        roots = [*self.folder.glob("b?"), self.folder / "remote"]
        return {str(path) for root in roots for path in root.rglob("*") if path.is_file()}

    def staged(self) -> int:
        """The number of staged files that dead writers have left."""
        return sum(f"/{STAGING_FOLDER}/" in name for name in self.names())

    def findings(self) -> list[str]:
        """The faults in files that have a name, found by reading every byte."""
        return [f"{failure.item}: {failure.message}" for failure in self.cluster.verify(deep=True).failures]

    def check_contents(self) -> int:
        """Check that every record of the source exists once, each producer's in order; returns the number."""
        found = read_back(self.cluster, TOPIC)
        self._compare(found)
        return sum(map(len, found.values()))

    def converge(self) -> None:
        """Run the jobs until no work is left."""
        for step in (self.cluster.replicate, self.cluster.tier, self.cluster.retain, self.cluster.retain):
            step().raise_for_failures()
        self.cluster.vacuum().raise_for_failures()

    def check_replicas(self) -> None:
        """Check that every replica has the same files, byte for byte, under the same names: those of one log, and
        its registers."""
        image = self.cluster.image
        for view in image.views(TOPIC):
            assert set(view.isr) == set(view.replicas)
            copies = []
            for broker in view.replicas:
                log = self._replica(view.partition, broker).log()
                store = self.cluster.stores[broker]
                copies.append({str(link.name): store.read(link.file.object.name) for link in log.chain})
                assert {str(file.name) for file in log.listing.data} == copies[-1].keys(), (
                    "a file is not in the log"
                )
            assert all(copy == copies[0] for copy in copies)

    def check_remote(self) -> int:
        """Check that deltalake reads a prefix of the source, each record once; returns the number."""
        (folder,) = (self.folder / "remote").glob(f"{TOPIC}-*")
        rows = DeltaTable(str(folder)).to_pyarrow_table(columns=["partition", "offset", "value"])
        ends: dict[int, dict[int, bytes]] = {p: {} for p in range(PARTITIONS)}
        for partition, offset, value in zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True):
            assert offset not in ends[partition], f"the remote table holds offset {offset} twice"
            ends[partition][offset] = value
        local = read_back(self.cluster, TOPIC)
        for partition, records in ends.items():
            assert [records[offset] for offset in range(len(records))] == local[partition][: len(records)]
        return sum(map(len, ends.values()))

    def _replica(self, partition: int, broker: int) -> Replica:
        view = self.cluster.image.views(TOPIC)[partition]
        return PartitionReplicas(view, self.cluster.stores).replica(broker)

    def _compare(self, found: dict[int, list[bytes]]) -> None:
        for partition, of_producers in self.wanted.items():
            records = found.get(partition, [])
            for producer, wanted in of_producers.items():
                own = [value for value in records if value.startswith(producer.encode())]
                assert own == wanted, (
                    f"{TOPIC}-{partition}: the records of {producer!r} are not those of the source"
                )
            assert len(records) == sum(map(len, of_producers.values()))
