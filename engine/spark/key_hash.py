"""The partition of a key, computed with a hash of Kafka's clients, as a function of columns. (Spark has no such
function.)
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from stratalog.engine.config.topic_config import PARTITIONER
from stratalog.engine.records.partitioner import partitions_of
from stratalog.engine.spark.versions import BY_ID, check_version, spark_version

HASH_NAME = "stratalog_partition"
"""The name of the function in Spark's plans."""
_TEXT_IS_JSON = BooleanType | ByteType | ShortType | IntegerType | LongType
"""Types whose text in Spark equals the JSON that is hashed."""


def by_key_hash(key: Column, key_type: DataType, partitions: int, partitioner: str) -> Column:
    """The partition of each key; see ``partitions_of``. Spark passes the keys to a Python process as Arrow
    columns. Spark 4.0 passes pandas columns instead, and cannot pass all types.

    Raises: InvalidCallError for a type that Spark 4.0 cannot pass unchanged.
    """
    if isinstance(key_type, _TEXT_IS_JSON):
        key = key.cast("string")
    if spark_version() >= BY_ID:
        from pyspark.sql.pandas.functions import arrow_udf

        def of_arrow(keys: pa.Array) -> pa.Array:
            return pa.array(partitions_of(keys, partitions, partitioner).astype(np.int32))

        of_arrow.__name__ = HASH_NAME
        hashed = cast(Any, arrow_udf)(of_arrow, "int")(key)
    else:
        if not isinstance(key_type, StringType | BinaryType | _TEXT_IS_JSON):
            check_version(
                BY_ID, f"{PARTITIONER} = {partitioner} of a key of {key_type.simpleString()}", "give partition="
            )
        import pandas as pd
        from pyspark.sql.pandas.functions import pandas_udf

        def of_pandas(keys: Any) -> Any:
            return pd.Series(partitions_of(pa.array(keys, pa.binary()), partitions, partitioner).astype(np.int32))

        of_pandas.__name__ = HASH_NAME
        of_pandas.__annotations__ = dict.fromkeys(("keys", "return"), pd.Series)  # Spark uses the annotations
        hashed = cast(Any, pandas_udf)(of_pandas, "int")(key.cast("binary"))
    return cast(Column, hashed)
