"""Every error of the engine, grouped by what the caller must do.

    StratalogError
    |-- RetriableError            try again as it is; it may pass
    |-- StaleMetadataError        read the metadata again, then try again
    |-- FencedError               stop: somebody newer has taken over
    |-- InvalidCallError          the call is wrong; fix it
    |-- CorruptionError           storage contradicts itself; call a human
    `-- OutcomeUnknownError       it may have happened; read before you retry

Each class carries ``code``, Kafka's name of the error where Kafka has one. A message names the thing
(topic, partition, broker, file), says what is wrong, and what to do. It is one line of printable characters,
whatever the names in it are made of: it goes to terminals and logs.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from stratalog.partitions.printable import printable

Right = Literal["list", "read", "create", "delete"]


class StratalogError(Exception):
    """The root of all errors that this product raises on purpose."""

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"

    def __str__(self) -> str:
        return printable(super().__str__())


# --------------------------------------------------------------------------------- retry


class RetriableError(StratalogError):
    """A passing fault: the same call may go through later."""

    code = "RETRIABLE"


class StorageError(RetriableError):
    """A store refused or failed a call; nothing is known to have changed."""

    code = "KAFKA_STORAGE_ERROR"


class StorageRefusedError(StorageError):
    """A store answers, and refuses a call until a person does something about it; nothing was changed."""


class StorageAuthorizationError(StorageRefusedError):
    """A store does not allow the caller to do that; nothing was changed. It takes other rights, or credentials."""

    code = "CLUSTER_AUTHORIZATION_FAILED"

    def __init__(self, message: str, right: Right | None = None, path: str | None = None) -> None:
        """``right`` is the one that is missing, on ``path`` (an address), where that is known."""
        super().__init__(message)
        self.right, self.path = right, path


class StorageAuthenticationError(StorageAuthorizationError):
    """A store does not know the caller: no credentials, wrong ones, or expired ones."""

    code = "SASL_AUTHENTICATION_FAILED"


class StoreTimeoutError(RetriableError):
    """A store did not answer within the deadline, and the call changes nothing by itself."""

    code = "REQUEST_TIMED_OUT"


class BrokerUnreachableError(RetriableError):
    """A broker's root cannot be listed or carries no ``broker.json`` (an unmounted volume, say)."""

    code = "BROKER_NOT_AVAILABLE"


class ListingUnstableError(RetriableError):
    """A folder changed so often that no two listings in a row agreed."""

    code = "LISTING_UNSTABLE"


class SourceChangedError(RetriableError):
    """An object was deleted or replaced between its listing and its use."""

    code = "SOURCE_CHANGED"


class NotEnoughReplicasError(RetriableError):
    """The ISR is smaller than ``min.insync.replicas``; nothing was appended."""

    code = "NOT_ENOUGH_REPLICAS"


class NotEnoughReplicasAfterAppendError(RetriableError):
    """Appended to the leader, but the ISR shrank below ``min.insync.replicas`` meanwhile."""

    code = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


class RemoteNotReadyError(RetriableError):
    """The remote log does not hold yet what the follower needs to start there (KIP-1023)."""

    code = "REMOTE_NOT_READY"


class ThrottlingQuotaExceededError(RetriableError):
    """A quota leaves no room for the bytes before the time-out; nothing was read."""

    code = "THROTTLING_QUOTA_EXCEEDED"


class NoMajorityError(RetriableError):
    """Fewer than a majority of the metadata voters could be reached."""

    code = "NO_MAJORITY"


class ConcurrentTransactionsError(RetriableError):
    """The transactional id is in the middle of another change; nothing of this one counts."""

    code = "CONCURRENT_TRANSACTIONS"


class UnstableOffsetCommitError(RetriableError):
    """A transaction that is not over has offsets of the group: they are committed with it, or not (KIP-447)."""

    code = "UNSTABLE_OFFSET_COMMIT"


class CoordinatorNotAvailableError(RetriableError):
    """The internal topic's partition of a group, or of a transactional id, takes no appends at present."""

    code = "COORDINATOR_NOT_AVAILABLE"


class OffsetNotAvailableError(RetriableError):
    """A recently elected leader does not know the high watermark yet; an append finds it (KIP-207, KIP-392)."""

    code = "OFFSET_NOT_AVAILABLE"


class UnknownLeaderEpochError(RetriableError):
    """The caller knows a newer leader epoch than the one who answers; it will hear of it, too."""

    code = "UNKNOWN_LEADER_EPOCH"


# ---------------------------------------------------------------------- refresh and retry


class StaleMetadataError(StratalogError):
    """The view on which the caller acted is out of date."""

    code = "STALE_METADATA"


