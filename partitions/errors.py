"""Every error of the engine, grouped by what the caller must do.

    StratalogError
    |-- RetriableError            repeat the same call; the fault may be temporary
    |-- StaleMetadataError        read the metadata again, then retry
    |-- FencedError               stop: a newer instance has taken over
    |-- InvalidCallError          the call is wrong; fix it
    |-- CorruptionError           storage contradicts itself; call an operator
    `-- OutcomeUnknownError       the call may have taken effect; read before you retry

Each class has a ``code``, which is Kafka's name of the error if Kafka has one. A message names the thing (topic,
partition, broker, file), and says what is wrong and what to do. It is one line of printable characters, whatever
characters its names contain, since it goes to terminals and logs.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from stratalog.partitions.printable import printable

Right = Literal["list", "read", "create", "delete"]


class StratalogError(Exception):
    """The base class of all errors that stratalog raises on purpose."""

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"

    def __str__(self) -> str:
        return printable(super().__str__())


# --------------------------------------------------------------------------------- retry


class RetriableError(StratalogError):
    """A transient fault: the same call may succeed later."""

    code = "RETRIABLE"


class StorageError(RetriableError):
    """A store refused a call, or the call failed; nothing is known to have changed."""

    code = "KAFKA_STORAGE_ERROR"


class StorageRefusedError(StorageError):
    """A store answers, but will refuse this call until an operator fixes the cause; nothing was changed."""


class StorageAuthorizationError(StorageRefusedError):
    """A store denies the caller this action; nothing was changed. The caller needs permissions or credentials."""

    code = "CLUSTER_AUTHORIZATION_FAILED"

    def __init__(self, message: str, right: Right | None = None, path: str | None = None) -> None:
        """``right`` is the missing permission, on the address ``path``, if known."""
        super().__init__(message)
        self.right, self.path = right, path


class StorageAuthenticationError(StorageAuthorizationError):
    """A store does not recognize the caller: its credentials are missing, wrong or expired."""

    code = "SASL_AUTHENTICATION_FAILED"


class StoreTimeoutError(RetriableError):
    """A store did not answer within the deadline, and the call itself changes nothing."""

    code = "REQUEST_TIMED_OUT"


class BrokerUnreachableError(RetriableError):
    """A broker's root cannot be listed or has no ``broker.json`` (its volume is not mounted, for example)."""

    code = "BROKER_NOT_AVAILABLE"


class ListingUnstableError(RetriableError):
    """A folder kept changing, so that no two listings in a row agreed."""

    code = "LISTING_UNSTABLE"


class SourceChangedError(RetriableError):
    """An object was deleted or replaced between its listing and its use."""

    code = "SOURCE_CHANGED"


class NotEnoughReplicasError(RetriableError):
    """The ISR is smaller than ``min.insync.replicas``; nothing was appended."""

    code = "NOT_ENOUGH_REPLICAS"


class NotEnoughReplicasAfterAppendError(RetriableError):
    """The records were appended to the leader, but the ISR shrank below ``min.insync.replicas`` meanwhile."""

    code = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


class RemoteNotReadyError(RetriableError):
    """The remote log does not yet have the data from which the follower would start (KIP-1023)."""

    code = "REMOTE_NOT_READY"


class ThrottlingQuotaExceededError(RetriableError):
    """A quota does not allow these bytes before the timeout; nothing was read."""

    code = "THROTTLING_QUOTA_EXCEEDED"


class NoMajorityError(RetriableError):
    """Fewer than a majority of the metadata voters could be reached."""

    code = "NO_MAJORITY"


class ConcurrentTransactionsError(RetriableError):
    """Another change of the transactional id is in progress; this change had no effect."""

    code = "CONCURRENT_TRANSACTIONS"


class UnstableOffsetCommitError(RetriableError):
    """An open transaction has offsets of the group; its outcome decides whether they take effect (KIP-447)."""

    code = "UNSTABLE_OFFSET_COMMIT"


class CoordinatorNotAvailableError(RetriableError):
    """The internal partition of a group or transactional id accepts no appends now; nothing was changed."""

    code = "COORDINATOR_NOT_AVAILABLE"


class OffsetNotAvailableError(RetriableError):
    """The new leader's high watermark is not known yet; an append determines it (KIP-207, KIP-392)."""

    code = "OFFSET_NOT_AVAILABLE"


class UnknownLeaderEpochError(RetriableError):
    """The caller knows a newer leader epoch than the answering side, which will learn it later."""

    code = "UNKNOWN_LEADER_EPOCH"


# ---------------------------------------------------------------------- refresh and retry


class StaleMetadataError(StratalogError):
    """The view on which the caller acted is out of date."""

    code = "STALE_METADATA"


