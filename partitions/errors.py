"""Every error of the engine, grouped by what the caller must do.

    StratalogError
    |-- RetriableError            repeat the same call; the fault may be temporary
    |-- StaleMetadataError        read the metadata again, then retry
    |-- FencedError               stop: a newer instance has taken over
    |-- InvalidCallError          the call is wrong; fix it
    |-- CorruptionError           storage contradicts itself; call an operator
    `-- OutcomeUnknownError       the call may have taken effect; read before you retry

A message names the thing (topic, partition, broker, file), and says what is wrong and what to do. It goes to
terminals and logs, so it is one line of printable characters, whatever characters its names contain.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from stratalog.partitions.printable import printable

Right = Literal["list", "read", "create", "delete"]


class StratalogError(Exception):
    """The base class of all errors that stratalog raises on purpose."""

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    """Kafka's name of the error, if Kafka has one. An error without a code of its own has its parent's code."""

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

    def __str__(self) -> str:
        return printable(super().__str__())


def codes_of(*kinds: type[StratalogError]) -> frozenset[str]:
    """The codes of these errors and of their subclasses."""
    return frozenset(kind.code for kind in kinds).union(*(codes_of(*kind.__subclasses__()) for kind in kinds))


# --------------------------------------------------------------------------------- retry


class RetriableError(StratalogError, code="RETRIABLE"):
    """A transient fault: the same call may succeed later."""


class StorageError(RetriableError, code="KAFKA_STORAGE_ERROR"):
    """A store refused a call, or the call failed; nothing is known to have changed."""


class StorageRefusedError(StorageError):
    """A store answers, but will refuse this call until an operator fixes the cause; nothing was changed."""


class StorageAuthorizationError(StorageRefusedError, code="CLUSTER_AUTHORIZATION_FAILED"):
    """A store denies the caller this action; nothing was changed. The caller needs permissions or credentials."""

    def __init__(self, message: str, right: Right | None = None, path: str | None = None) -> None:
        """``right`` is the missing permission, on the address ``path``, if known."""
        super().__init__(message)
        self.right, self.path = right, path


class StorageAuthenticationError(StorageAuthorizationError, code="SASL_AUTHENTICATION_FAILED"):
    """A store does not recognize the caller: its credentials are missing, wrong or expired."""


class StoreTimeoutError(RetriableError, code="REQUEST_TIMED_OUT"):
    """A store did not answer within the deadline, and the call itself changes nothing."""


class BrokerUnreachableError(RetriableError, code="BROKER_NOT_AVAILABLE"):
    """A broker's root cannot be listed or has no ``broker.json`` (its volume is not mounted, for example)."""


class ListingUnstableError(RetriableError, code="LISTING_UNSTABLE"):
    """A folder kept changing, so that no two listings in a row agreed."""


class SourceChangedError(RetriableError, code="SOURCE_CHANGED"):
    """An object was deleted or replaced between its listing and its use."""


class NotEnoughReplicasError(RetriableError, code="NOT_ENOUGH_REPLICAS"):
    """The ISR is smaller than ``min.insync.replicas``; nothing was appended."""


class NotEnoughReplicasAfterAppendError(RetriableError, code="NOT_ENOUGH_REPLICAS_AFTER_APPEND"):
    """The records were appended to the leader, but the ISR shrank below ``min.insync.replicas`` meanwhile."""


class RemoteNotReadyError(RetriableError, code="REMOTE_NOT_READY"):
    """The remote log does not yet have the data from which the follower would start (KIP-1023)."""


class ThrottlingQuotaExceededError(RetriableError, code="THROTTLING_QUOTA_EXCEEDED"):
    """A quota does not allow these bytes before the timeout; nothing was read."""


class NoMajorityError(RetriableError, code="NO_MAJORITY"):
    """Fewer than a majority of the metadata voters could be reached."""


class ConcurrentTransactionsError(RetriableError, code="CONCURRENT_TRANSACTIONS"):
    """Another change of the transactional id is in progress; this change had no effect."""


class UnstableOffsetCommitError(RetriableError, code="UNSTABLE_OFFSET_COMMIT"):
    """An open transaction has offsets of the group; its outcome decides whether they take effect (KIP-447)."""


class CoordinatorNotAvailableError(RetriableError, code="COORDINATOR_NOT_AVAILABLE"):
    """The internal partition of a group or transactional id accepts no appends now; nothing was changed."""


class OffsetNotAvailableError(RetriableError, code="OFFSET_NOT_AVAILABLE"):
    """The new leader's high watermark is not known yet; an append determines it (KIP-207, KIP-392)."""


class UnknownLeaderEpochError(RetriableError, code="UNKNOWN_LEADER_EPOCH"):
    """The caller knows a newer leader epoch than the answering side, which will learn it later."""