class FencedLeaderEpochError(StaleMetadataError):
    """The caller's leader epoch is older than the partition's."""

    code = "FENCED_LEADER_EPOCH"


class SnapshotNotFoundError(StaleMetadataError):
    """The leader has not, or no longer, the snapshot that was asked for: ask which one it has (KIP-630)."""

    code = "SNAPSHOT_NOT_FOUND"


class PositionOutOfRangeError(StaleMetadataError):
    """A position behind the end of a snapshot: the leader's is another one than the caller thinks (KIP-630)."""

    code = "POSITION_OUT_OF_RANGE"


class InvalidUpdateVersionError(StaleMetadataError):
    """The caller's partition epoch is not the present one."""

    code = "INVALID_UPDATE_VERSION"


class IneligibleReplicaError(StaleMetadataError):
    """A proposed ISR member is fenced or has another broker epoch (KIP-903)."""

    code = "INELIGIBLE_REPLICA"


class StaleBrokerError(StaleMetadataError):
    """A broker's root is not the incarnation that is registered: register it, or read the metadata again."""

    code = "STALE_BROKER_EPOCH"


class LeaderNotAvailableError(StaleMetadataError):
    """The partition has no leader at present."""

    code = "LEADER_NOT_AVAILABLE"


class PreferredLeaderNotAvailableError(LeaderNotAvailableError):
    """The preferred (first) replica is fenced or not in the ISR; it cannot be elected at present."""

    code = "PREFERRED_LEADER_NOT_AVAILABLE"


class EligibleLeadersNotAvailableError(LeaderNotAvailableError):
    """No replica is eligible for the election: unfenced, and in the ISR unless it is unclean."""

    code = "ELIGIBLE_LEADERS_NOT_AVAILABLE"


# ----------------------------------------------------------------------------------- stop


class FencedError(StratalogError):
    """Somebody newer has taken over; the caller must stop."""

    code = "FENCED"


class InvalidProducerEpochError(FencedError):
    """A newer incarnation of the producer has appended already."""

    code = "INVALID_PRODUCER_EPOCH"


class StaleMemberEpochError(FencedError):
    """A newer member has committed for the group already (KIP-848)."""

    code = "STALE_MEMBER_EPOCH"


class ProducerFencedError(FencedError):
    """A newer producer of the same transactional id has taken over (KIP-98)."""

    code = "PRODUCER_FENCED"


class NotControllerError(FencedError):
    """Another driver has claimed a greater metadata epoch."""

    code = "NOT_CONTROLLER"


# --------------------------------------------------------------------------- fix the call


class InvalidCallError(StratalogError):
    """The call cannot succeed as it is; nothing was changed."""

    code = "INVALID_REQUEST"


class InvalidConfigError(InvalidCallError):
    """An unknown configuration key, or a value that its key does not take."""

    code = "INVALID_CONFIG"


class PolicyViolationError(InvalidCallError):
    """A config of the topic does not allow it. ``cleanup.policy``: only snapshots move the start of such a log
    (KIP-630); ``protect.until.ms``: nobody deletes its records before that time."""

    code = "POLICY_VIOLATION"


class ClusterKeyError(InvalidCallError):
    """The key of the cluster is missing or malformed."""

    code = "CLUSTER_KEY"


class InvalidRecordError(InvalidCallError):
    """The records do not fit the topic (columns, types, partition)."""

    code = "INVALID_RECORD"


class RecordTooLargeError(InvalidRecordError):
    """A record takes more memory than readers have room for; nothing was appended."""

    code = "MESSAGE_TOO_LARGE"


class UnknownTopicOrPartitionError(InvalidCallError):
    """No such topic or partition, or it was deleted."""

    code = "UNKNOWN_TOPIC_OR_PARTITION"


class TopicAlreadyExistsError(InvalidCallError):
    """A topic of that name exists."""

    code = "TOPIC_ALREADY_EXISTS"


class InvalidPartitionsError(InvalidCallError):
    """The number of partitions is below one, or below the topic's present number."""

    code = "INVALID_PARTITIONS"


class InvalidReplicationFactorError(InvalidCallError):
    """The replication factor is below one or above the number of unfenced brokers."""

    code = "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignmentError(InvalidCallError):
    """The replicas asked for are empty, name a broker twice or a fenced one, or leave no replica in sync."""

    code = "INVALID_REPLICA_ASSIGNMENT"


class NoReassignmentInProgressError(InvalidCallError):
    """There is no reassignment of the partition that could be cancelled."""

    code = "NO_REASSIGNMENT_IN_PROGRESS"


class ElectionNotNeededError(InvalidCallError):
    """An unclean election was asked for while a member of the ISR can lead."""

    code = "ELECTION_NOT_NEEDED"