class FencedLeaderEpochError(StaleMetadataError):
    """The caller's leader epoch is older than the partition's leader epoch."""

    code = "FENCED_LEADER_EPOCH"


class SnapshotNotFoundError(StaleMetadataError):
    """The leader does not have the requested snapshot: request the leader's current snapshot (KIP-630)."""

    code = "SNAPSHOT_NOT_FOUND"


class PositionOutOfRangeError(StaleMetadataError):
    """The position is after the end of the snapshot: the caller assumes a different snapshot (KIP-630)."""

    code = "POSITION_OUT_OF_RANGE"


class InvalidUpdateVersionError(StaleMetadataError):
    """The caller's partition epoch is not the current epoch."""

    code = "INVALID_UPDATE_VERSION"


class IneligibleReplicaError(StaleMetadataError):
    """A proposed ISR member is fenced or has another broker epoch (KIP-903)."""

    code = "INELIGIBLE_REPLICA"


class StaleBrokerError(StaleMetadataError):
    """A broker's root is not the registered root (register it), or was registered again (read the metadata)."""

    code = "STALE_BROKER_EPOCH"


class LeaderNotAvailableError(StaleMetadataError):
    """The partition currently has no leader."""

    code = "LEADER_NOT_AVAILABLE"


class PreferredLeaderNotAvailableError(LeaderNotAvailableError):
    """The preferred (first) replica is fenced or not in the ISR; it cannot be elected now."""

    code = "PREFERRED_LEADER_NOT_AVAILABLE"


class EligibleLeadersNotAvailableError(LeaderNotAvailableError):
    """No replica is both unfenced and, unless the election is unclean, in the ISR."""

    code = "ELIGIBLE_LEADERS_NOT_AVAILABLE"


# ----------------------------------------------------------------------------------- stop


class FencedError(StratalogError):
    """A newer instance has taken over; the caller must stop."""

    code = "FENCED"


class InvalidProducerEpochError(FencedError):
    """A newer instance of the producer has already appended."""

    code = "INVALID_PRODUCER_EPOCH"


class StaleMemberEpochError(FencedError):
    """A newer member has already committed for the group (KIP-848)."""

    code = "STALE_MEMBER_EPOCH"


class ProducerFencedError(FencedError):
    """A newer producer of the same transactional id has taken over (KIP-98)."""

    code = "PRODUCER_FENCED"


class NotControllerError(FencedError):
    """Another driver has claimed a greater metadata epoch."""

    code = "NOT_CONTROLLER"


# --------------------------------------------------------------------------- fix the call


class InvalidCallError(StratalogError):
    """The call cannot succeed in this form; nothing was changed."""

    code = "INVALID_REQUEST"


class InvalidConfigError(InvalidCallError):
    """A configuration key is unknown, or its value is not allowed."""

    code = "INVALID_CONFIG"


class PolicyViolationError(InvalidCallError):
    """A config of the topic forbids the call. With ``cleanup.policy=snapshot``, only snapshots move the start of
    the log (KIP-630). Before ``protect.until.ms``, records of the log cannot be deleted."""

    code = "POLICY_VIOLATION"


class ClusterKeyError(InvalidCallError):
    """The key of the cluster is missing or malformed."""

    code = "CLUSTER_KEY"


class InvalidRecordError(InvalidCallError):
    """The records do not fit the topic (columns, types, partition)."""

    code = "INVALID_RECORD"


class RecordTooLargeError(InvalidRecordError):
    """A record needs more memory than readers have; nothing was appended."""

    code = "MESSAGE_TOO_LARGE"


class UnknownTopicOrPartitionError(InvalidCallError):
    """The topic or partition does not exist, or was deleted."""

    code = "UNKNOWN_TOPIC_OR_PARTITION"


class TopicAlreadyExistsError(InvalidCallError):
    """A topic of that name exists."""

    code = "TOPIC_ALREADY_EXISTS"


class InvalidPartitionsError(InvalidCallError):
    """The number of partitions is below one, or below the topic's current number."""

    code = "INVALID_PARTITIONS"


class InvalidReplicationFactorError(InvalidCallError):
    """The replication factor is below one or above the number of unfenced brokers."""

    code = "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignmentError(InvalidCallError):
    """The requested replicas are empty, name a broker twice, name a fenced broker, or leave no replica in sync."""

    code = "INVALID_REPLICA_ASSIGNMENT"


class NoReassignmentInProgressError(InvalidCallError):
    """The partition has no reassignment to cancel."""

    code = "NO_REASSIGNMENT_IN_PROGRESS"


class ElectionNotNeededError(InvalidCallError):
    """An unclean election was requested although a member of the ISR can lead."""

    code = "ELECTION_NOT_NEEDED"


