"""Streams with a wrong checkpoint: restored from a copy, lost, or shared by two queries (protocol, I3 and I11).

A batch that is planned again from an older checkpoint has other rows under the same number. They would count as
duplicates of the topic's records, and be silently lost.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from stratalog import Cluster
from tests.depth import at_depth
from tests.spark.streams import VALUE, Numbers, source, stream_cluster, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BATCHES = 9
ROWS = 6


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = stream_cluster(spark, folder)
    made.topics.create("numbers", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    Numbers(made, spark, "numbers").append(BATCHES * ROWS)
    return made


class Copy:
    """A stream of the numbers into a topic, by ``stream_writer`` or by the format's own sink."""

    def __init__(self, way: str, cluster: Cluster, spark: SparkSession, folder: Path, checkpoint: Path) -> None:
        self.topic = f"{way}-{checkpoint.name}"
        self.checkpoint = checkpoint
        self._way, self._cluster, self._spark, self._folder = way, cluster, spark, folder
        cluster.topics.create(self.topic, partitions=2, replication_factor=2, key="STRING", value=VALUE)

    def run(
        self,
        rows: int = ROWS,
        checkpoint: Path | None = None,
        producer: str = "copy",
        on_changed_replay: str = "refuse",
        **options: object,
    ) -> None:
        """Run to the end, in batches of this number of rows."""
        frame = source(self._spark, self._folder, "numbers", maxRowsPerTrigger=rows, **options)
        if self._way == "writer":
            writer = self._cluster.stream_writer(
                self.topic,
                key="key",
                value="value",
                producer=producer,
                on_changed_replay=on_changed_replay,  # type: ignore[arg-type]
            )
            stream = frame.writeStream.foreachBatch(writer)
        else:
            records = self._cluster.records(self.topic, frame, key="key", value="value")
            stream = records.writeStream.format("stratalog").option("cluster", str(self._folder / "cluster.toml"))
            stream = stream.option("topic", self.topic).option("producer", producer)
            stream = stream.option("onChangedReplay", on_changed_replay)
        to_its_end(stream, checkpoint or self.checkpoint)

    def put_back(self, batches: int, saved: Path) -> None:
        """Restore the checkpoint of this number of batches before its end."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(saved, self.checkpoint)
        for folder in ("offsets", "commits"):
            for file in (self.checkpoint / folder).glob("[0-9]*"):
                if int(file.name) >= BATCHES - batches:
                    file.unlink()
            for file in (self.checkpoint / folder).glob(".*.crc"):
                file.unlink()

    def found(self) -> Counter[int]:
        """The numbers in the topic."""
        return Counter(row.n for row in self._cluster.read(self.topic).select("value.n").collect())

    def refused(self, **options: object) -> str:
        """The error of a run that would append other rows; it stores none."""
        before = self.found()
        with pytest.raises(StreamingQueryException) as caught:
            self.run(**options)  # type: ignore[arg-type]
        text = str(caught.value)
        assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in text, text
        assert "Restore the newer checkpoint" in text, text
        assert self.found() == before
        return text


@pytest.mark.long("starts several queries, one after another")
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["writer", "sink"])
def test_a_checkpoint_that_was_restored_loses_nothing_and_says_so(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path, way: str
) -> None:
    """By as many batches as are compared, and by more."""
    copy = Copy(way, cluster, spark, folder, tmp_path / "cp")
    copy.run()
    every = Counter(range(BATCHES * ROWS))
    assert copy.found() == every
    saved = shutil.copytree(copy.checkpoint, tmp_path / "saved")
    for batches in (5, 7, 1)[
        : at_depth(test=2, nightly=3)
    ]:  # the end of the log has five, its files have the others
        copy.put_back(batches, saved)
        copy.run()  # with the same rows in each batch: nothing is missing
        assert copy.found() == every
        copy.put_back(batches, saved)
        assert "with other records" in copy.refused(rows=ROWS - 1)
    copy.put_back(1, saved)
    copy.run(rows=ROWS - 1, producer="again")  # the README's case: nothing is lost, the last batch occurs twice
    assert copy.found() == every + Counter(dict.fromkeys(copy.found() - every, 1))
    assert (copy.found() - every).total() == ROWS


@pytest.mark.long("waits until Spark sees that two queries share a checkpoint")
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["writer", "sink"])
def test_a_query_whose_checkpoint_is_shared_by_another_one_is_ended(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path, way: str
) -> None:
    """Both have one id, and the same batch numbers."""
    copy = Copy(way, cluster, spark, folder, tmp_path / "shared")
    copy.run()
    saved = shutil.copytree(copy.checkpoint, tmp_path / "of-another")
    copy.put_back(2, saved)
    other = shutil.copytree(copy.checkpoint, tmp_path / "other")
    copy.run()
    copy.refused(rows=2 * ROWS, checkpoint=other)
    copy.run(
        rows=2 * ROWS, checkpoint=other, on_changed_replay="accept"
    )  # with the list of the records that are missing then
    assert copy.found() == Counter(range(BATCHES * ROWS))


@pytest.mark.nightly
@pytest.mark.long("starts several queries, one after another")
def test_a_lost_checkpoint_is_replaced_by_one_that_starts_after_the_records_in_the_topic(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The procedure of the README."""
    copy = Copy("writer", cluster, spark, folder, tmp_path / "lost")
    copy.run(group="copy-of-numbers")
    shutil.rmtree(copy.checkpoint)
    known = cluster.groups.committed("copy-of-numbers", ["numbers"])
    behind = {str(partition): offset.offset for (_, partition), offset in known.items()}
    copy.run(startingOffsets=json.dumps({"numbers": behind}))
    assert copy.found() == Counter(range(BATCHES * ROWS))