class UnknownBrokerError(InvalidCallError):
    """No such broker in the cluster file or the metadata."""

    code = "BROKER_ID_NOT_REGISTERED"


class LogDirError(InvalidCallError):
    """A log dir does not exist, is not writable, or belongs to somebody else."""

    code = "LOG_DIR_NOT_FOUND"


class MetadataLostError(InvalidCallError):
    """No voter holds the metadata of a cluster of which brokers are there."""


class InconsistentClusterIdError(InvalidCallError):
    """A root belongs to another cluster."""

    code = "INCONSISTENT_CLUSTER_ID"


class UnsupportedStoreError(InvalidCallError):
    """The store cannot do what safety needs, exclusive create above all."""

    code = "UNSUPPORTED_STORE"


class OffsetOutOfRangeError(InvalidCallError):
    """An offset below the log start or above the high watermark."""

    code = "OFFSET_OUT_OF_RANGE"


class LogTruncationError(OffsetOutOfRangeError):
    """An unclean election has put other records, or none, where the consumer has read (KIP-320)."""

    code = "LOG_TRUNCATION"

    def __init__(self, message: str, divergent_offset: int) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset
        """Up to here the log is what the consumer has read; to go on from here is to read what took its place."""


class DuplicateSequenceNumberError(InvalidCallError):
    """The producer has appended later sequences already; whether this one, or with which records, is unknown."""

    code = "DUPLICATE_SEQUENCE_NUMBER"


class OutOfOrderSequenceNumberError(InvalidCallError):
    """The producer has appended later sequences already, and never this one."""

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class ChangedReplayError(OutOfOrderSequenceNumberError):
    """The producer has appended this sequence already, with other records; nothing of these is stored."""


class InvalidGroupIdError(InvalidCallError):
    """A group's name is empty or too long, or no text."""

    code = "INVALID_GROUP_ID"


class GroupIdNotFoundError(InvalidCallError):
    """No such group: it has committed nothing, or what it had committed is forgotten."""

    code = "GROUP_ID_NOT_FOUND"


class NonEmptyGroupError(InvalidCallError):
    """The group lives: it has committed while it was to be deleted, and was not deleted."""

    code = "NON_EMPTY_GROUP"


class OffsetMetadataTooLargeError(InvalidCallError):
    """The text that a committed offset is to carry is longer than ``offset.metadata.max.bytes``."""

    code = "OFFSET_METADATA_TOO_LARGE"


class InvalidTopicError(InvalidCallError):
    """No topic can have that name; or it is internal, and only the engine itself may do that to it."""

    code = "INVALID_TOPIC_EXCEPTION"


class TransactionalIdNotFoundError(InvalidCallError):
    """No such transactional id: nobody has used it, or not for long."""

    code = "TRANSACTIONAL_ID_NOT_FOUND"


class InvalidTxnStateError(InvalidCallError):
    """The transaction cannot go from its present state to the one that was asked for."""

    code = "INVALID_TXN_STATE"


class InvalidProducerIdMappingError(InvalidCallError):
    """The transactional id has another producer id, or none."""

    code = "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeoutError(InvalidCallError):
    """A transaction's timeout is not positive, or above ``transaction.max.timeout.ms``."""

    code = "INVALID_TRANSACTION_TIMEOUT"


class EnvironmentUnusableError(InvalidCallError):
    """Something on this machine is missing or of a wrong version, Java for example."""

    code = "ENVIRONMENT_UNUSABLE"


# --------------------------------------------------------------------------- call a human


class CorruptionError(StratalogError):
    """Storage contradicts itself; no automatic step is safe."""

    code = "CORRUPT_MESSAGE"

    def __init__(self, *args: object, broker_id: int | None = None) -> None:
        """``broker_id``: the broker whose storage is to blame, where that is known."""
        super().__init__(*args)
        self.broker_id = broker_id


class CorruptSegmentError(CorruptionError):
    """A data file is truncated, bit-flipped, foreign, or has no footer."""

    code = "CORRUPT_SEGMENT"

    file: str | None = None
    """Its name in its store, where that is known."""


class UnsignedError(CorruptSegmentError):
    """An object is not signed with the key of the cluster, or was changed since."""

    code = "UNSIGNED"


class LogGapError(CorruptionError):
    """Offsets are missing in the middle of a log."""

    code = "LOG_GAP"


class RemoteObjectMissingError(CorruptionError):
    """The remote table lists an object that is not there."""

    code = "REMOTE_OBJECT_MISSING"


# ------------------------------------------------------------------ read before you retry


class OutcomeUnknownError(StratalogError):
    """The call failed after it may have taken effect; read before you retry."""

    code = "OUTCOME_UNKNOWN"
