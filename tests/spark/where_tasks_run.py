"""Print under spark-submit where Python tasks run: a line ``TASK`` with a JSON object for each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The place of a task."""
    import stratalog

    for batch in batches:
        found = {
            "worker": os.environ.get("STRATALOG_TEST_WORKER"),
            "stratalog": stratalog.__file__,
            "prefix": sys.prefix,
            "folder": os.getcwd(),
            "path": sys.path,
        }
        yield pa.RecordBatch.from_pydict({"place": [json.dumps(found)] * batch.num_rows})


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    for row in spark.range(0, 4, 1, 4).mapInArrow(where, "place string").collect():
        print("TASK", row.place)
