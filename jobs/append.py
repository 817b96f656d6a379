"""Append data that Spark can read to a topic: once, or batch by batch as a stream.

  stratalog append flights --input flights.parquet --key tailnum --timestamp time_hour \\
      --producer loader --sequence 7
  stratalog append flights --input incoming --option maxFilesPerTrigger=1 --key tailnum \\
      --stream --checkpoint incoming.checkpoint --producer incoming
  stratalog append late_flights --input flights --format stratalog --where "value.dep_delay > 60" \\
      --key key --value value --stream --checkpoint late.checkpoint --producer late

With --producer and --sequence the records are appended once, even if the job runs again. The checkpoint of a
stream identifies its batches. --format stratalog streams from a topic of this cluster. Without --value, the value
for a typed topic is made from the input columns that have the names of the type's fields.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog import Report
from stratalog.jobs.arguments import PAIRS, check_options
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.progress import open_terminal
from stratalog.jobs.run import Job, JobMain
from stratalog.jobs.streaming import append_stream
from stratalog.partitions.errors import InvalidCallError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = "stratalog"
"""The Spark format that streams from topics."""

_NEEDS = (
    ("stream", "checkpoint"),
    ("stream", "producer"),
    ("checkpoint", "stream"),
    ("sequence", "producer"),
    ("producer_epoch", "producer"),
    ("on_changed_replay", "producer"),
    ("producer", "sequence", "stream"),
)
_METHOD = "producer.Producer.append"
_COLUMNS = ("key", "value", "partition", "headers", "timestamp")
_TOGETHER = ("topic", "frame", "order_by", "dry_run")
_FILES = frozenset({"parquet", "delta", "csv", "json", "orc", "text", "avro"})
_ELSEWHERE = frozenset({"SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"})
"""Environment variables. If any of them is set, Spark may use a file system other than this machine's."""
_GLOB = frozenset("*?[{")
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, _METHOD, only=["topic", "dry_run"])
    source = parser.add_argument_group("input")
    source.add_argument(
        "--input",
        metavar="PATH",
        required=True,
        help="path of the input; with --format stratalog, the name of a topic",
    )
    source.add_argument(
        "--format",
        metavar="NAME",
        default="parquet",
        help="format of the input: parquet (default), delta, csv, json, stratalog ...",
    )
    source.add_argument("--option", default={}, **PAIRS, help="an option of Spark's reader; repeatable")
    source.add_argument(
        "--schema", metavar="DDL", help="schema of the input, for formats without a schema (csv, json)"
    )
    source.add_argument("--where", metavar="EXPR", help="append only the rows for which EXPR is true")
    source.add_argument(
        "--select",
        metavar="EXPR",
        action="append",
        help='columns to compute first, such as "air_time / 60 AS hours"; repeatable',
    )
    record = parser.add_argument_group("records (EXPR is an input column or an expression)")
    add_declared(record, _METHOD, only=(*_COLUMNS, "order_by"))
    how = parser.add_argument_group("append")
    add_declared(how, _METHOD, leave_out=(*_COLUMNS, *_TOGETHER))
    how.add_argument(
        "--stream", action="store_true", help="append the input that has arrived since the last run, in batches"
    )
    how.add_argument("--checkpoint", metavar="PATH", help="path where the stream stores its progress")


def append(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=_NEEDS, bars=[("stream", "sequence", "dry_run")])
    job.cluster().image.topic(given.topic)
    _check_exists(given)
    spark_bar = {"spark.ui.showConsoleProgress": "true"} if open_terminal() is not None else None
    cluster = job.on_spark(spark_bar)
    frame = prepared(given, read_input(given, job.session()))
    columns = {name: _column(getattr(given, name)) for name in _COLUMNS}
    if not given.stream:
        return call(cluster.append, given, frame=frame, **columns)
    writer = call(cluster.stream_writer, given, **columns)
    return append_stream(frame, given.checkpoint, partial(writer.append, check=False))


def _check_exists(given: argparse.Namespace) -> None:
    """Check, before Spark starts, that files of this machine exist. Spark itself checks paths that are
    elsewhere, and all paths if Spark's own configuration is elsewhere.

    Raises: InvalidCallError.
    """
    path = re.sub(r"^file:(?://)?(?=/)", "", given.input)
    elsewhere = _ELSEWHERE & os.environ.keys() or str(given.master).startswith("sc://")
    if given.format not in _FILES or elsewhere or "://" in path or _GLOB.intersection(path):
        return
    if not os.path.exists(path):
        raise InvalidCallError(f"--input {given.input}: there is no such file or folder: {os.path.abspath(path)}")


def read_input(given: argparse.Namespace, spark: SparkSession) -> DataFrame:
    """Return the input, which is a stream with ``--stream``. A stream of files has the schema of the current
    files."""
    if given.format == FORMAT:
        if not given.stream:
            raise InvalidCallError(f"--format {FORMAT} can only be read as a stream: add --stream")
        topic: Any = spark.readStream.format(FORMAT).options(**{"cluster": str(given.cluster), **given.option})
        for name, value in (("credentials", given.credentials), ("clusterKeyFile", given.cluster_key_file)):
            if value is not None:
                topic = topic.option(name, value)
        return _loaded(topic, given.input)
    still: Any = spark.read.format(given.format).options(**given.option)
    if given.schema is not None:
        still = still.schema(given.schema)
    if not given.stream:
        return _loaded(still, given.input)
    moving: Any = spark.readStream.format(given.format).options(**given.option)
    if given.format != "delta":
        moving = moving.schema(_loaded(still, given.input).schema)
    return _loaded(moving, given.input)


def prepared(given: argparse.Namespace, frame: DataFrame) -> DataFrame:
    """Apply ``--where`` and ``--select`` to ``frame``."""
    if given.where is not None:
        frame = frame.where(given.where)
    return frame if given.select is None else frame.selectExpr(*given.select)


def _loaded(reader: Any, path: str) -> DataFrame:
    frame: DataFrame = reader.load(path)
    return frame


def _column(text: str | None) -> Column | str | None:
    """Return a column name unchanged, so that errors can name the column, and any other text as an expression."""
    if text is None or _NAME.fullmatch(text):
        return text
    from pyspark.sql import functions

    return functions.expr(text)


main = JobMain("append", __doc__, arguments, append, runs="session")


if __name__ == "__main__":
    sys.exit(main())
