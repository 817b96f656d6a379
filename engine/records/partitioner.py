"""Computes the partition of a record's key, by the topic's ``partitioner``, with the same result as in Spark.
Pure.

``murmur2_of`` and ``crc32_of`` are the hashes of Kafka's clients, over whole columns.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import isal_zlib

from stratalog.engine.config.topic_config import CRC32, MURMUR2
from stratalog.engine.driver.plain_values import raw_column
from stratalog.engine.records.spark_hash import hashes_of

_SEED, _FACTOR = 0x9747B28C, 0x5BD1E995
_MASK = 0xFFFFFFFF
_FEW = 32
"""For fewer keys than this, hashing one by one is faster than hashing with numpy."""

_Words = npt.NDArray[np.uint32]


def murmur2_of(keys: pa.Array) -> npt.NDArray[np.int32]:
    """The hash of each key (BINARY); the hash of a null is meaningless."""
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    sizes = np.diff(starts)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    with np.errstate(over="ignore"):
        found = np.uint32(_SEED) ^ sizes.astype(np.uint32)
        _mix_words(found, data, starts[:-1], sizes // 4)
        tails = starts[:-1] + sizes // 4 * 4
        for byte in (2, 1, 0):
            here = np.flatnonzero(sizes % 4 > byte)
            found[here] ^= data[tails[here] + byte].astype(np.uint32) << np.uint32(8 * byte)
        found[here] *= np.uint32(_FACTOR)  # the keys with a tail of any length
        found ^= found >> np.uint32(13)
        found *= np.uint32(_FACTOR)
        found ^= found >> np.uint32(15)
    return found.view(np.int32)


def crc32_of(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """The CRC-32 of each key (BINARY); the CRC-32 of a null is meaningless."""
    at = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].tolist()
    data = memoryview(keys.buffers()[2] or b"")
    return np.fromiter((isal_zlib.crc32(data[start:end]) for start, end in pairwise(at)), np.uint32, len(keys))


def _mix_words(
    found: _Words, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], words: npt.NDArray[np.int64]
) -> None:
    """Mix the complete four-byte words (little-endian) of each key into its state, one word of all keys at a
    time."""
    here = np.flatnonzero(words)
    number = 0
    while len(here) >= _FEW:
        at = starts[here] + 4 * number
        word = np.zeros(len(here), np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        word *= np.uint32(_FACTOR)
        word ^= word >> np.uint32(24)
        word *= np.uint32(_FACTOR)
        found[here] = found[here] * np.uint32(_FACTOR) ^ word
        number += 1
        here = here[words[here] > number]
    for row in here.tolist():
        start, end = int(starts[row]) + 4 * number, int(starts[row]) + 4 * int(words[row])
        state = int(found[row])
        for (word_of_row,) in struct.iter_unpack("<I", data[start:end].tobytes()):
            mixed = word_of_row * _FACTOR & _MASK
            mixed = (mixed ^ mixed >> 24) * _FACTOR & _MASK
            state = state * _FACTOR & _MASK ^ mixed
        found[row] = state


_POSITIVE = np.int32(0x7FFFFFFF)


def partitions_of(keys: pa.Array, count: int, partitioner: str) -> npt.NDArray[np.int64]:
    """The partition of each key, in ``[0, count)``; the partition of a null key is meaningless.

    ``murmur2`` and ``crc32`` hash the bytes that Kafka clients see (``raw_column``): ``toPositive(murmur2(bytes))
    % count``, like Java's DefaultPartitioner and librdkafka's ``murmur2_random``; ``crc32(bytes) % count``, like
    librdkafka's default ``consistent_random``. ``spark_hash`` is Spark's hash.

    Raises: InvalidRecordError for keys of a type whose hash only Spark knows.
    """
    if partitioner == MURMUR2:
        return (murmur2_of(raw_column(keys)) & _POSITIVE).astype(np.int64) % count
    if partitioner == CRC32:
        return crc32_of(raw_column(keys)).astype(np.int64) % count
    return hashes_of(keys) % count
