"""Maps errors to Kafka's numbers. Clients get only the number, so the logger ``stratalog.serve`` gets each text,
once.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from functools import lru_cache

from stratalog.partitions.errors import (
    CorruptionError,
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidReplicationFactorError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    RetriableError,
    StaleMetadataError,
    StorageAuthorizationError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.printable import printable


class ErrorCode(IntEnum):
    """Kafka's error numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REQUEST = 42
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    GROUP_MAX_SIZE_REACHED = 81
    UNKNOWN_TOPIC_ID = 100


_OF_CLIENTS: tuple[tuple[type[StratalogError], int], ...] = (
    (UnknownTopicOrPartitionError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (OffsetMetadataTooLargeError, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    (InvalidGroupIdError, ErrorCode.INVALID_GROUP_ID),
    (NonEmptyGroupError, ErrorCode.NON_EMPTY_GROUP),
    (GroupIdNotFoundError, ErrorCode.GROUP_ID_NOT_FOUND),
)
"""Errors that a client causes by its own request."""

_log = logging.getLogger("stratalog.serve")


def error_code(error: StratalogError, *, of_group: bool = False) -> int:
    """The number for clients. A temporary error becomes KAFKA_STORAGE_ERROR or, for a group,
    COORDINATOR_NOT_AVAILABLE; every client retries these.
    """
    for kind, code in _OF_CLIENTS:
        if isinstance(error, kind):
            return code
    _log_once(f"{error.code}: {error}")
    match error:
        case StorageAuthorizationError():
            return ErrorCode.GROUP_AUTHORIZATION_FAILED if of_group else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case RetriableError() | StaleMetadataError():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if of_group else ErrorCode.KAFKA_STORAGE_ERROR
        case CorruptionError():
            return ErrorCode.CORRUPT_MESSAGE
        case InvalidReplicationFactorError():  # for __consumer_offsets, which the first commit creates
            return ErrorCode.INVALID_REPLICATION_FACTOR
    return ErrorCode.UNKNOWN_SERVER_ERROR


@lru_cache(maxsize=256)
def _log_once(message: str) -> None:
    _log.warning("%s", printable(message))
