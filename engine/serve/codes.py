"""Kafka's numbers of errors, for what keeps a request from its answer; clients get no more than the number, so the
words go to the log ``stratalog.serve``, each once."""

from __future__ import annotations

import logging
from functools import lru_cache

from stratalog.partitions.errors import (
    CorruptionError,
    InvalidGroupIdError,
    InvalidReplicationFactorError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    RetriableError,
    StaleMetadataError,
    StorageAuthorizationError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.printable import printable

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
COORDINATOR_NOT_AVAILABLE = 15
UNKNOWN_MEMBER_ID = 25
TOPIC_AUTHORIZATION_FAILED = 29
FETCH_SESSION_ID_NOT_FOUND = 70

_UNKNOWN_SERVER_ERROR, _CORRUPT_MESSAGE, _INVALID_REPLICATION_FACTOR = -1, 2, 38
_KAFKA_STORAGE_ERROR = 56
_GROUP_AUTHORIZATION_FAILED = 30

_OF_CLIENTS: tuple[tuple[type[StratalogError], int], ...] = (
    (UnknownTopicOrPartitionError, UNKNOWN_TOPIC_OR_PARTITION),
    (OffsetOutOfRangeError, 1),
    (OffsetMetadataTooLargeError, 12),
    (InvalidGroupIdError, 24),
)
"""Errors that a client makes by itself."""

_log = logging.getLogger("stratalog.serve")


def error_code(error: StratalogError, *, of_group: bool = False) -> int:
    """The number that clients are told. One that may pass is KAFKA_STORAGE_ERROR, of a group
    COORDINATOR_NOT_AVAILABLE: these every client tries again.
    """
    for kind, code in _OF_CLIENTS:
        if isinstance(error, kind):
            return code
    _tell(f"{error.code}: {error}")
    match error:
        case StorageAuthorizationError():
            return _GROUP_AUTHORIZATION_FAILED if of_group else TOPIC_AUTHORIZATION_FAILED
        case RetriableError() | StaleMetadataError():
            return COORDINATOR_NOT_AVAILABLE if of_group else _KAFKA_STORAGE_ERROR
        case CorruptionError():
            return _CORRUPT_MESSAGE
        case InvalidReplicationFactorError():  # of __consumer_offsets, which the first commit makes
            return _INVALID_REPLICATION_FACTOR
    return _UNKNOWN_SERVER_ERROR


@lru_cache(maxsize=256)
def _tell(message: str) -> None:
    _log.warning("%s", printable(message))
