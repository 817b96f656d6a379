"""The records of the metadata log: one JSON object each, with Kafka's names.

A record contains a decision, as briefly as possible; the fold derives its consequences
(``stratalog.engine.metadata.fold``). Unknown record types and fields are refused: they come from a later version,
and skipping them would fork the state.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from stratalog.partitions.bounded import decode_json
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.numbers import Int64
from stratalog.partitions.removal import Rule

EPOCH_GAP = 1_000
"""The distance of new leader epochs from the known ones of a history that comes from the remote tier, by a restore
or an election. Unknown leaders may have been elected, and may still be uploading. Files are named by epoch, and
the files of such leaders must not be mistaken for files of the new history.
"""


class _TypedRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag=True,
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A tagged JSON object; fields at their default are left out."""


class VoterId(msgspec.Struct, frozen=True):
    """A metadata voter: one incarnation of the root of a broker."""

    broker_id: Int64
    directory_id: str


class VotersRecord(_TypedRecord, frozen=True):
    """The cluster and its metadata voters; the first record of every metadata log. A later record of this type
    changes one voter (``stratalog.engine.metadata.voter_commands``), and applies starting at its offset, committed
    or not.
    """

    cluster_id: str
    voters: tuple[VoterId, ...]
    replaced: tuple[Int64, ...] = msgspec.field(default=(), name="awaited")
    """Brokers that are not voters now, but will be voters again with different storage."""


class NoOpRecord(_TypedRecord, frozen=True):
    """Changes nothing. It is committed to prove that earlier records are committed."""


class RegisterBrokerRecord(_TypedRecord, frozen=True):
    """A broker's root was found; the offset of this record is the broker's new epoch. Unfences the broker.

    ``root`` is the identity of the root's ``broker.json`` as an object; empty if unknown. ``trusted``: an operator
    vouches that the root is a faithful copy of the root registered with this directory id.
    """

    broker_id: Int64
    directory_id: str
    log_dir: str
    rack: str | None = None
    root: str = ""
    trusted: bool = False


class FenceBrokerRecord(_TypedRecord, frozen=True):
    """The broker is unreachable, or was fenced by hand."""

    broker_id: Int64
    by_hand: bool = False


class UnfenceBrokerRecord(_TypedRecord, frozen=True):
    """The broker, as registered with this epoch, is back."""

    broker_id: Int64
    broker_epoch: Int64


class UnregisterBrokerRecord(_TypedRecord, frozen=True):
    """The broker is permanently removed; no partition has a replica there."""

    broker_id: Int64


class TopicRecord(_TypedRecord, frozen=True):
    """A new topic without partitions and configs, which follow in their own records. Schemas are Spark's JSON text
    of a type; None means binary.
    """

    name: str
    topic_id: str
    key_schema: str | None = None
    value_schema: str | None = None


class TopicSchemaRecord(_TypedRecord, frozen=True):
    """The declared schemas of a topic have grown (``stratalog.partitions.growth``); the record contains all
    declared schemas.
    """

    topic_id: str
    key_schema: str | None = None
    value_schema: str | None = None


class PartitionRecord(_TypedRecord, frozen=True):
    """The next partition of a topic. ``replicas`` are in order of preference. A partition that is restored from
    the remote tier has no ISR and no leader yet, and continues its earlier epochs.
    """

    topic_id: str
    partition: Int64
    replicas: tuple[Int64, ...]
    isr: tuple[Int64, ...]
    leader: Int64 | None = None
    leader_epoch: Int64 = 1
    log_start_offset: Int64 = 0
    added: bool = False
    """Whether records may have been partitioned before this partition was added."""


