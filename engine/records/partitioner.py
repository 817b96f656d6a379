"""The partition of a record's key, by the topic's ``partitioner``: in Spark as in this process. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.engine.config.topic_config import CRC32, MURMUR2
from stratalog.engine.driver.plain_values import raw_column
from stratalog.engine.records.kafka_hash import crc32_of, murmur2_of
from stratalog.engine.records.spark_hash import hashes_of

_POSITIVE = np.int32(0x7FFFFFFF)


def partitions_of(keys: pa.Array, count: int, partitioner: str) -> npt.NDArray[np.int64]:
    """The partition, in ``[0, count)``, of each key; that of a null means nothing.

    Two are of the bytes that clients of Kafka see (``raw_column``): ``murmur2`` is ``toPositive(murmur2(bytes))
    % count``, as Java's DefaultPartitioner and librdkafka's ``murmur2_random`` have it; ``crc32`` is
    ``crc32(bytes) % count``, as librdkafka's default has it, ``consistent_random``.

    Raises: InvalidRecordError for keys of a type of which only Spark knows the hash, of ``spark_hash``.
    """
    if partitioner == MURMUR2:
        return (murmur2_of(raw_column(keys)) & _POSITIVE).astype(np.int64) % count
    if partitioner == CRC32:
        return crc32_of(raw_column(keys)).astype(np.int64) % count
    return hashes_of(keys) % count
