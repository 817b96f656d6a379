"""The leader epochs and log starts of a cluster that is gone, given by the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stratalog.bridges.kafka_tier.indexes import parse_checkpoint
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicPartition


def epochs_by_hand(given: Mapping[str, str]) -> dict[TopicPartition, tuple[tuple[int, int], ...]]:
    """The leader epochs of partitions (``trips-0``), each from a broker's file ``leader-epoch-checkpoint``.

    Raises: InvalidCallError for a name that is not a partition, or a file that cannot be read or has a newer
    version; CorruptionError for a damaged file.
    """
    found = {}
    for name, path in given.items():
        key, what = _partition(name, "epochs"), f"the leader epochs of {name} in {path}"
        try:
            found[key] = parse_checkpoint(Path(path).read_bytes(), what)
        except OSError as error:
            raise InvalidCallError(f"{what} cannot be read: {error.strerror}") from error
    return found


def log_starts_by_hand(given: Mapping[str, str | int]) -> dict[TopicPartition, int]:
    """The log starts of partitions (``trips-0``). Raises: InvalidCallError for a name that is not a partition, or
    a value that is not an offset.
    """
    found = {}
    for name, offset in given.items():
        if not str(offset).isdecimal():
            raise InvalidCallError(f"log_starts: {offset!r} of {name} is not an offset")
        found[_partition(name, "log_starts")] = int(offset)
    return found


def _partition(name: str, option: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    if not topic or not partition.isdecimal():
        raise InvalidCallError(f"{option}: {name!r} is not a partition: write TOPIC-PARTITION, such as trips-0")
    return topic, int(partition)