# ---------------------------------------------------------------------- refresh and retry


class StaleMetadataError(StratalogError, code="STALE_METADATA"):
    """The view on which the caller acted is out of date."""


class FencedLeaderEpochError(StaleMetadataError, code="FENCED_LEADER_EPOCH"):
    """The caller's leader epoch is older than the partition's leader epoch."""


class SnapshotNotFoundError(StaleMetadataError, code="SNAPSHOT_NOT_FOUND"):
    """The leader does not have the requested snapshot: request the leader's current snapshot (KIP-630)."""


class PositionOutOfRangeError(StaleMetadataError, code="POSITION_OUT_OF_RANGE"):
    """The position is after the end of the snapshot: the caller assumes a different snapshot (KIP-630)."""


class InvalidUpdateVersionError(StaleMetadataError, code="INVALID_UPDATE_VERSION"):
    """The caller's partition epoch is not the current epoch."""


class IneligibleReplicaError(StaleMetadataError, code="INELIGIBLE_REPLICA"):
    """A proposed ISR member is fenced or has another broker epoch (KIP-903)."""


class StaleBrokerError(StaleMetadataError, code="STALE_BROKER_EPOCH"):
    """A broker's root is not the registered root (register it), or was registered again (read the metadata)."""


class LeaderNotAvailableError(StaleMetadataError, code="LEADER_NOT_AVAILABLE"):
    """The partition currently has no leader."""


class PreferredLeaderNotAvailableError(LeaderNotAvailableError, code="PREFERRED_LEADER_NOT_AVAILABLE"):
    """The preferred (first) replica is fenced or not in the ISR; it cannot be elected now."""


class EligibleLeadersNotAvailableError(LeaderNotAvailableError, code="ELIGIBLE_LEADERS_NOT_AVAILABLE"):
    """No replica is both unfenced and, unless the election is unclean, in the ISR."""


# ----------------------------------------------------------------------------------- stop


class FencedError(StratalogError, code="FENCED"):
    """A newer instance has taken over; the caller must stop."""


class InvalidProducerEpochError(FencedError, code="INVALID_PRODUCER_EPOCH"):
    """A newer instance of the producer has already appended."""


class StaleMemberEpochError(FencedError, code="STALE_MEMBER_EPOCH"):
    """A newer member has already committed for the group (KIP-848)."""


class ProducerFencedError(FencedError, code="PRODUCER_FENCED"):
    """A newer producer of the same transactional id has taken over (KIP-98)."""


class NotControllerError(FencedError, code="NOT_CONTROLLER"):
    """Another driver has claimed a greater metadata epoch."""


# --------------------------------------------------------------------------- fix the call


class InvalidCallError(StratalogError, code="INVALID_REQUEST"):
    """The call cannot succeed in this form; nothing was changed."""


class InvalidConfigError(InvalidCallError, code="INVALID_CONFIG"):
    """A configuration key is unknown, or its value is not allowed."""


class PolicyViolationError(InvalidCallError, code="POLICY_VIOLATION"):
    """A config of the topic forbids the call. With ``cleanup.policy=snapshot``, only snapshots move the start of
    the log (KIP-630). Before ``protect.until.ms``, records of the log cannot be deleted."""


class ClusterKeyError(InvalidCallError, code="CLUSTER_KEY"):
    """The key of the cluster is missing or malformed."""


class InvalidRecordError(InvalidCallError, code="INVALID_RECORD"):
    """The records do not fit the topic (columns, types, partition)."""


class RecordTooLargeError(InvalidRecordError, code="MESSAGE_TOO_LARGE"):
    """A record needs more memory than readers have; nothing was appended."""


class UnknownTopicOrPartitionError(InvalidCallError, code="UNKNOWN_TOPIC_OR_PARTITION"):
    """The topic or partition does not exist, or was deleted."""


class TopicAlreadyExistsError(InvalidCallError, code="TOPIC_ALREADY_EXISTS"):
    """A topic of that name exists."""


class InvalidPartitionsError(InvalidCallError, code="INVALID_PARTITIONS"):
    """The number of partitions is below one, or below the topic's current number."""


class InvalidReplicationFactorError(InvalidCallError, code="INVALID_REPLICATION_FACTOR"):
    """The replication factor is below one or above the number of unfenced brokers."""


class InvalidReplicaAssignmentError(InvalidCallError, code="INVALID_REPLICA_ASSIGNMENT"):
    """The requested replicas are empty, name a broker twice, name a fenced broker, or leave no replica in sync."""


class NoReassignmentInProgressError(InvalidCallError, code="NO_REASSIGNMENT_IN_PROGRESS"):
    """The partition has no reassignment to cancel."""


class ElectionNotNeededError(InvalidCallError, code="ELECTION_NOT_NEEDED"):
    """An unclean election was requested although a member of the ISR can lead."""


