"""The records of the metadata log: one JSON object each, named after Kafka's.

A record says what was decided, as shortly as possible; what follows from it is derived by the fold
(``stratalog.engine.metadata.fold``). Unknown record types and fields are refused: they come from a later version,
and skipping them would fork the state.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from stratalog.partitions.bounded import decode_json
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.numbers import Int64

EPOCH_GAP = 1_000
"""How far new leader epochs are above the known ones of a history that is taken from the remote tier: by a
restore, or by an election that goes on from there. Somebody may have elected leaders of whom nothing is
known, and may still be uploading. Files are named by epoch, and one of theirs must never be taken for one of
the new history."""


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
    """The cluster and its metadata voters; the first record of every metadata log. A later one changes one
    voter (``stratalog.engine.metadata.voter_commands``); it counts from where it stands, committed or not.
    """

    cluster_id: str
    voters: tuple[VoterId, ...]
    replaced: tuple[Int64, ...] = msgspec.field(default=(), name="awaited")
    """Brokers that are no voters now and are about to be again, with other storage."""


class NoOpRecord(_TypedRecord, frozen=True):
    """Nothing. Committed to prove that what lies before it is committed."""


class RegisterBrokerRecord(_TypedRecord, frozen=True):
    """A broker's root was found; the offset of this record is its broker epoch. Unfences it.

    ``root`` is the identity of the root's ``broker.json`` as an object; empty when it is not known.
    ``trusted``: an operator says that the root is a faithful copy of the one registered with this directory id.
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
    """The broker is gone for good; no partition has a replica there."""

    broker_id: Int64


class TopicRecord(_TypedRecord, frozen=True):
    """A new topic without partitions and configs, which follow it. Schemas are Spark's JSON text of a
    type; None stands for binary.
    """

    name: str
    topic_id: str
    key_schema: str | None = None
    value_schema: str | None = None


class TopicSchemaRecord(_TypedRecord, frozen=True):
    """The declared schemas of a topic have grown (``stratalog.partitions.growth``); these are all of them."""

    topic_id: str
    key_schema: str | None = None
    value_schema: str | None = None


class PartitionRecord(_TypedRecord, frozen=True):
    """A new partition, the next one of its topic. ``replicas`` stand in order of preference. One that is restored
    from the remote tier has no ISR and no leader yet, and goes on from what it was.
    """

    topic_id: str
    partition: Int64
    replicas: tuple[Int64, ...]
    isr: tuple[Int64, ...]
    leader: Int64 | None = None
    leader_epoch: Int64 = 1
    log_start_offset: Int64 = 0
    added: bool = False
    """It may be that records were dealt out among the partitions before it was one of them."""


class PartitionChangeRecord(_TypedRecord, frozen=True):
    """A change of a partition; fields that are absent stay as they are.

    A record that names a leader is an election: also of the same leader it is a new leader epoch, and
    nobody is being added any more unless the record says so.
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
    """Of an election: the leader comes from outside the ISR."""
    begins_again: bool = False
    """Of an election: all records are lost. All replicas get new folders, and the log begins at its log start."""
    from_remote: bool = False
    """Of an election: the leader's log goes on where the remote log ends."""
    least_leader_epoch: Int64 = 0
    """Of an election: the new leader epoch is this one, or a greater one."""


class PartitionWrittenRecord(_TypedRecord, frozen=True):
    """The high watermark of a partition has reached an offset above its log start."""

    topic_id: str
    partition: Int64
    high_watermark: Int64


class RemoveTopicRecord(_TypedRecord, frozen=True):
    """The topic is gone, with its partitions and configs."""

    topic_id: str


class ConfigResource(StrEnum):
    """The owner of a configuration."""

    CLUSTER = "cluster"
    TOPIC = "topic"


class ConfigRecord(_TypedRecord, frozen=True):
    """A config is set to ``value``, or deleted when that is None. ``name`` is the topic's name, or empty
    for the cluster.
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
    | RemoveTopicRecord
    | ConfigRecord
)

_encoder = msgspec.json.Encoder()

MOST_BYTES = 4 * 1024 * 1024
"""Of one record: a declared type may have many fields, and a config much to say."""


def encode(record: MetadataRecord) -> bytes:
    """The record's JSON."""
    return _encoder.encode(record)


def decode(data: bytes) -> MetadataRecord:
    """The record of a JSON text.

    Raises: CorruptionError for a text that is no such record, or is of a later version.
    """
    found: MetadataRecord = decode_json(
        data, MetadataRecord, f"not a metadata record, or a record of a later version: {data[:120]!r}"
    )
    return found


def check_readable(record: MetadataRecord) -> None:
    """Raises: InvalidCallError unless the written record reads back as it is. Another one (its broker is 2.0, say,
    and not 2) would make the metadata unreadable for good.
    """
    try:
        text = encode(record)
        if len(text) <= MOST_BYTES and decode(text) == record:
            return
        why = "it would be read back differently" if len(text) <= MOST_BYTES else f"it has {len(text)} bytes"
    except (CorruptionError, TypeError, ValueError) as error:
        why = str(error.__cause__ or error)
    raise InvalidCallError(f"{str(record)[:1000]} cannot be a record of the metadata: {why}; nothing was changed")
