"""An append whose first finished task kills its worker, run by ``test_append`` as a separate program, with the
folder to work in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stratalog.engine.cluster.parts import with_parts
from stratalog.partitions.clock import Clock
from stratalog.partitions.store import StagedWriter, Store, StoreOptions, open_store
from stratalog.partitions.store.local import LocalStore
from tests.spark.spark_cluster import write_cluster_file


class DyingStore(LocalStore):
    """The first process to append to a topic dies as soon as the file has its name."""

    def __reduce__(self) -> tuple[type[DyingStore], tuple[str]]:  # type: ignore[override]
        return DyingStore, (self.root,)

    def stage_writer(self, name: str) -> StagedWriter:
        staged = super().stage_writer(name)
        commit = staged.commit

        def and_die() -> bool:
            created = commit()
            marker = Path(self.root).parent / "died"
            if "/t-" in name and not marker.exists():
                marker.touch()
                os._exit(9)
            return created

        staged.commit = and_die  # type: ignore[method-assign]
        return staged


def opener(uri: str, options: StoreOptions, clock: Clock) -> Store:
    """Brokers let processes die, the remote tier does not."""
    path = uri.removeprefix("file://")
    return open_store(uri, options, clock) if path.endswith("remote") else DyingStore(path)


def main(folder: Path) -> None:
    from stratalog import Cluster, spark_session

    spark = spark_session("dying", master="local[2,4]", settings={"spark.speculation": "true"})
    cluster = with_parts(Cluster, opener=opener).format(write_cluster_file(folder), spark)
    cluster.topics.create("t", partitions=2, replication_factor=2)
    source = spark.range(40).coalesce(2).selectExpr("cast(id AS STRING) AS value", "id % 2 AS p")  # not "small"
    report = cluster.append("t", source, partition="p").raise_for_failures()
    outcomes = ",".join(sorted(str(row["outcome"]) for row in report.rows))
    back = cluster.read("t")
    print("died", "yes" if (folder / "died").exists() else "no")
    print("outcomes", outcomes)
    print("records", back.count(), "distinct", back.select("value").distinct().count())
    cluster.verify(deep=True).raise_for_failures()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