class UnknownBrokerError(InvalidCallError, code="BROKER_ID_NOT_REGISTERED"):
    """The broker is not in the cluster file or the metadata."""


class LogDirError(InvalidCallError, code="LOG_DIR_NOT_FOUND"):
    """A log dir does not exist, is not writable, or belongs to another broker or cluster."""


class MetadataLostError(InvalidCallError):
    """No voter holds the metadata of a cluster whose brokers exist."""


class InconsistentClusterIdError(InvalidCallError, code="INCONSISTENT_CLUSTER_ID"):
    """A root belongs to another cluster."""


class UnsupportedStoreError(InvalidCallError, code="UNSUPPORTED_STORE"):
    """The store lacks a guarantee that safety requires, most importantly exclusive create."""


class OffsetOutOfRangeError(InvalidCallError, code="OFFSET_OUT_OF_RANGE"):
    """An offset is below the log start or above the high watermark."""


class LogTruncationError(OffsetOutOfRangeError, code="LOG_TRUNCATION"):
    """An unclean election has replaced or removed the records that the consumer has read (KIP-320)."""

    def __init__(self, message: str, divergent_offset: int) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset
        """The offset up to which the log still has the records that the consumer has read."""


class DuplicateSequenceNumberError(InvalidCallError, code="DUPLICATE_SEQUENCE_NUMBER"):
    """The producer has already appended later sequences; whether it appended this sequence is unknown."""


class OutOfOrderSequenceNumberError(InvalidCallError, code="OUT_OF_ORDER_SEQUENCE_NUMBER"):
    """The producer has already appended later sequences, but never this sequence."""


class ChangedReplayError(OutOfOrderSequenceNumberError):
    """The producer has already appended this sequence with other records; this call stored nothing."""


class InvalidGroupIdError(InvalidCallError, code="INVALID_GROUP_ID"):
    """The name of a group is empty, too long, or not text."""


class GroupIdNotFoundError(InvalidCallError, code="GROUP_ID_NOT_FOUND"):
    """The group does not exist: it has committed nothing, or its commits have expired."""


class NonEmptyGroupError(InvalidCallError, code="NON_EMPTY_GROUP"):
    """The group is active: it committed during the deletion, and was not deleted."""


class OffsetMetadataTooLargeError(InvalidCallError, code="OFFSET_METADATA_TOO_LARGE"):
    """The metadata text of a committed offset is longer than ``offset.metadata.max.bytes``."""


class InvalidTopicError(InvalidCallError, code="INVALID_TOPIC_EXCEPTION"):
    """The name is not allowed for a topic; or the topic is internal, and only the engine itself may do this."""


class TransactionalIdNotFoundError(InvalidCallError, code="TRANSACTIONAL_ID_NOT_FOUND"):
    """The transactional id does not exist: it was never used, or has expired."""


class InvalidTxnStateError(InvalidCallError, code="INVALID_TXN_STATE"):
    """The transaction cannot change from its current state to the requested one."""


class InvalidProducerIdMappingError(InvalidCallError, code="INVALID_PRODUCER_ID_MAPPING"):
    """The transactional id has another producer id, or none."""


class InvalidTransactionTimeoutError(InvalidCallError, code="INVALID_TRANSACTION_TIMEOUT"):
    """A transaction's timeout is not positive, or above ``transaction.max.timeout.ms``."""


class EnvironmentUnusableError(InvalidCallError, code="ENVIRONMENT_UNUSABLE"):
    """Something on this machine, such as Java, is missing or has a wrong version."""


# --------------------------------------------------------------------------- call an operator


class CorruptionError(StratalogError, code="CORRUPT_MESSAGE"):
    """Storage contradicts itself; no automatic step is safe."""

    def __init__(self, *args: object, broker_id: int | None = None) -> None:
        """``broker_id`` is the broker whose storage is damaged, if that is known."""
        super().__init__(*args)
        self.broker_id = broker_id


class CorruptSegmentError(CorruptionError, code="CORRUPT_SEGMENT"):
    """A data file is truncated, has flipped bits, is foreign, or has no footer."""

    file: str | None = None
    """The name of the file in its store, if that is known."""


class UnsignedError(CorruptSegmentError, code="UNSIGNED"):
    """An object is not signed with the key of the cluster, or was changed after it was signed."""


class LogGapError(CorruptionError, code="LOG_GAP"):
    """Offsets are missing in the middle of a log."""


class RemoteObjectMissingError(CorruptionError, code="REMOTE_OBJECT_MISSING"):
    """The remote table lists an object that does not exist."""


# ------------------------------------------------------------------ read before you retry


class OutcomeUnknownError(StratalogError, code="OUTCOME_UNKNOWN"):
    """The call failed, but may have taken effect; read before you retry."""