class UnknownBrokerError(InvalidCallError):
    """The broker is not in the cluster file or the metadata."""

    code = "BROKER_ID_NOT_REGISTERED"


class LogDirError(InvalidCallError):
    """A log dir does not exist, is not writable, or belongs to another broker or cluster."""

    code = "LOG_DIR_NOT_FOUND"


class MetadataLostError(InvalidCallError):
    """No voter holds the metadata of a cluster whose brokers exist."""


class InconsistentClusterIdError(InvalidCallError):
    """A root belongs to another cluster."""

    code = "INCONSISTENT_CLUSTER_ID"


class UnsupportedStoreError(InvalidCallError):
    """The store lacks a guarantee that safety requires, most importantly exclusive create."""

    code = "UNSUPPORTED_STORE"


class OffsetOutOfRangeError(InvalidCallError):
    """An offset is below the log start or above the high watermark."""

    code = "OFFSET_OUT_OF_RANGE"


class LogTruncationError(OffsetOutOfRangeError):
    """An unclean election has replaced or removed the records that the consumer has read (KIP-320)."""

    code = "LOG_TRUNCATION"

    def __init__(self, message: str, divergent_offset: int) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset
        """The offset up to which the log still has the records that the consumer has read."""


class DuplicateSequenceNumberError(InvalidCallError):
    """The producer has already appended later sequences; whether it appended this sequence is unknown."""

    code = "DUPLICATE_SEQUENCE_NUMBER"


class OutOfOrderSequenceNumberError(InvalidCallError):
    """The producer has already appended later sequences, but never this sequence."""

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class ChangedReplayError(OutOfOrderSequenceNumberError):
    """The producer has already appended this sequence with other records; this call stored nothing."""


class InvalidGroupIdError(InvalidCallError):
    """The name of a group is empty, too long, or not text."""

    code = "INVALID_GROUP_ID"


class GroupIdNotFoundError(InvalidCallError):
    """The group does not exist: it has committed nothing, or its commits have expired."""

    code = "GROUP_ID_NOT_FOUND"


class NonEmptyGroupError(InvalidCallError):
    """The group is active: it committed during the deletion, and was not deleted."""

    code = "NON_EMPTY_GROUP"


class OffsetMetadataTooLargeError(InvalidCallError):
    """The metadata text of a committed offset is longer than ``offset.metadata.max.bytes``."""

    code = "OFFSET_METADATA_TOO_LARGE"


class InvalidTopicError(InvalidCallError):
    """The name is not allowed for a topic; or the topic is internal, and only the engine itself may do this."""

    code = "INVALID_TOPIC_EXCEPTION"


class TransactionalIdNotFoundError(InvalidCallError):
    """The transactional id does not exist: it was never used, or has expired."""

    code = "TRANSACTIONAL_ID_NOT_FOUND"


class InvalidTxnStateError(InvalidCallError):
    """The transaction cannot change from its current state to the requested one."""

    code = "INVALID_TXN_STATE"


class InvalidProducerIdMappingError(InvalidCallError):
    """The transactional id has another producer id, or none."""

    code = "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeoutError(InvalidCallError):
    """A transaction's timeout is not positive, or above ``transaction.max.timeout.ms``."""

    code = "INVALID_TRANSACTION_TIMEOUT"


class EnvironmentUnusableError(InvalidCallError):
    """Something on this machine, such as Java, is missing or has a wrong version."""

    code = "ENVIRONMENT_UNUSABLE"


# --------------------------------------------------------------------------- call an operator


class CorruptionError(StratalogError):
    """Storage contradicts itself; no automatic step is safe."""

    code = "CORRUPT_MESSAGE"

    def __init__(self, *args: object, broker_id: int | None = None) -> None:
        """``broker_id`` is the broker whose storage is damaged, if that is known."""
        super().__init__(*args)
        self.broker_id = broker_id


class CorruptSegmentError(CorruptionError):
    """A data file is truncated, has flipped bits, is foreign, or has no footer."""

    code = "CORRUPT_SEGMENT"

    file: str | None = None
    """The name of the file in its store, if that is known."""


class UnsignedError(CorruptSegmentError):
    """An object is not signed with the key of the cluster, or was changed after it was signed."""

    code = "UNSIGNED"


class LogGapError(CorruptionError):
    """Offsets are missing in the middle of a log."""

    code = "LOG_GAP"


class RemoteObjectMissingError(CorruptionError):
    """The remote table lists an object that does not exist."""

    code = "REMOTE_OBJECT_MISSING"


# ------------------------------------------------------------------ read before you retry


class OutcomeUnknownError(StratalogError):
    """The call failed, but may have taken effect; read before you retry."""

    code = "OUTCOME_UNKNOWN"