class PartitionChangeRecord(_TypedRecord, frozen=True):
    """A change of a partition; absent fields are unchanged.

    A record with a leader is an election. Even for the same leader, an election begins a new leader epoch, and
    stops adding replicas unless the record says otherwise.
    """

    topic_id: str
    partition: Int64
    replicas: tuple[Int64, ...] | UnsetType = UNSET
    target: tuple[Int64, ...] | UnsetType = UNSET
    joining: tuple[Int64, ...] | UnsetType = UNSET
    isr: tuple[Int64, ...] | UnsetType = UNSET
    adding: tuple[Int64, ...] | UnsetType = UNSET
    leader: Int64 | UnsetType | None = UNSET
    log_start_offset: Int64 | UnsetType = UNSET
    unclean: bool = False
    """In an election: the leader comes from outside the ISR."""
    begins_again: bool = False
    """In an election: all records are lost. All replicas get new folders, and the log begins at its log start."""
    from_remote: bool = False
    """In an election: the leader's log continues from the end of the remote log."""
    least_leader_epoch: Int64 = 0
    """In an election: the minimum of the new leader epoch."""


class PartitionWrittenRecord(_TypedRecord, frozen=True):
    """The high watermark of a partition has reached an offset above its log start."""

    topic_id: str
    partition: Int64
    high_watermark: Int64


class RemovalRuleRecord(_TypedRecord, frozen=True):
    """A partition's next rule, which removes records at unchanged offsets (``stratalog.partitions.removal``)."""

    topic_id: str
    partition: Int64
    rule: Rule
    committed_ms: Int64


class ErasureRecord(_TypedRecord, frozen=True):
    """A partition's next erasure, which removes records at given offsets (``stratalog.partitions.erasure``)."""

    topic_id: str
    partition: Int64
    erasure: Erasure


class ErasedEverywhereRecord(_TypedRecord, frozen=True):
    """Every replica of the partition has applied the erasures up to this generation, so the offsets of these
    erasures are forgotten.
    """

    topic_id: str
    partition: Int64
    generation: Int64


class RemoveTopicRecord(_TypedRecord, frozen=True):
    """The topic is removed, with its partitions and configs."""

    topic_id: str


class ConfigResource(StrEnum):
    """The owner of a configuration."""

    CLUSTER = "cluster"
    TOPIC = "topic"


class ConfigRecord(_TypedRecord, frozen=True):
    """A config is set to ``value``, or deleted if ``value`` is None. ``name`` is the topic's name, or empty for
    the cluster.
    """

    resource: ConfigResource
    name: str
    key: str
    value: str | None


MetadataRecord = (
    VotersRecord
    | NoOpRecord
    | RegisterBrokerRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | TopicSchemaRecord
    | PartitionRecord
    | PartitionChangeRecord
    | PartitionWrittenRecord
    | RemovalRuleRecord
    | ErasureRecord
    | ErasedEverywhereRecord
    | RemoveTopicRecord
    | ConfigRecord
)

_encoder = msgspec.json.Encoder()

MOST_BYTES = 4 * 1024 * 1024
"""The maximum size of one record, in bytes: declared types and configs may be long."""


def encode(record: MetadataRecord) -> bytes:
    """The record's JSON."""
    return _encoder.encode(record)


def decode(data: bytes) -> MetadataRecord:
    """The record of a JSON text.

    Raises: CorruptionError for a text that is not such a record, or is of a later version.
    """
    found: MetadataRecord = decode_json(
        data, MetadataRecord, f"not a metadata record, or a record of a later version: {data[:120]!r}"
    )
    return found


def check_readable(record: MetadataRecord) -> None:
    """Check that the record, once written, reads back equal. Any other record (with the broker 2.0 instead of 2,
    for example) would make the metadata unreadable forever. Raises: InvalidCallError.
    """
    try:
        text = encode(record)
        if len(text) <= MOST_BYTES and decode(text) == record:
            return
        why = "it would be read back differently" if len(text) <= MOST_BYTES else f"it has {len(text)} bytes"
    except (CorruptionError, TypeError, ValueError) as error:
        why = str(error.__cause__ or error)
    raise InvalidCallError(f"{str(record)[:1000]} cannot be a record of the metadata: {why}; nothing was changed")
